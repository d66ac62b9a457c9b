"""An agent at a glance, again and again: what one look costs does not grow with the number of rooms."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .acl import literally
from .clock import place_of
from .fleet import WorkerStatus, workers
from .inspection import overview, pending, statuses
from .records import AgentStatus, Event, EventKind, Phase, RoomStatus, read_event, text
from .store import Store

EVENTS = 1000  # read in one look, the newest first
RATE_S = 5.0  # over which the rates are told, less where more has happened than is read
FAILING = 200  # rooms that failed lately are remembered
SIGNALS = 100  # of the control stream, for the rooms that were stopped or paused last
SCAN, SCANS = 1000, 10  # rooms that one look compares with what is searched for: so many, so often
_RATED = (EventKind.CYCLE_COMMITTED, EventKind.CYCLE_FAILED, EventKind.CYCLE_INTERRUPTED)
_FAILED = (EventKind.CYCLE_FAILED, EventKind.CYCLE_CRASHED)
_LATELY = (
    EventKind.CYCLE_CRASHED,
    EventKind.MESSAGE_DEAD,
    EventKind.ROOM_ADOPTED,
    EventKind.SIGNAL_MALFORMED,
    EventKind.WORKER_JOINED,
    EventKind.WORKER_LAPSED,
    EventKind.WORKER_LEFT,
)


@dataclass(frozen=True, slots=True)
class Look:
    """An agent at one moment, by the server's clock.

    ``a_second`` is how often something has happened lately; ``lately`` what an operator should know of, the newest first.
    ``rooms`` are the oldest in processing, those that failed or were held last, some that are held or queued, and those asked
    for: of each kind as many as were wanted, in no order.
    """

    at: dt.datetime
    agent: AgentStatus
    workers: tuple[WorkerStatus, ...]
    a_second: dict[EventKind, float]
    lately: tuple[Event, ...]
    rooms: tuple[RoomStatus, ...]


class Watch:
    """Looks at one agent, and remembers what it saw before."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._happened = _Happened()
        self._search = _Search()

    async def look(self, most: int, *, also: Iterable[str] = (), search: str = "") -> Look:
        """How it is now, with ``most`` rooms of a kind, and ``also`` these. With ``search``, rooms with that in their names.

        Raises:
            RedisUnavailable, RedisRefused: Redis.
        """
        store, command = self._store, self._store.pipeline.command
        time, agent, owners, summary = await asyncio.gather(command("TIME"), overview(store), workers(store), pending(store))
        at = dt.datetime.fromtimestamp(int(time[0]), dt.UTC).replace(microsecond=int(time[1]))
        await self._happened.read(store)
        names = [*also, *(await self._search.find(store, search, most) if search else await self._notable(most, summary))]
        rooms = await statuses(store, list(dict.fromkeys(names)), strict=False)
        self._happened.forget({status.room for status in rooms if status.phase is not Phase.BACKOFF})
        return Look(at, agent, tuple(owners), self._happened.a_second(at), tuple(self._happened.lately), tuple(rooms))

    async def _notable(self, most: int, summary: list[Any]) -> list[str]:
        """Rooms that an operator should see: ``most`` of each kind."""
        keys, command = self._store.keys, self._store.pipeline.command
        delivered = text(summary[2]) if summary and summary[2] else None  # queued rooms come after it
        live, held, signals, queued = await asyncio.gather(
            command("ZRANGE", keys.processing, 0, most - 1),
            command("SSCAN", keys.held, 0, "COUNT", most),
            command("XREVRANGE", keys.control, "+", "-", "COUNT", SIGNALS),
            command("XRANGE", keys.ready, f"({delivered}" if delivered else "-", "+", "COUNT", most),
        )
        rows = [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in signals]
        stopped = [row[b"room"] for row in rows if row.get(b"mode") in (b"stop", b"pause") and b"room" in row]
        waiting = [flat[1] for _, flat in queued if flat[0] == b"room"]
        found = [*live, *list(dict.fromkeys(stopped))[:most], *held[1][:most], *waiting]
        return [*map(text, found), *self._happened.failing(most)]


class _Happened:
    """What the events say since the last look, and for the first one before it."""

    def __init__(self) -> None:
        self.lately: deque[Event] = deque(maxlen=50)
        self._seen = "-"
        self._rated: deque[tuple[int, EventKind]] = deque()
        self._known_from_ms = 0  # all that is rated has been read from here on
        self._failing: dict[str, None] = {}

    async def read(self, store: Store) -> None:
        last = self._seen if self._seen == "-" else f"({self._seen}"
        page = await store.pipeline.command("XREVRANGE", store.keys.events, "+", last, "COUNT", EVENTS)
        if len(page) == EVENTS:  # there may be more, which are passed over
            self._known_from_ms = place_of(text(page[-1][0]))[0]
        for event_id, flat in reversed(page):
            self._take(event_id, dict(zip(flat[::2], flat[1::2], strict=True)))
            self._seen = text(event_id)

    def _take(self, event_id: bytes, entry: dict[bytes, bytes]) -> None:
        kind = text(entry.get(b"event", b""))
        if kind in _RATED:
            self._rated.append((place_of(text(event_id))[0], EventKind(kind)))
        if kind in _FAILED and b"room" in entry:
            room = text(entry[b"room"])
            self._failing.pop(room, None)
            self._failing[room] = None
            if len(self._failing) > FAILING:
                del self._failing[next(iter(self._failing))]
        if kind in _LATELY:
            self.lately.appendleft(read_event(event_id, entry))

    def a_second(self, at: dt.datetime) -> dict[EventKind, float]:
        now_ms = int(at.timestamp() * 1000)
        begin_ms = max(now_ms - int(RATE_S * 1000), self._known_from_ms)
        while self._rated and self._rated[0][0] < begin_ms:
            self._rated.popleft()
        seconds = max(now_ms - begin_ms, 1) / 1000
        return {kind: sum(1 for _, of in self._rated if of is kind) / seconds for kind in _RATED}

    def failing(self, most: int) -> list[str]:
        """Rooms that failed, the last first."""
        return list(reversed(self._failing))[:most]

    def forget(self, rooms: set[str]) -> None:
        """These wait for no retry (any more)."""
        for room in rooms & self._failing.keys():
            del self._failing[room]


class _Search:
    """Goes round the rooms of an agent, a part of them in each look, for names that have a text in them."""

    def __init__(self) -> None:
        self._wanted = ""
        self._cursor = b"0"
        self._found: dict[str, None] = {}  # in this round
        self._last: dict[str, None] = {}  # in the one before

    async def find(self, store: Store, wanted: str, most: int) -> list[str]:
        """What was found so far; first the room of just that name, if there is one."""
        if wanted != self._wanted:
            self._wanted, self._cursor, self._found, self._last = wanted, b"0", {}, {}
        [listed] = await store.pipeline.command("ZMSCORE", store.keys.rooms, wanted)
        for _ in range(SCANS):
            words = ("ZSCAN", store.keys.rooms, self._cursor, "MATCH", f"*{literally(wanted)}*", "COUNT", SCAN)
            self._cursor, flat = await store.pipeline.command(*words)
            self._found.update(dict.fromkeys(map(text, flat[::2])))
            if self._cursor == b"0" or len(self._found) >= most:
                self._last, self._found, self._cursor = self._found, {}, b"0"
                break
        exactly = [] if listed is None else [wanted]
        return list(dict.fromkeys([*exactly, *self._last, *self._found]))[:most]
