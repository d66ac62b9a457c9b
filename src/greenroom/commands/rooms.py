"""``greenroom status`` and ``rooms``: how the agent and its rooms are."""

from __future__ import annotations

from typing import Annotated

import typer

from ..options import AgentName, Embedded, Json, RedisUrl
from ..rendering import ROOM_COLUMNS, room_facts, room_row, show_facts, show_rows, to_json
from .clients import client_of


def status(
    agent: AgentName,
    room: Annotated[str | None, typer.Argument(metavar="ROOM", show_default=False)] = None,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> None:
    """Show a room, or the agent as a whole."""
    with client_of(agent, redis, embedded) as client:
        if room is None:
            whole = client.overview()
            typer.echo(to_json(whole)) if as_json else show_facts(dict(whole))
        else:
            one = client.status(room)
            typer.echo(to_json(one)) if as_json else show_facts(room_facts(one, client.overview()))


def rooms(agent: AgentName, redis: RedisUrl = None, embedded: Embedded = None, as_json: Json = False) -> None:
    """List the rooms that have work, a mode or state."""
    with client_of(agent, redis, embedded) as client:
        show_rows(ROOM_COLUMNS, client.rooms(), room_row, as_json)
