"""The workers of an agent, as Redis knows them."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Mapping

from .clock import time_of_tick, time_said
from .inspection import pending
from .records import NUMBER, Record, fields, read_id, text
from .store import Store


class WorkerStatus(Record):
    """A worker as Redis knows it. One that is not ``alive`` has no lease: its rooms are for others to adopt.

    ``owns`` counts the rooms in its pending list, ``rooms`` those at work when it renewed its lease at ``renewed_at``, of
    ``slots`` at most. ``lag_s`` is how long the agent's event loop took to answer, the longest of the minute before.
    """

    name: str
    alive: bool
    owns: int
    rooms: int | None = None
    slots: int | None = None
    lag_s: float | None = None
    incarnation: int | None = None
    since: dt.datetime | None = None
    renewed_at: dt.datetime | None = None
    host: str | None = None
    pid: int | None = None


async def workers(store: Store) -> list[WorkerStatus]:
    """The workers that live, or own rooms, by name."""
    keys, command = store.keys, store.pipeline.command
    names, summary = await asyncio.gather(command("SMEMBERS", keys.workers), pending(store))
    owns = {text(name): int(count) for name, count in (summary[3] or [] if summary else [])}
    found = sorted({*map(text, names), *owns})
    beats = await asyncio.gather(*[command("HGETALL", keys.worker(name)) for name in found])
    return [read_worker(name, fields(beat), owns.get(name, 0)) for name, beat in zip(found, beats, strict=True)]


def read_worker(name: str, entry: Mapping[str, bytes], owns: int) -> WorkerStatus:
    """A worker from its heartbeat, which is empty when its lease has run out."""
    row = {field: text(value) for field, value in entry.items()}
    number = {field: read_id(value) for field, value in row.items() if NUMBER.fullmatch(value)}
    incarnation = number.get("incarnation")
    return WorkerStatus(
        name=name,
        alive=bool(row),
        owns=owns,
        rooms=number.get("rooms"),
        slots=number.get("slots"),
        lag_s=number["lag_ms"] / 1000 if "lag_ms" in number else None,
        incarnation=incarnation,
        since=time_of_tick(incarnation) if incarnation else None,
        renewed_at=time_said(row.get("beat")),
        host=row.get("host"),
        pid=number.get("pid"),
    )
