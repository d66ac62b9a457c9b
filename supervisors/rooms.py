"""The room supervisor: starts a room when it has work here, and again when it fails; dynamic, one for one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pykka

from ..actors.loop_actor import LoopActor, monitor, tell
from ..actors.mailbox import Control
from ..actors.room import CycleFailed, Room, RoomContext, names_of
from ..actors.room_events import Drain, Lost, Ready, Signal
from ..actors.transitions import RoomMachine
from ..protocol.errors import RedisError
from ..protocol.log import failed, log
from .restart import RestartHistory, RestartPolicy

# How often a room may fail before it is stopped durably. A message has a budget of its own, and a dead letter leaves its room
# at work: this one is for a room in which nothing succeeds any more.
ROOM_POLICY = RestartPolicy(intensity=20, period=timedelta(minutes=5))
MAX_REASON_CHARS = 500
REFUSED_S, REFUSED_MOST_S = 1.0, 30.0  # how long a room waits that Redis refuses; each time twice as long, up to the second
GIVEN_UP_S = 1.0  # how long after it was stopped a room is looked at once more, to let go of what it had in processing


class Activate(Control):
    """The dispatcher was handed a room's entry."""

    __slots__ = ("ready", "room")

    def __init__(self, ready: str, room: str) -> None:
        self.ready = ready
        self.room = room


class RoomSignal(Control):
    """A signal for one room, or (``room`` None) for all."""

    __slots__ = ("room", "signal")

    def __init__(self, room: str | None, signal: Signal) -> None:
        self.room = room
        self.signal = signal


class Owned(Control):
    """The entries that this worker owns, after its lease had run out: rooms with another entry are lost."""

    __slots__ = ("entries",)

    def __init__(self, entries: set[str]) -> None:
        self.entries = entries


class _Exited(Control):
    """A room has ended, with its machine as it was then."""

    __slots__ = ("failure", "machine", "ref", "room")

    def __init__(self, room: str, ref: pykka.ActorRef[Any], machine: RoomMachine, failure: BaseException | None) -> None:
        self.room = room
        self.ref = ref
        self.machine = machine
        self.failure = failure


@dataclass(slots=True)
class _Child:
    ready: str
    ref: pykka.ActorRef[Room]
    history: RestartHistory | None = None
    timer: asyncio.TimerHandle | None = None
    refusals: int = 0  # in a row
    refused_s: float = 0.0  # the last


class RoomSupervisor(LoopActor):
    """Holds the rooms that have work on this worker. ``whereis`` and the children are for the control loop only."""

    def __init__(
        self,
        context: RoomContext,
        start: Callable[[RoomContext, str, str], pykka.ActorRef[Room]] = Room.start,
        policy: RestartPolicy = ROOM_POLICY,
    ) -> None:
        super().__init__(context.control)
        self._policy = policy
        self._context = context
        self._start_room = start
        self._children: dict[str, _Child] = {}
        self._draining: Drain | None = None
        self._empty = asyncio.Event()

    def whereis(self, room: str) -> pykka.ActorRef[Room] | None:
        """The actor of a room that is at work here."""
        child = self._children.get(room)
        return child.ref if child is not None and child.ref.is_alive() else None

    def at_work(self) -> list[Room]:
        """The actors of the rooms that are at work here."""
        actors = [child.ref._actor_weakref() for child in self._children.values()]
        return [actor for actor in actors if actor is not None]

    def __len__(self) -> int:
        return len(self._children)

    def on_receive(self, message: Any) -> None:
        if isinstance(message, Activate):
            self._activate(message)
        elif isinstance(message, _Exited):
            self._exited(message)
        elif isinstance(message, RoomSignal):
            targets = [message.room] if message.room is not None else list(self._children)
            for room in targets:
                tell(self.whereis(room), message.signal)
        elif isinstance(message, Drain):
            self._draining = message
            for room, child in list(self._children.items()):
                if not tell(child.ref, message) and child.refusals:
                    self._forget(room)  # it waits for Redis to take it, and there is nothing of it to finish
        elif isinstance(message, Owned):
            for room, child in self._children.items():
                if child.ready not in message.entries:
                    self._lose(room, child)

    @staticmethod
    def _lose(room: str, child: _Child) -> None:
        actor = child.ref._actor_weakref()
        log.warning("room.lost", **names_of(room, actor.machine.grant if actor is not None else None))
        tell(child.ref, Lost())

    def _activate(self, message: Activate) -> None:
        self._context.active[message.room] = message.ready
        child = self._children.get(message.room)
        if child is None:
            self._children[message.room] = _Child(message.ready, self._begin(message.room, message.ready))
        elif child.ready != message.ready:
            child.ready = message.ready
            tell(child.ref, Ready(message.ready))

    def _begin(self, room: str, ready: str) -> pykka.ActorRef[Room]:
        self._context.slots.take()
        ref = self._start_room(self._context, room, ready)
        if self._draining is not None:
            ref.tell(self._draining)
        monitor(ref, partial(self._on_exit, room, ref))
        return ref

    def _on_exit(self, room: str, ref: pykka.ActorRef[Room], failure: BaseException | None) -> None:
        actor = ref._actor_weakref()
        assert actor is not None  # it calls this; when its end is handled it may be gone
        tell(self.actor_ref, _Exited(room, ref, actor.machine, failure))

    def _exited(self, message: _Exited) -> None:
        child = self._children.get(message.room)
        if child is None or child.ref is not message.ref:
            return
        if message.failure is None:
            if child.ready != message.machine.claimed:  # an entry came while it was ending
                child.ref = self._begin(message.room, child.ready)
            else:
                self._forget(message.room)
            return
        self._failed(message, child, message.failure)

    def _failed(self, exited: _Exited, child: _Child, failure: BaseException) -> None:
        room = exited.room
        recorded = isinstance(failure, CycleFailed)
        redis_failed = isinstance(failure, RedisError)
        self._context.counts.restarts["failed" if recorded else "redis" if redis_failed else "crashed"] += 1
        if not recorded:
            log.error("room.crashed", **names_of(room, exited.machine.grant), **failed(failure))
        if redis_failed:  # Redis' trouble, and every room's, or a broken record: no reason to stop this one
            self._restart_in(self._refused(child), room, child)
            return
        child.history = child.history or RestartHistory(self._policy)
        delay_s = child.history.next_delay_s(self.loop.loop.time())
        if delay_s is None:
            self._give_up(room, child, failure)
        elif recorded:
            self._restart(room, child)  # the claim will say how long to wait
        else:
            self._restart_in(delay_s, room, child)

    def _refused(self, child: _Child) -> float:
        """How long to wait before Redis is asked again about a room that it refuses."""
        now = self.loop.loop.time()
        child.refusals = child.refusals + 1 if now - child.refused_s < 2 * REFUSED_MOST_S else 1
        child.refused_s = now
        return min(REFUSED_MOST_S, REFUSED_S * 2.0 ** (child.refusals - 1))

    def _give_up(self, room: str, child: _Child, failure: BaseException) -> None:
        """Stop the room durably: an operator sees why, and play tries again."""
        times, cid = f"failed {self._policy.intensity + 1} times within {self._policy.period}", f"supervisor-{uuid.uuid4().hex}"
        log.error("room.stopped", room=room, cid=cid, reason=times)  # what it failed of may be words of a message: Redis has it
        reason = f"{times}, the last time of: {failure}"[:MAX_REASON_CHARS]
        stopped = self._context.store.control("stop", (room,), cid=cid, by="supervisor", reason=reason)
        stopped.add_done_callback(partial(self._gave_up, room, cid, child))

    def _gave_up(self, room: str, cid: str, child: _Child, stopped: asyncio.Future[Any]) -> None:
        if not stopped.cancelled() and (error := stopped.exception()):
            log.error("room.stop_failed", room=room, cid=cid, error=error)
        child.history = None  # played again, it has its whole budget
        self._restart_in(GIVEN_UP_S, room, child)

    def _restart_in(self, delay_s: float, room: str, child: _Child) -> None:
        child.timer = self.loop.loop.call_later(delay_s, self._restart, room, child)

    def _restart(self, room: str, child: _Child) -> None:
        if self._children.get(room) is child and not self.actor_stopped.is_set():
            child.ref = self._begin(room, child.ready)

    def _forget(self, room: str) -> None:
        child = self._children.pop(room)
        if child.timer is not None:
            child.timer.cancel()
        self._context.active.pop(room, None)
        if not self._children:
            self._empty.set()

    async def wait_empty(self) -> None:
        """Wait until no room is at work here."""
        while self._children:
            self._empty.clear()
            await self._empty.wait()

    def on_stop(self) -> None:
        """The rooms end with their supervisor. Redis knows where they were: whoever comes next replays them."""
        for child in self._children.values():
            if child.timer is not None:
                child.timer.cancel()
            if child.ref.is_alive():
                child.ref.stop(block=False)
        self._context.active.clear()

    def on_failure(self, *_: object) -> None:
        self.on_stop()
