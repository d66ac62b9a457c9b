"""How the rooms of an agent are: plain reads, page by page, that change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from .records import AgentStatus, DeadLetter, RoomStatus, fields, read_dead_letter, read_hold, read_status, text
from .store import Store

PAGE = 200


async def statuses(store: Store, rooms: list[str]) -> list[RoomStatus]:
    """Each of these rooms, as it is now."""
    command = store.pipeline.command
    entries = [command("HGETALL", store.keys.room(room)) for room in rooms]
    lengths = [command("XLEN", store.keys.messages(room)) for room in rooms]
    answers = await asyncio.gather(*entries, *lengths)
    return [
        read_status(room, dict(zip(flat[::2], flat[1::2], strict=True)), waiting)
        for room, flat, waiting in zip(rooms, answers[: len(rooms)], answers[len(rooms) :], strict=True)
    ]


async def all_rooms(store: Store) -> AsyncIterator[RoomStatus]:
    """Every room that has work, a mode or state, in no order."""
    cursor, seen = b"0", set[str]()
    while True:
        cursor, flat = await store.pipeline.command("ZSCAN", store.keys.rooms, cursor, "COUNT", PAGE)
        fresh = [room for room in map(text, flat[::2]) if room not in seen]
        seen.update(fresh)
        for status in await statuses(store, fresh):
            yield status
        if cursor == b"0":
            return


async def overview(store: Store) -> AgentStatus:
    """The agent as a whole."""
    keys, command = store.keys, store.pipeline.command
    asked = [
        command("HGETALL", keys.root),
        command("ZCARD", keys.rooms),
        command("ZCARD", keys.processing),
        command("SCARD", keys.held),
        command("XLEN", keys.dead),
        command("SMEMBERS", keys.workers),
    ]
    root, rooms, processing, held, dead, workers = await asyncio.gather(*asked)
    row = {name: text(value) for name, value in fields(root).items()}
    return AgentStatus(
        agent=keys.agent,
        hold=read_hold(row),
        rooms=rooms,
        processing=processing,
        held=held,
        dead=dead,
        workers=tuple(sorted(map(text, workers))),
    )


async def entries(store: Store, stream: str, start: str) -> AsyncIterator[tuple[bytes, dict[bytes, bytes]]]:
    """What a stream has from ``start`` on: ids and fields."""
    while True:
        page = await store.pipeline.command("XRANGE", stream, start, "+", "COUNT", PAGE)
        for entry, flat in page:
            yield entry, dict(zip(flat[::2], flat[1::2], strict=True))
            start = f"({text(entry)}"
        if len(page) < PAGE:
            return


async def dead_letters(store: Store) -> AsyncIterator[DeadLetter]:
    """The dead letters, oldest first."""
    async for letter, entry in entries(store, store.keys.dead, "-"):
        yield read_dead_letter(letter, entry)
