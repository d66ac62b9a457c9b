"""A room whose message is replayed, and what its handler is given: functions of steps, hooks, shields."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta
from typing import Any

import pytest

from greenroom import ActorSystem, Client, CycleEnded, Interruption, Mode
from integration.agents import LONG, WAIT_S, Director, Run, abandon, settled, wait_for

BOTH = pytest.mark.parametrize("threaded", [False, True], ids=["coroutine", "function"])
LEASE = timedelta(seconds=1)


class Calls:
    """Counts what a step's function was called with."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def charge(self, amount: int) -> str:
        self.made.append(amount)
        return f"charged {amount}"

    def keyed(self, amount: int, *, idempotency_key: str) -> str:
        self.made.append(idempotency_key)
        return f"charged {amount}"


class Stage:
    """A system with one room, whose message's handler the test steers."""

    def __init__(
        self, running: Callable[..., ActorSystem], director: Director, client: Client, *, threaded: bool, **options: Any
    ) -> None:
        self._running, self._director, self.client = running, director, client
        self._agent = director.agent(threaded=threaded, max_attempts=9, **options)
        self.system = running(self._agent, lease=LEASE)

    def send(self) -> Run:
        self.client.send("1", "wait")
        return self._director.run("1")

    def replay(self, run: Run, how: str, release: Callable[[], object] = lambda: None) -> Run:
        """End the run by a ``stop`` and a play, a ``crash`` of its worker or a failure (``fail``); answer the replay.

        ``release`` lets a handler that blocks go, once its effects are refused.
        """
        if how == "fail":
            release()
            run.fail()
        elif how == "stop":
            self.client.stop("1")
            release()
            settled(self.client, "1", run.ticket)
            self.client.play("1")
        else:
            crashed, self.system = self.system, self._running(self._agent, lease=LEASE)
            abandon(crashed)
            release()
        again = self._director.run("1")
        assert again.message.id == run.message.id
        assert again.ticket > run.ticket
        return again


def step(run: Run, name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return run.do(lambda cycle: cycle.step(name, function, *args, **options))


class Hanging:
    """A step's function that hangs until it is let go: plain in a thread, else a coroutine."""

    def __init__(self, threaded: bool) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.keys: list[str] = []
        self.function: Callable[..., Any] = self._block if threaded else self._wait

    def _block(self, idempotency_key: str) -> None:
        self.keys.append(idempotency_key)
        self.begun.set()
        wait_for(self.go, "the step may end")

    async def _wait(self, idempotency_key: str) -> None:
        self.keys.append(idempotency_key)
        self.begun.set()
        await asyncio.Event().wait()

    def begin(self, run: Run, name: str = "charge") -> Future[Any]:
        """Have the handler begin a step of that name, and wait for that."""
        future = run.begin(lambda cycle: cycle.step(name, self.function))
        wait_for(self.begun, "the step has begun")
        return future


class Hooks:
    """Hooks that note what they are told, and then do what the test wants of each. ``options`` are for the agent's class."""

    def __init__(self, act: Callable[[Interruption, Any], Any] = lambda _, state: None, *, plain: bool = False) -> None:
        self.told: list[Interruption] = []
        self._changed = threading.Condition()

        def hook(_: object, interruption: Interruption, state: Any) -> Any:
            with self._changed:
                self.told.append(interruption)
                self._changed.notify_all()
            return act(interruption, state)

        async def on_loop(_: object, interruption: Interruption, state: Any) -> Any:
            result = hook(_, interruption, state)
            return await result if asyncio.iscoroutine(result) else result

        chosen = hook if plain else on_loop
        self.options: dict[str, Any] = {"on_interrupt": chosen, "on_stop": chosen, "hook_timeout": LONG}

    def wait(self, count: int = 1) -> Interruption:
        """Wait until so many hooks have begun; answer what the last of these was told."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.told) >= count, WAIT_S), f"{len(self.told)} of {count} hooks"
            return self.told[count - 1]


class Shields:
    """Puts the shields of one run up and takes them down, one by one."""

    def __init__(self, run: Run, threaded: bool) -> None:
        self._run = run
        self._threaded = threaded
        self._stacks: list[Any] = []

    def up(self) -> None:
        self._run.do(self._enter)

    def down(self) -> None:
        stack = self._stacks.pop()
        self._run.do(lambda _: stack.close() if self._threaded else stack.aclose())

    def down_and_out(self, verb: Mode) -> None:
        """Take the last one down: what it had deferred ends the cycle there, by a CycleEnded that a cancel may overtake."""
        with pytest.raises((CycleEnded, asyncio.CancelledError)) as caught:
            self.down()
        assert self._threaded <= isinstance(caught.value, CycleEnded)
        assert not isinstance(caught.value, CycleEnded) or caught.value.why == verb
        self._run.wait_cancelled()

    def _enter(self, cycle: Any) -> Any:
        if self._threaded:
            stack = ExitStack()
            stack.enter_context(cycle.shield())
            self._stacks.append(stack)
            return None
        return self._enter_async(cycle)

    async def _enter_async(self, cycle: Any) -> None:
        stack = AsyncExitStack()
        await stack.enter_async_context(cycle.shield())
        self._stacks.append(stack)
