"""``greenroom status``, ``rooms`` and ``workers``: how the agent, its rooms and its workers are."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from ..options import AgentName, Embedded, Json, RedisUrl, option
from ..protocol.listing import Sort
from ..protocol.records import Phase
from ..protocol.waiting import why
from ..rendering import ROOM_COLUMNS, WORKER_COLUMNS, room_facts, room_row, show_facts, show_rows, to_json, worker_row
from .clients import reading


class Held(StrEnum):
    """How a room may be held by itself."""

    STOP = "stop"
    PAUSE = "pause"
    PLAY = "play"


def status(
    agent: AgentName,
    room: Annotated[str | None, typer.Argument(metavar="ROOM", show_default=False)] = None,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> None:
    """Show a room, and what it waits for or has said last; or the agent as a whole."""
    with reading(agent, redis, embedded, as_json) as client:
        if room is None:
            whole = client.overview()
            typer.echo(to_json(whole)) if as_json else show_facts(dict(whole))
        elif as_json:
            typer.echo(to_json(client.status(room)))
        else:
            one, whole, last = client.status(room), client.overview(), client.last_output(room)
            show_facts(room_facts(one, whole, why(one, whole, client.workers()), last))


def rooms(
    agent: AgentName,
    phase: Annotated[Phase | None, option("--phase", help="Only rooms in this phase.")] = None,
    mode: Annotated[Held | None, option("--mode", help="Only rooms that are held so by themselves, or (play) are not.")] = None,
    worker: Annotated[str | None, option("--worker", metavar="NAME", help="Only rooms that this worker owns.")] = None,
    sort: Annotated[
        Sort, typer.Option("--sort", help="The last active first; the longest cycle first; the longest queue first; by name.")
    ] = Sort.ACTIVITY,
    limit: Annotated[int | None, option("--limit", min=1, metavar="N", help="Show so many at the most.")] = None,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> None:
    """List the rooms that have work, a mode or state.

    Redis is read in pages, and of 100,000 rooms only those in a phase, or of a worker, where one is named.
    """
    with reading(agent, redis, embedded, as_json) as client:
        found = client.rooms(phase=phase, mode=mode, worker=worker, sort=sort, limit=limit)
        show_rows(ROOM_COLUMNS, found, room_row, as_json)


def workers(agent: AgentName, redis: RedisUrl = None, embedded: Embedded = None, as_json: Json = False) -> None:
    """List the workers that live, or still own rooms: how many, since when, and when they were last heard of."""
    with reading(agent, redis, embedded, as_json) as client:
        show_rows(WORKER_COLUMNS, client.workers(), worker_row, as_json)
