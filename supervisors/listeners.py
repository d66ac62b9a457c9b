"""Listeners: functions of the host that are told what happened to the cycles of this worker.

Redis keeps the events; one connection of their own follows them, and one thread of their own calls the functions, a page at a
time. So a listener may be as slow as it likes: nothing waits for it but other listeners, and the stream is the buffer.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from ..actors.loop import LoopThread
from ..protocol.connect import Outage, back_off, open_connection
from ..protocol.errors import GreenroomError, InvalidRequest
from ..protocol.log import bound, log, told
from ..protocol.records import Event, EventKind, read_event, text
from ..protocol.store import Store
from .control import BLOCK_MS, ask
from .service import Service
from .worker import Worker

NOTHING = "0-0"  # before all events
PAGE = 200
PACE_S = 0.05  # between two looks at a stream that has less than a page: not one look for each event of a busy agent
PLACE_S = 5.0  # how long a registration waits for Redis to say where the stream ends
END_S = 2.0  # how long the end of a system waits for its listeners

Listener = Callable[[Event], object]
Place = tuple[int, int]

# The others are not one worker's, or happen before it can listen and after it can.
_OF_THE_AGENT = (
    EventKind.MESSAGE_DISCARDED,
    EventKind.MESSAGE_REQUEUED,
    EventKind.MESSAGE_DROPPED,
    EventKind.SIGNAL_APPLIED,
    EventKind.SIGNAL_MALFORMED,
    EventKind.ROOM_UNREADABLE,
    EventKind.ROOM_FORGOTTEN,
    EventKind.WORKER_JOINED,
    EventKind.WORKER_LEFT,
    EventKind.OUTPUT_REJECTED,
    EventKind.RELAY_REGISTERED,
    EventKind.RELAY_JOINED,
    EventKind.RELAY_LEFT,
    EventKind.RELAY_FORGOTTEN,
)
KINDS = tuple(kind for kind in EventKind if kind not in _OF_THE_AGENT)


class _Registered:
    """One listener, and after which event it listens: nothing is for it until that is known."""

    __slots__ = ("kind", "listener", "placed", "since")

    def __init__(self, kind: EventKind, listener: Listener) -> None:
        self.kind = kind
        self.listener = listener
        self.since: Place | None = None
        self.placed: Future[None] = Future()


class Listeners:
    """The listeners of one worker, and the thread that calls them.

    ``add``, the function that it answers and ``close`` may be called from any thread; the rest is the control loop's.
    """

    def __init__(self, worker: str, control: LoopThread) -> None:
        self._worker = worker.encode()
        self._control = control
        self._lock = threading.Lock()
        self._all: tuple[_Registered, ...] = ()
        self._store: Store | None = None  # from ``open`` on
        self._pages: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._end_at_s: float | None = None
        self._moved = asyncio.Event()
        self.seen: str | None = None  # the last event that was read; None while nobody listens
        self.telling = False  # the thread has a page

    # Registration. --------------------------------------------------------------------------------

    def add(self, kind: str, listener: Listener) -> Callable[[], None]:
        """Register; see ``ActorSystem.on``."""
        registered = _Registered(_check_kind(kind), _check_listener(listener))
        remove = partial(self._remove, registered)
        with self._lock:
            self._all += (registered,)
            opened = self._store is not None
        if opened and self._control.post(self._find_place, registered):
            try:
                registered.placed.result(PLACE_S)
            except GreenroomError:
                remove()
                raise
            except TimeoutError:  # Redis is away: from when it is back
                pass
        return remove

    def _remove(self, registered: _Registered) -> None:
        with self._lock:
            self._all = tuple(each for each in self._all if each is not registered)
        registered.since = None  # also for the thread, should it have come to this one
        self._control.post(self._moved.set)

    async def open(self, store: Store) -> None:
        """From now on there are events: those who registered before the start listen from here."""
        with self._lock:
            self._store, waiting = store, self._all
        for registered in waiting:
            self._find_place(registered)
        await asyncio.gather(*(asyncio.wrap_future(registered.placed) for registered in waiting))

    def _find_place(self, registered: _Registered) -> None:
        self._last().add_done_callback(partial(self._placed, registered))

    def _last(self) -> asyncio.Future[str]:
        """The id of the newest event, ``0-0`` if there is none."""
        assert self._store is not None
        return self._store.pipeline.command("XREVRANGE", self._store.keys.events, "+", "-", "COUNT", 1, decode=_id_of_first)

    def _placed(self, registered: _Registered, last: asyncio.Future[str]) -> None:
        if registered.placed.done():  # the start was given up
            return
        if error := last.exception():
            registered.placed.set_exception(error)
            return
        registered.since = _place(last.result())
        if self.seen is None:
            self.seen = last.result()
        registered.placed.set_result(None)
        self._moved.set()

    # Reading, for the follower. -------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        return bool(self._all)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a change of who listens, or of what they have been told, after which it holds."""
        while not holds():
            self._moved.clear()
            await self._moved.wait()

    def tell(self, page: list[Any]) -> None:
        """Have the thread go through these entries of the stream; ``telling`` until it has."""
        self.seen, self.telling = text(page[-1][0]), True
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="greenroom-listeners", daemon=True)
            self._thread.start()
        self._pages.put(page)

    def _told(self) -> None:
        self.telling = False
        self._moved.set()

    # End. -----------------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Wait, for a limited time, until the listeners have been told all that has happened so far."""
        if not self._all:
            return
        try:
            async with asyncio.timeout(self._left_s()):
                last = _place(await self._last())
                await self.until(lambda: not self.telling and (self.seen is None or _place(self.seen) >= last))
        except (TimeoutError, GreenroomError) as error:
            log.warning("listeners.behind", error=str(error) or f"not through after {END_S:g} s")

    def close(self) -> None:
        """End the thread; a listener that hangs is left behind, and told nothing more."""
        self._closed = True
        self._pages.put(None)
        if self._thread is None or self._thread is threading.current_thread():
            return
        self._thread.join(self._left_s())
        if self._thread.is_alive():
            log.warning("listeners.stuck", **self._control.fields)

    def _left_s(self) -> float:
        """Of the time for both; a moment is left for a thread that is only to end."""
        if self._end_at_s is None:
            self._end_at_s = time.monotonic() + END_S
        return max(0.2, self._end_at_s - time.monotonic())

    # The thread. ----------------------------------------------------------------------------------

    def _serve(self) -> None:
        with bound(**self._control.fields):
            self._tell_pages()

    def _tell_pages(self) -> None:
        while (page := self._pages.get()) is not None:
            for event_id, flat in page:
                if self._closed:
                    return
                self._tell_of(event_id, dict(zip(flat[::2], flat[1::2], strict=True)))
            self._control.post(self._told)

    def _tell_of(self, event_id: bytes, row: dict[bytes, bytes]) -> None:
        if row.get(b"worker") != self._worker:
            return
        kind, place = text(row.get(b"event", b"")), _place(text(event_id))
        for registered in self._all:
            if registered.kind == kind and registered.since is not None and registered.since < place:
                try:
                    registered.listener(read_event(event_id, row))
                except BaseException as error:  # also SystemExit: the next one is to be told all the same
                    room = text(row.get(b"room", b""))
                    log.error("listener.failed", room=room, kind=kind, id=text(event_id), **told(error))


class ListenerFeed(Service):
    """Reads the events for the listeners, at their pace, while there are any: until the first one it has no connection.

    It goes on from where it was, over lost connections and restarts.
    """

    def __init__(self, worker: Worker, listeners: Listeners) -> None:
        super().__init__(worker.context.control)
        self._store = worker.context.store
        self._listeners = listeners

    async def run(self) -> None:
        failures, outage = 0, Outage()
        while True:
            await self._listeners.until(lambda: self._listeners.seen is not None)
            try:
                async with open_connection(self._store.redis) as connection:
                    while await self._read(connection):
                        failures = 0
                        outage.over()
            except (RedisError, OSError, TimeoutError) as error:
                if outage.is_news(error):
                    log.warning("listeners.lost", error=str(error))
            await back_off(failures)
            failures += 1

    async def _read(self, connection: AbstractConnection) -> bool:
        """Hand on what is new, or wait until there is something; answer whether anybody still listens."""
        listeners, key = self._listeners, self._store.keys.events
        await listeners.until(lambda: not listeners.telling)
        seen = listeners.seen
        if not listeners.wanted or seen is None:
            listeners.seen = None
            return False
        # With the last one that was seen: if it is not there any more, those after it may not be either.
        page = await ask(connection, "XRANGE", key, seen, "+", "COUNT", PAGE)
        fresh = page[1:] if page and text(page[0][0]) == seen else page
        if not page and seen != NOTHING:
            log.warning("listeners.lost_place", after=seen)  # Redis has lost its last writes, and with them this place
            listeners.seen = _id_of_first(await ask(connection, "XREVRANGE", key, "+", "-", "COUNT", 1))
        elif fresh:
            if fresh is page and seen != NOTHING:
                log.warning("listeners.outrun", after=seen, before=text(page[0][0]))
            listeners.tell(fresh)
            if len(page) < PAGE:
                await asyncio.sleep(PACE_S)
        else:
            await ask(connection, "XREAD", "COUNT", 1, "BLOCK", BLOCK_MS, "STREAMS", key, seen)
        return True


def _id_of_first(entries: list[Any]) -> str:
    return text(entries[0][0]) if entries else NOTHING


def _place(event_id: str) -> Place:
    ms, _, seq = event_id.partition("-")
    return int(ms), int(seq)


def _check_kind(kind: str) -> EventKind:
    if kind not in KINDS:
        known = ", ".join(KINDS)
        raise InvalidRequest(f"no event of a worker: {str(kind)[:40]!r}: want {known}; a client's events() has the others")
    return EventKind(kind)


def _check_listener(listener: object) -> Listener:
    if not callable(listener):
        raise InvalidRequest(f"listener: want a function, got {listener!r}")
    if inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(type(listener).__call__):
        raise InvalidRequest(f"listener: want a plain function, got {listener!r}: coroutines have no loop on its thread")
    return listener
