"""How the rooms of an agent are: plain reads, page by page, that change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from .errors import NewerVersion, RedisRefused
from .log import log
from .records import AgentStatus, DeadLetter, RoomStatus, fields, read_dead_letter, read_hold, read_status, text
from .store import Store

PAGE = 200


async def statuses(store: Store, rooms: list[str], *, strict: bool = True) -> list[RoomStatus]:
    """Each of these rooms, as it is now. If not ``strict``, one whose hash greenroom did not write has that as its last error.

    Raises:
        RedisRefused: there is one, and this is strict.
    """
    command = store.pipeline.command
    entries = [command("HGETALL", store.keys.room(room)) for room in rooms]
    lengths = [command("XLEN", store.keys.messages(room)) for room in rooms]
    answers = await asyncio.gather(*entries, *lengths, return_exceptions=True)
    found = []
    for room, entry, waiting in zip(rooms, answers[: len(rooms)], answers[len(rooms) :], strict=True):
        try:
            flat = _answered(entry)
            found.append(read_status(room, dict(zip(flat[::2], flat[1::2], strict=True)), _answered(waiting)))
        except RedisRefused as error:
            if strict:
                raise
            found.append(RoomStatus(room=room, last_error=str(error)))
    return found


def _answered(answer: Any) -> Any:
    """The answer of a request that was waited for beside others, or what it raised."""
    if isinstance(answer, BaseException):
        raise answer
    return answer


async def all_rooms(store: Store) -> AsyncIterator[RoomStatus]:
    """Every room that has work, a mode or state, in no order."""
    cursor, seen = b"0", set[str]()
    while True:
        cursor, flat = await store.pipeline.command("ZSCAN", store.keys.rooms, cursor, "COUNT", PAGE)
        fresh = [room for room in map(text, flat[::2]) if room not in seen]
        seen.update(fresh)
        for status in await statuses(store, fresh, strict=False):
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
    """The dead letters, oldest first; what is none is passed over.

    Raises:
        NewerVersion: one was written by a newer version of greenroom.
    """
    async for letter_id, entry in entries(store, store.keys.dead, "-"):
        try:
            letter = read_dead_letter(letter_id, entry)
        except NewerVersion:
            raise
        except RedisRefused as error:
            log.warning("dead_letter.unreadable", error=error)
        else:
            yield letter
