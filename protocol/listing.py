"""Rooms by what they do, in an order: page by page, over the shortest index there is."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from enum import StrEnum
from typing import Any

from .errors import InvalidRequest
from .inspection import entry_pages, pending, statuses
from .keys import check_name
from .records import Mode, Phase, RoomStatus, fields, text
from .store import Store

PAGE, NAMES_PAGE = 200, 1000  # rooms that are read together; names that are ranked together


class Sort(StrEnum):
    """The order of rooms."""

    ACTIVITY = "activity"  # the last active first
    AGE = "age"  # whose cycle has run longest first; those without a cycle last
    WAITING = "waiting"  # the longest queue first
    ROOM = "room"  # by name


async def room_pages(
    store: Store,
    *,
    phase: str | None = None,
    mode: str | None = None,
    worker: str | None = None,
    sort: str | None = None,
    limit: int | None = None,
) -> AsyncIterator[list[RoomStatus]]:
    """The rooms that fit, as they are when they are reached. What moves meanwhile may be missed; nothing is told twice.

    Raises:
        InvalidRequest: there is no such phase, mode, order or limit, or can be no worker of that name.
    """
    phase, mode, sort = _one_of(Phase, phase, "phase"), _one_of(Mode, mode, "mode"), _one_of(Sort, sort, "sort")
    if mode == Mode.INTERRUPT:
        raise InvalidRequest("mode: a room is held by a stop or a pause, or plays")
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise InvalidRequest(f"limit: want a whole number of 0 or more, got {limit!r}")
    if worker is not None:
        check_name(worker, "worker name")
    left = sys.maxsize if limit is None else limit
    names = _candidates(store, phase, worker)
    if sort is not None:
        names = _each(await _sorted(store, [name async for page in names for name in page], Sort(sort)))
    async for page in names:
        found = [status for status in await statuses(store, page, strict=False) if _fits(status, phase, mode, worker)]
        yield found[:left]
        left -= len(found)
        if left <= 0:
            return


def _one_of(kind: type[StrEnum], value: str | None, what: str) -> str | None:
    if value is not None and value not in list(kind):
        raise InvalidRequest(f"{what}: want one of {', '.join(kind)}, got {str(value)[:40]!r}")
    return value


def _fits(status: RoomStatus, phase: str | None, mode: str | None, worker: str | None) -> bool:
    held = status.hold.mode if status.hold else Mode.PLAY
    return phase in (None, status.phase) and mode in (None, held) and worker in (None, status.owner)


# Which rooms may fit: names, page by page, each once. ---------------------------------------------------


async def _candidates(store: Store, phase: str | None, worker: str | None) -> AsyncIterator[list[str]]:
    keys, seen = store.keys, set[str]()
    if worker is not None:
        pages = _owned(store, worker)
    elif phase == Phase.HELD:
        pages = _scan(store, "SSCAN", keys.held, 1)
    elif phase == Phase.PROCESSING:
        pages = _scan(store, "ZSCAN", keys.processing, 2)
    elif phase is not None:
        pages = _ready(store)
    else:
        pages = _scan(store, "ZSCAN", keys.rooms, 2)
    async for page in pages:
        fresh = [name for name in dict.fromkeys(page) if name not in seen]
        seen.update(fresh)
        for part in _paged(fresh):
            yield part


async def _scan(store: Store, command: str, key: str, step: int) -> AsyncIterator[list[str]]:
    cursor = b"0"
    while True:
        cursor, flat = await store.pipeline.command(command, key, cursor, "COUNT", PAGE)
        yield [text(name) for name in flat[::step]]
        if cursor == b"0":
            return


async def _ready(store: Store) -> AsyncIterator[list[str]]:
    async for page in entry_pages(store, store.keys.ready, "-"):
        yield [text(entry[b"room"]) for _, entry in page if b"room" in entry]


async def _owned(store: Store, worker: str) -> AsyncIterator[list[str]]:
    """The rooms in the worker's pending list."""
    keys, command, start = store.keys, store.pipeline.command, "-"
    while rows := await pending(store, start, "+", PAGE, worker):
        found = await asyncio.gather(*[command("XRANGE", keys.ready, row[0], row[0]) for row in rows])
        rows_of = [fields(entry[0][1]) for entry in found if entry]
        yield [text(row["room"]) for row in rows_of if "room" in row]
        start = f"({text(rows[-1][0])}"


def _paged(names: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), PAGE):
        yield list(names[start : start + PAGE])


async def _each(names: Sequence[str]) -> AsyncIterator[list[str]]:
    for page in _paged(names):
        yield page


# In which order. -----------------------------------------------------------------------------------------


async def _sorted(store: Store, names: list[str], sort: Sort) -> list[str]:
    keys, command = store.keys, store.pipeline.command
    if sort is Sort.ROOM:
        return sorted(names)
    parts = [names[start : start + NAMES_PAGE] for start in range(0, len(names), NAMES_PAGE)]
    ranks: list[Any] = []
    for part in parts:
        if sort is Sort.WAITING:
            ranks += await asyncio.gather(*[command("XLEN", keys.messages(name)) for name in part])
        else:
            ranks += await command("ZMSCORE", keys.rooms if sort is Sort.ACTIVITY else keys.processing, *part)
    if sort is Sort.AGE:
        order = [float("inf") if rank is None else float(rank) for rank in ranks]
    else:
        order = [-float(rank or 0) for rank in ranks]
    return [name for _, name in sorted(zip(order, names, strict=True))]
