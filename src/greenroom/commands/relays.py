"""``greenroom relays``: the relays that are registered; and to forget one that is gone for good."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperGroup

from ..asking import sure
from ..options import AgentName, Embedded, Json, RedisUrl, Yes
from ..protocol.errors import NotFound
from ..rendering import RELAY_COLUMNS, relay_row, show_rows
from ..supervisors.process import ExitCode, complain
from .clients import client_of, reading


class _Listing(TyperGroup):
    """Without the name of a command it lists."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # of click's copy, too
        helping = args[:1] in (["-h"], ["--help"])
        return super().parse_args(ctx, args if helping or (args[:1] and args[0] in self.commands) else ["list", *args])


relays = typer.Typer(
    cls=_Listing,
    help="The relays for which outputs are kept: list them, forget one that is gone for good.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@relays.command("list")
def show_all(agent: AgentName, redis: RedisUrl = None, embedded: Embedded = None, as_json: Json = False) -> None:
    """List the relays: which process hands over, when one was last heard of, in how many rooms outputs wait for it, and the
    oldest of these. It is what the command does without a name.
    """
    with reading(agent, redis, embedded, as_json) as client:
        show_rows(RELAY_COLUMNS, client.relays(), relay_row, as_json)


@relays.command()
def forget(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    agent: AgentName,
    yes: Yes = False,
    redis: RedisUrl = None,
    embedded: Embedded = None,
) -> int:
    """Forget a relay that is gone for good: what it has not handed over is not kept for it any more, and never will be.

    One that runs is refused: end it first.
    """
    with client_of(agent, redis, embedded) as client:
        found = next((relay for relay in client.relays() if relay.name == name), None)
        if found is None:
            raise NotFound(f"there is no relay {name}")
        if not sure(f"forget relay {name}, with outputs of {found.rooms} rooms that it has not handed over?", yes):
            complain("nothing was done")
            return ExitCode.FAILED
        client.forget_relay(name)
    return ExitCode.OK
