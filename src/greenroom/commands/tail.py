"""``greenroom tail``: what a room has sent."""

from __future__ import annotations

from typing import Annotated

import typer

from ..options import AgentName, Embedded, Json, RedisUrl, Room, option
from ..rendering import show_output, to_json
from .clients import client_of


def tail(
    room: Room,
    agent: AgentName,
    follow: Annotated[bool, option("--follow", "-f", help="Go on with what the room goes on to send, until Ctrl-C.")] = False,
    after: Annotated[str | None, option("--after", metavar="ID", help="Only what came after this entry.")] = None,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> None:
    """Show what a room has sent: id, kind, message, ticket, number, and what it says."""
    with client_of(agent, redis, embedded) as client:
        for output in client.outputs(room, after=after, follow=follow):
            typer.echo(to_json(output)) if as_json else show_output(output)
