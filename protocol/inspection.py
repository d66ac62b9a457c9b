"""How the rooms and workers of an agent are: plain reads, page by page, that change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from .clock import time_of_tick
from .errors import NewerVersion, RedisRefused
from .log import log
from .records import (
    AgentStatus,
    DeadLetter,
    Output,
    RoomStatus,
    fields,
    read_dead_letter,
    read_hold,
    read_output,
    read_status,
    text,
)
from .store import Store

PAGE, FIRST, PAGE_BYTES = 200, 10, 1024 * 1024
Entry = tuple[bytes, dict[bytes, bytes]]  # of a stream: its id and fields


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


async def last_output(store: Store, room: str) -> Output | None:
    """The last thing that a room has sent, if it is still there and greenroom wrote it."""
    newest = await store.pipeline.command("XREVRANGE", store.keys.outbox(room), "+", "-", "COUNT", 1)
    for output_id, flat in newest:
        with suppress(RedisRefused):
            return read_output(output_id, dict(zip(flat[::2], flat[1::2], strict=True)))
    return None


async def overview(store: Store) -> AgentStatus:
    """The agent as a whole."""
    keys, command = store.keys, store.pipeline.command
    asked = [
        command("HGETALL", keys.root),
        command("ZCARD", keys.rooms),
        command("XLEN", keys.ready),
        command("ZCARD", keys.processing),
        command("SCARD", keys.held),
        command("XLEN", keys.dead),
        command("SMEMBERS", keys.workers),
        command("ZRANGE", keys.processing, 0, 0, "WITHSCORES"),
    ]
    root, rooms, ready, processing, held, dead, workers, oldest = await asyncio.gather(*asked)
    return AgentStatus(
        agent=keys.agent,
        hold=read_hold({name: text(value) for name, value in fields(root).items()}),
        rooms=rooms,
        waiting=max(0, ready - processing),
        processing=processing,
        oldest=time_of_tick(float(oldest[1])) if oldest else None,
        held=held,
        dead=dead,
        workers=tuple(sorted(map(text, workers))),
    )


async def pending(store: Store, *words: str | int) -> list[Any]:
    """What XPENDING says of the ready stream; nothing before a worker was there."""
    try:
        found: list[Any] = await store.pipeline.command("XPENDING", store.keys.ready, "supervisors", *words)
    except RedisRefused as error:
        if "NOGROUP" not in str(error):
            raise
        return []
    return found


class PageSize:
    """How many entries of a stream are read at once: as many as have 1 MiB, if they are like those before, and 200 at the most.
    Redis has the whole of a page in its memory, beside what it keeps, until that is sent.
    """

    def __init__(self) -> None:
        self.count = FIRST

    def learn(self, page: list[Any]) -> None:
        size = sum(len(value) for _, flat in page for value in flat)
        if size:
            self.count = max(1, min(PAGE, len(page) * PAGE_BYTES // size))


async def entry_pages(store: Store, stream: str, start: str) -> AsyncIterator[list[Entry]]:
    """What a stream has from ``start`` on: ids and fields."""
    size, asked, page = PageSize(), 0, list[Any]()
    while len(page) == asked:
        asked = size.count
        page = await store.pipeline.command("XRANGE", stream, start, "+", "COUNT", asked)
        size.learn(page)
        if page:
            yield [(entry, dict(zip(flat[::2], flat[1::2], strict=True))) for entry, flat in page]
            start = f"({text(page[-1][0])}"


async def letter_pages(store: Store) -> AsyncIterator[list[DeadLetter]]:
    """The dead letters, oldest first; what is none is passed over.

    Raises:
        NewerVersion: one was written by a newer version of greenroom.
    """
    async for page in entry_pages(store, store.keys.dead, "-"):
        found: list[DeadLetter] = []
        for letter_id, entry in page:
            try:
                found.append(read_dead_letter(letter_id, entry))
            except NewerVersion:
                yield found
                raise
            except RedisRefused as error:
                log.warning("dead_letter.unreadable", error=error)
        yield found
