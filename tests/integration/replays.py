"""One room whose message is replayed, by a stop, a crash or a failure, and the functions that its steps call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

from greenroom import ActorSystem, Client
from integration.agents import Director, Run, abandon, settled, wait_for

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

    def __init__(self, running: Callable[..., ActorSystem], director: Director, client: Client, *, threaded: bool) -> None:
        self._running, self._director, self.client = running, director, client
        self._agent = director.agent(threaded=threaded, max_attempts=9)
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

    def begin(self, run: Run) -> Future[Any]:
        future = run.begin(lambda cycle: cycle.step("charge", self.function))
        wait_for(self.begun, "the step has begun")
        return future
