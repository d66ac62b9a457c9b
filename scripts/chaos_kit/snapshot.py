"""What Redis has of some rooms at the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from demo.record import place
from redis.asyncio import Redis

from greenroom.protocol import codec
from greenroom.protocol.keys import Keys
from greenroom.protocol.records import read_id, text

from .account import Snapshot
from .ledger import Place

CatchUp = Callable[[str, Place], Awaitable[object]]  # sees to it that the ledger has a room's outputs, up to that one


async def take_snapshot(client: Redis, keys: Keys, rooms: Iterable[str], catch_up: CatchUp) -> Snapshot:
    """Read ``rooms`` and what should be empty by now; the ledger has caught up with it then."""
    redis: Any = client  # its types know neither RESP2 nor bytes
    shot = Snapshot(dead=await redis.xlen(keys.dead))
    for room in rooms:
        shot.outboxes[room] = [place(text(entry)) for entry, _ in await redis.xrange(keys.outbox(room))]
        await catch_up(room, shot.outboxes[room][-1] if shot.outboxes[room] else (0, 0))
        shot.queued[room] = [read_id(text(entry)) for entry, _ in await redis.xrange(keys.messages(room))]
        shot.counts[room] = count_of(await redis.get(keys.state(room)))
    sizes = {
        keys.ready: await redis.xlen(keys.ready),
        keys.processing: await redis.zcard(keys.processing),
        keys.held: await redis.scard(keys.held),
    }
    shot.leftover = [f"{key} has {size} entries" for key, size in sizes.items() if size]
    return shot


def count_of(state: bytes | None) -> int:
    """The counter in a room's state, which is stored as its version and its fields."""
    if state is None:
        return 0
    _, fields = codec.decode(state)
    count: int = fields["count"]
    return count
