"""A supervisor of loop actors: starts them in order, starts again what fails, stops them in reverse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any

import pykka

from ..actors.loop import LoopThread
from ..actors.loop_actor import LoopActor, monitor
from ..actors.mailbox import Control
from ..protocol.errors import GreenroomError
from ..protocol.log import log
from .restart import Restart, RestartHistory, RestartPolicy


class BudgetSpent(GreenroomError):
    """A supervisor's children have failed more often than its policy allows; its own supervisor decides."""


class Strategy(StrEnum):
    """Who is started again with a failed child: it alone, all children, or it and those that were started after it."""

    ONE_FOR_ONE = "one_for_one"
    ONE_FOR_ALL = "one_for_all"
    REST_FOR_ONE = "rest_for_one"


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One child: its name, how it is started, when again, and how long it may take to stop."""

    name: str
    start: Callable[[], pykka.ActorRef[Any]]
    restart: Restart = Restart.PERMANENT
    shutdown: timedelta = timedelta(seconds=5)


class _Exited(Control):
    __slots__ = ("failure", "name", "ref")

    def __init__(self, name: str, ref: pykka.ActorRef[Any], failure: BaseException | None) -> None:
        self.name = name
        self.ref = ref
        self.failure = failure


class _StartFrom(Control):
    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


@dataclass(slots=True)
class _Child:
    spec: ChildSpec
    ref: pykka.ActorRef[Any] | None = None
    stopping: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor(LoopActor):
    """Supervises the children of ``specs``, on their loop.

    It fails with BudgetSpent, its children stopped, when they fail more often than ``policy`` allows.
    """

    def __init__(
        self,
        loop: LoopThread,
        specs: Sequence[ChildSpec],
        *,
        strategy: Strategy = Strategy.ONE_FOR_ONE,
        policy: RestartPolicy | None = None,
    ) -> None:
        super().__init__(loop)
        self._children = [_Child(spec) for spec in specs]
        self._strategy = strategy
        self._history = RestartHistory(policy or RestartPolicy())
        self._restarting: asyncio.Task[None] | None = None
        self._closing = False

    def on_start(self) -> None:
        for child in self._children:
            self._start(child)

    def _start(self, child: _Child) -> None:
        ref = child.spec.start()
        child.ref, child.stopping, child.gone = ref, False, asyncio.Event()
        monitor(ref, partial(self._on_exit, child.spec.name, ref, child.gone))

    def _on_exit(self, name: str, ref: pykka.ActorRef[Any], gone: asyncio.Event, failure: BaseException | None) -> None:
        gone.set()
        if not self.actor_stopped.is_set():
            self.actor_ref.tell(_Exited(name, ref, failure))

    def on_receive(self, message: Any) -> None:
        if isinstance(message, _Exited):
            self._exited(message)
        elif isinstance(message, _StartFrom):
            self._start_again(message.index)

    def _exited(self, message: _Exited) -> None:
        index, child = next((i, c) for i, c in enumerate(self._children) if c.spec.name == message.name)
        if child.ref is not message.ref or child.stopping or self._closing:
            return
        child.ref = None
        if not child.spec.restart.after(message.failure):
            return
        delay_s = self._history.next_delay_s(self.loop.loop.time())
        log.warning("child.failed", child=message.name, restart_in_s=delay_s, exc_info=message.failure)
        if delay_s is None:
            raise BudgetSpent(f"{message.name} failed too often: {message.failure}") from message.failure
        first = 0 if self._strategy is Strategy.ONE_FOR_ALL else index
        if self._restarting is not None:
            self._restarting.cancel()
        self._restarting = asyncio.create_task(self._restart(first, delay_s))

    def _group(self, first: int) -> list[_Child]:
        return [self._children[first]] if self._strategy is Strategy.ONE_FOR_ONE else self._children[first:]

    async def _restart(self, first: int, delay_s: float) -> None:
        """Stop who is to be started with the failed child, wait, and post the start to the own mailbox."""
        await self._stop_children(self._group(first))
        await asyncio.sleep(delay_s)
        if not self.actor_stopped.is_set():
            self.actor_ref.tell(_StartFrom(first))

    def _start_again(self, first: int) -> None:
        for child in self._group(first):
            if child.ref is None and not self._closing:
                self._start(child)

    async def _stop_children(self, children: Sequence[_Child]) -> None:
        for child in reversed(children):
            if child.ref is None:
                continue
            child.stopping = True
            child.ref.stop(block=False)
            try:
                async with asyncio.timeout(child.spec.shutdown.total_seconds()):
                    await child.gone.wait()
            except TimeoutError:
                log.warning("child.stop_timeout", child=child.spec.name)
            child.ref = None

    async def stop_child(self, name: str) -> None:
        """Stop one child for good, with its deadline. Call it on the loop."""
        await self._stop_children([child for child in self._children if child.spec.name == name])

    async def shut_down(self) -> None:
        """Stop the children in reverse order, each with its deadline, then this supervisor. Call it on the loop."""
        self._closing = True
        if self._restarting is not None:
            self._restarting.cancel()
        await self._stop_children(self._children)
        self.stop()

    def on_failure(self, *_: object) -> None:
        self._closing = True
        for child in reversed(self._children):
            if child.ref is not None:
                child.stopping = True
                child.ref.stop(block=False)
