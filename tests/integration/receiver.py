"""What relays hand over, as a test sees and steers it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Protocol

import pykka
import redis as redis_py

from greenroom import Output, Relay
from greenroom.actors.loop_actor import LoopActor
from greenroom.protocol.keys import Keys
from integration.agents import WAIT_S, eventually, wait_for

Condition = Callable[[Output], bool]
Given = tuple[str, Output]


class Held:
    """A call that is held back: ``reached`` is set when it has begun, ``cancelled`` when it was cancelled meanwhile."""

    def __init__(self, room: str, fits: Condition) -> None:
        self.room = room
        self.fits = fits
        self.reached = threading.Event()
        self.cancelled = threading.Event()
        self._go = threading.Event()
        self._open: Callable[[], object] = lambda: None
        self._error: BaseException | None = None

    def wait(self) -> None:
        wait_for(self.reached, f"an output of {self.room} is handed over")

    def wait_cancelled(self) -> None:
        wait_for(self.cancelled, f"the call for {self.room} is cancelled")

    def release(self, error: BaseException | None = None) -> None:
        """Let the call return, or raise."""
        self._error = error
        self._go.set()
        self._open()

    async def pass_on_loop(self) -> None:
        opened, loop = asyncio.Event(), asyncio.get_running_loop()
        self._open = lambda: loop.is_closed() or loop.call_soon_threadsafe(opened.set)
        if self._go.is_set():
            opened.set()
        self.reached.set()
        try:
            await opened.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self._error is not None:
            raise self._error

    def pass_in_thread(self) -> None:
        self.reached.set()
        assert self._go.wait(2 * WAIT_S)
        if self._error is not None:
            raise self._error


class Receiver:
    """Two functions for a relay, a coroutine function and a plain one, and all that they were given, in order."""

    def __init__(self) -> None:
        self.given: list[Given] = []
        self.threads: set[str] = set()
        self.at_once = 0
        self.most_at_once = 0
        self._held: list[Held] = []
        self._refusals: list[tuple[str, Condition, list[BaseException]]] = []
        self._changed = threading.Condition()

    def hold(self, room: str, fits: Condition = lambda output: True) -> Held:
        """Hold back the next call with such an output of that room."""
        held = Held(room, fits)
        with self._changed:
            self._held.append(held)
        return held

    def refuse(self, room: str, *errors: BaseException, fits: Condition = lambda output: True) -> None:
        """Have the next calls with such an output of that room raise these."""
        with self._changed:
            self._refusals.append((room, fits, list(errors)))

    async def on_loop(self, room: str, output: Output) -> None:
        held = self._begin(room, output)
        try:
            if held is not None:
                await held.pass_on_loop()
        finally:
            self._end()

    def in_thread(self, room: str, output: Output) -> None:
        held = self._begin(room, output)
        try:
            if held is not None:
                held.pass_in_thread()
        finally:
            self._end()

    def _begin(self, room: str, output: Output) -> Held | None:
        with self._changed:
            self.given.append((room, output))
            self.threads.add(threading.current_thread().name)
            self._changed.notify_all()
            for of, fits, errors in self._refusals:
                if of == room and errors and fits(output):
                    raise errors.pop(0)
            held = next((held for held in self._held if held.room == room and held.fits(output)), None)
            if held is not None:
                self._held.remove(held)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            return held

    def _end(self) -> None:
        with self._changed:
            self.at_once -= 1

    def of(self, room: str) -> list[Output]:
        """What was handed over of that room so far."""
        with self._changed:
            return [output for each, output in self.given if each == room]

    def bodies(self, room: str) -> list[Any]:
        """The same, as bodies; of what has none, its kind."""
        return [output.kind.value if output.body is None else output.body for output in self.of(room)]

    def wait_bodies(self, room: str, *wanted: Any) -> None:
        """Wait until exactly these were handed over of that room."""
        self._wait(lambda: self.bodies(room) == list(wanted), room, list(wanted))

    def wait_last(self, room: str, body: Any) -> None:
        """Wait until this was handed over of that room."""
        self._wait(lambda: self.bodies(room)[-1:] == [body], room, body)

    def _wait(self, met: Callable[[], bool], room: str, wanted: Any) -> None:
        with self._changed:
            assert self._changed.wait_for(met, WAIT_S), f"not within {WAIT_S} s: {wanted}, but {self.bodies(room)}"


class Relaying(Protocol):
    """Starts a relay of the test's agent that hands over to the receiver's coroutine function. ``options`` are Relay's."""

    def __call__(self, deliver: Callable[[str, Output], Any] | None = None, **options: Any) -> Relay: ...


def lose(relay: Relay) -> None:
    """End a relay as a crash of its process would: nothing is acknowledged, and its lease is left to run out."""
    with relay._lock:
        relay._stopping = True
    relay._control.run(relay._redis.aclose).result(WAIT_S)  # only what lies idle: sockets left open would warn
    relay._control.stop()
    for ref in pykka.ActorRegistry.get_all():
        actor = ref._actor_weakref()
        if isinstance(actor, LoopActor) and actor.loop is relay._control:
            pykka.ActorRegistry.unregister(ref)
    relay._end()


def undelivered(redis: redis_py.Redis, keys: Keys, name: str = "relay") -> dict[str, str]:
    """The rooms that have outputs which that relay has not handed over, with the first of these."""
    rows: Any = redis.hgetall(keys.undelivered(name))
    return dict(rows)


def wait_delivered(redis: redis_py.Redis, keys: Keys, name: str = "relay") -> None:
    eventually(lambda: not undelivered(redis, keys, name), f"relay {name} is done with all that was sent")


def says(body: Any) -> Callable[[Output], bool]:
    return lambda output: bool(output.body == body)


def wait_renewals(renewals: list[str], count: int) -> None:
    wanted = len(renewals) + count
    eventually(lambda: len(renewals) >= wanted, f"{count} more renewals")
