"""The control stream as it is read back: which signals there were, and what came of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Mapping
from typing import Annotated

from pydantic import Field

from .clock import place_of, time_of_entry
from .inspection import entry_pages
from .records import NUMBER, Outcome, Record, read_id, text
from .store import Store


class SignalEntry(Record):
    """One entry of the control stream: what a signal did in one room, or one that was written by hand.

    ``room`` is None for all rooms. ``outcome`` is None for what was written by hand: what came of it is told by later entries,
    whose ``cid`` is its ``id``, once a worker has read it (``read``). What is no signal changes nothing, and an event says so.
    """

    id: str
    at: dt.datetime
    mode: str
    room: str | None
    message: int | None = None
    by: str = ""
    reason: str = ""
    cid: str
    outcome: Annotated[Outcome | str, Field(union_mode="left_to_right")] | None = None
    read: bool = True


async def signal_pages(store: Store, start: str) -> AsyncIterator[list[SignalEntry]]:
    """What the control stream has from ``start`` on."""
    cursor = await store.pipeline.command("HGET", store.keys.root, "control_cursor")
    read = None if cursor is None else text(cursor)
    async for page in entry_pages(store, store.keys.control, start):
        yield [read_signal_entry(entry_id, entry, read) for entry_id, entry in page]


def read_signal_entry(entry_id: bytes, entry: Mapping[bytes, bytes], cursor: str | None) -> SignalEntry:
    """An entry of the control stream, whatever it says; ``cursor`` is the last one written by hand that a worker has read."""
    row = {text(name): text(value) for name, value in entry.items()}
    place, scripted = text(entry_id), "outcome" in row and "upto" in row
    return SignalEntry(
        id=place,
        at=time_of_entry(place),
        mode=row.get("mode", ""),
        room=row.get("room"),
        message=read_id(row["message"]) if NUMBER.fullmatch(row.get("message", "")) else None,
        by=row.get("by", ""),
        reason=row.get("reason", ""),
        cid=row.get("cid", "") if scripted else place,
        outcome=row["outcome"] if scripted else None,
        read=scripted or (cursor is not None and place_of(place) <= place_of(cursor)),
    )
