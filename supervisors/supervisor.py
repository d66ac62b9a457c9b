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
    __slots__ = ("first", "task")

    def __init__(self, first: int, task: asyncio.Task[None] | None) -> None:
        self.first = first
        self.task = task


@dataclass(slots=True, eq=False)
class _Child:
    spec: ChildSpec
    ref: pykka.ActorRef[Any] | None = None
    stopping: bool = False
    over: bool = False  # never to be started again
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
        self._restarting: dict[int, asyncio.Task[None]] = {}  # by the first child that each is to start
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
        elif isinstance(message, _StartFrom) and self._restarting.get(message.first) is message.task:
            self._start_again(message.first)

    def _exited(self, message: _Exited) -> None:
        index, child = next((i, c) for i, c in enumerate(self._children) if c.spec.name == message.name)
        if child.ref is not message.ref or child.stopping or self._closing:
            return
        child.ref = None
        if child.spec.restart.after(message.failure):
            self._failed(index, message.failure)
        else:
            child.over = True

    def _failed(self, index: int, failure: BaseException | None) -> None:
        """Plan the restart of a child, and of those that go with it, or give up."""
        name, delay_s = self._children[index].spec.name, self._history.next_delay_s(self.loop.loop.time())
        log.warning("child.failed", child=name, restart_in_s=delay_s, exc_info=failure)
        if delay_s is None:
            raise BudgetSpent(f"{name} failed too often: {failure}") from failure
        first = index
        if self._strategy is not Strategy.ONE_FOR_ONE:  # one restart at a time, of all who wait for one
            first = 0 if self._strategy is Strategy.ONE_FOR_ALL else min([index, *self._restarting])
            self._cancel_restarts()
        self._restarting[first] = asyncio.create_task(self._restart(first, delay_s))

    def _cancel_restarts(self) -> None:
        for task in self._restarting.values():
            task.cancel()
        self._restarting.clear()

    def _group(self, first: int) -> list[_Child]:
        return [self._children[first]] if self._strategy is Strategy.ONE_FOR_ONE else self._children[first:]

    async def _restart(self, first: int, delay_s: float) -> None:
        """Stop who is to be started with the failed child, wait, and post the start to the own mailbox."""
        await self._stop_children(self._group(first))
        await asyncio.sleep(delay_s)
        if not self.actor_stopped.is_set():
            self.actor_ref.tell(_StartFrom(first, asyncio.current_task()))

    def _start_again(self, first: int) -> None:
        del self._restarting[first]
        for child in self._group(first):
            if child.ref is not None or child.over or child.spec.restart is Restart.TEMPORARY:
                continue
            try:
                self._start(child)
            except Exception as error:  # as if it had started and failed at once
                self._failed(self._children.index(child), error)
                return

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
        children = [child for child in self._children if child.spec.name == name]
        for child in children:
            child.over = True
        await self._stop_children(children)

    async def shut_down(self) -> None:
        """Stop the children in reverse order, each with its deadline, then this supervisor. Call it on the loop."""
        self._closing = True
        self._cancel_restarts()
        await self._stop_children(self._children)
        if self.actor_ref.is_alive():  # it may have failed meanwhile
            self.stop()

    def on_stop(self) -> None:
        """The children end with their supervisor, the last one first; ``shut_down`` waits for each of them."""
        self._closing = True
        self._cancel_restarts()
        for child in reversed(self._children):
            if child.ref is not None:
                child.stopping = True
                child.ref.stop(block=False)

    def on_failure(self, *_: object) -> None:
        self.on_stop()
