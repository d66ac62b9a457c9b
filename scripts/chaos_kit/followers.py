"""What is seen: the outputs of every room by ordinary clients, the control stream and the events by plain Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from demo.record import place
from redis.asyncio import Redis
from redis.exceptions import RedisError

from greenroom import AsyncClient, RedisUnavailable
from greenroom.protocol.keys import Keys
from greenroom.protocol.records import text

from .ledger import Adoption, Control, Ledger

AGAIN_S = 0.1
BLOCK_MS = 1000

T = TypeVar("T")
Entry = Mapping[bytes, bytes]


async def until_answered(call: Callable[[], Awaitable[T]]) -> T:
    """Ask Redis itself until it answers. What is asked must be safe to repeat."""
    while True:
        try:
            return await call()
        except (RedisError, OSError):
            await asyncio.sleep(AGAIN_S)


async def follow_room(ledger: Ledger, client: AsyncClient, room: str) -> None:
    """Record all that a room sends, for ever, over every loss of the connection."""
    last: str | None = None
    while True:
        try:
            async for output in client.outputs(room, after=last, follow=True):
                ledger.add_output(room, output)
                last = output.id
        except RedisUnavailable:
            await asyncio.sleep(AGAIN_S)


async def follow_control(ledger: Ledger, redis: Redis, keys: Keys) -> None:
    """Record every signal that was applied, in the order of their being applied, and those that people wrote."""

    def note(entry: str, row: Entry) -> None:
        if b"outcome" not in row:
            ledger.by_hand.add(entry)
            return
        room = text(row[b"room"]) if b"room" in row else None
        mode, cid, outcome = (text(row[name]) for name in (b"mode", b"cid", b"outcome"))
        ledger.add_control(Control(place(entry), mode, room, cid, outcome, int(row[b"upto"])))

    await _follow(redis, keys.control, note)


async def follow_events(ledger: Ledger, redis: Redis, keys: Keys) -> None:
    """Count what happened, and note who took over what."""

    def note(entry: str, row: Entry) -> None:
        ledger.events[event := text(row[b"event"])] += 1
        if event == "room.adopted":
            ledger.add_adoption(Adoption(text(row[b"room"]), text(row[b"worker"]), place(entry)[0]))

    await _follow(redis, keys.events, note)


async def _follow(redis: Redis, stream: str, note: Callable[[str, Entry], None]) -> None:
    last = "0-0"
    while True:
        reply: Any = await until_answered(partial(redis.xread, {stream: last}, count=500, block=BLOCK_MS))
        for entry, row in reply[0][1] if reply else []:
            last = text(entry)
            note(last, row)
