"""The relays of an agent, as Redis knows them."""

from __future__ import annotations

import asyncio
import datetime as dt
import re

from .clock import place_of, time_of_entry, time_said
from .records import Record, fields, text
from .store import Store

PAGE = 1000
_PLACE = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")


class RelayStatus(Record):
    """A registered relay as Redis knows it. What it has not handed over is kept until it has, or until it is forgotten.

    ``holder`` is the token of the process that hands over, None while there is none; ``seen_at`` is when one was last heard of.
    ``rooms`` have outputs that it is not done with, the oldest of which was sent at ``oldest``.
    """

    name: str
    since: dt.datetime | None
    holder: str | None
    seen_at: dt.datetime | None
    rooms: int
    oldest: dt.datetime | None


async def relays(store: Store) -> list[RelayStatus]:
    """The relays, by name."""
    keys, command = store.keys, store.pipeline.command
    since, seen = map(fields, await asyncio.gather(command("HGETALL", keys.relays), command("HGETALL", keys.relays_seen)))
    names = sorted(since)
    holders, rooms = await asyncio.gather(
        asyncio.gather(*[command("GET", keys.relay(name)) for name in names]),
        asyncio.gather(*[command("HLEN", keys.undelivered(name)) for name in names]),
    )
    oldest = [await _oldest(store, name) for name in names]
    return [
        RelayStatus(
            name=name,
            since=time_said(text(since[name])),
            holder=None if holder is None else text(holder),
            seen_at=time_said(text(seen.get(name, b""))),
            rooms=count,
            oldest=first,
        )
        for name, holder, count, first in zip(names, holders, rooms, oldest, strict=True)
    ]


async def _oldest(store: Store, name: str) -> dt.datetime | None:
    """When the oldest output that a relay is not done with was sent: it is the first of one of its rooms."""
    cursor, first = b"0", ""
    while True:
        words = ("HSCAN", store.keys.undelivered(name), cursor, "COUNT", PAGE)
        cursor, flat = await store.pipeline.command(*words)
        first = min(filter(_PLACE.fullmatch, [first, *map(text, flat[1::2])]), key=place_of, default="")
        if cursor == b"0":
            return time_of_entry(first) if first else None
