"""The actor system under test: it says which cycles have begun, decides how long retries wait, and can crash."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pykka

from ..actors.agent import Agent
from ..actors.backoff import Backoff
from ..actors.link import Link
from ..actors.loop_actor import LoopActor
from ..actors.room import Room
from ..actors.room_events import Signal
from ..actors.runner import OnBegin, Report, Run, Runner, Starter
from ..protocol.records import Message
from ..supervisors.rooms import RoomSignal
from ..supervisors.system import ActorSystem

AT_ONCE = Backoff(timedelta(0), timedelta(0))
HELD = Backoff(timedelta(days=1), timedelta(days=1))  # longer than any test: over when the test says so

Note = Callable[[Message, int], None]


class Begun:
    """Of each room the last cycle whose code has begun: its message and ticket. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, tuple[Message, int]] = {}
        self._wakes: set[Callable[[], object]] = set()

    def note(self, message: Message, ticket: int) -> None:
        with self._lock:
            self._last[message.room] = message, ticket
            wakes = list(self._wakes)
        for wake in wakes:
            with suppress(RuntimeError):  # that loop has ended
                wake()

    def forget(self) -> None:
        """What had begun runs no more."""
        with self._lock:
            self._last.clear()

    def of(self, room: str) -> tuple[Message, int] | None:
        with self._lock:
            return self._last.get(room)

    @contextmanager
    def watch(self) -> Iterator[asyncio.Event]:
        """An event of the running loop's that is set whenever a cycle has begun."""
        event = asyncio.Event()
        wake = partial(asyncio.get_running_loop().call_soon_threadsafe, event.set)
        with self._lock:
            self._wakes.add(wake)
        try:
            yield event
        finally:
            with self._lock:
                self._wakes.discard(wake)


class _NotedAgent:
    """Stands before an agent, and notes each cycle in the moment in which its code begins."""

    def __init__(self, agent: Agent, note: Note) -> None:
        self._agent = agent
        self._note = note

    def respond(self, message: Message, cycle: Any) -> Any:
        self._note(message, cycle.ticket)
        return self._agent.respond(message, cycle)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)


class _NotedStarter:
    """Stands before a pool of child processes, and notes each cycle that a child is given."""

    def __init__(self, starter: Starter, note: Note) -> None:
        self._starter = starter
        self._note = note
        self.start_hook = starter.start_hook

    def start(self, message: Message, state: bytes | None, link: Link, on_begin: OnBegin, report: Report) -> Run:
        def begins() -> None:
            on_begin()
            self._note(message, link.ticket)

        return self._starter.start(message, state, link, begins, report)


class StagedSystem(ActorSystem):
    """``note`` is told of each cycle that begins; ``retry`` is in the place of the agent's own. The rest as for ActorSystem."""

    def __init__(self, agent_class: type[Agent], note: Note, retry: Backoff, /, **options: Any) -> None:
        super().__init__(agent_class, **options)
        self._spec = replace(self._spec, retry=retry)
        self._note = note

    async def _begin(self, starter: Starter) -> None:
        if isinstance(starter, Runner):
            starter.agent = cast(Agent, _NotedAgent(starter.agent, self._note))
        else:
            starter = _NotedStarter(starter, self._note)
        await super()._begin(starter)

    def wake(self, room: str) -> None:
        """Have a room that waits for its retry look whether it may begin."""
        self._control.post(self._worker.tell_rooms, RoomSignal(room, Signal("play", 0)))


def abandon(system: ActorSystem) -> None:
    """End a system as a crash of its process would: at once, with nothing given back and its lease left to run out."""
    with system._lock:
        system._stopping = True
    if system._pool is not None:
        system._control.run(system._pool.close).result()
    system._control.run(system._redis.aclose).result()  # only what lies idle: sockets left open would warn
    system._control.stop()  # first: nobody is to hear how the handlers end
    for ref in pykka.ActorRegistry.get_all():
        actor = ref._actor_weakref()
        if isinstance(actor, LoopActor) and actor.loop is system._control:
            pykka.ActorRegistry.unregister(ref)
            if isinstance(actor, Room) and actor._run is not None:
                actor._run.abort("fenced")  # a handler's thread would go on for ever
    system._user.stop()
    system._listeners.close()
    system._stopped.set()
