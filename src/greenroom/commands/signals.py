"""``greenroom interrupt``, ``stop``, ``pause`` and ``play``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from ..options import AgentName, Embedded, Json, RedisUrl, option
from ..protocol.errors import InvalidRequest
from ..protocol.records import Mode
from ..rendering import RECEIPT_COLUMNS, receipt_row, show_rows
from .clients import client_of

Rooms = Annotated[list[str] | None, typer.Argument(metavar="ROOM", show_default=False)]
Everywhere = Annotated[bool, option("--everywhere", help="All rooms of the agent, also those to come.")]
Reason = Annotated[str, option("--reason", help="Why, for others to see.")]
By = Annotated[str | None, option("--by", help="Who signals; the user and host by default.")]
Cid = Annotated[str | None, option("--cid", help="The signal's id: a repetition with it does nothing more.")]


def interrupt(
    agent: AgentName,
    rooms: Rooms = None,
    everywhere: Everywhere = False,
    message: Annotated[int | None, option("--message", min=1, help="Only if this message is in processing.")] = None,
    reason: Reason = "",
    by: By = None,
    cid: Cid = None,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> None:
    """Abort the cycle in flight and consume its message; the next one runs."""
    with client_of(agent, redis, embedded) as client:
        targets = _targets(rooms, everywhere)
        receipts = client.interrupt(*targets, everywhere=everywhere, message=message, reason=reason, by=by, cid=cid)
    show_rows(RECEIPT_COLUMNS, receipts, receipt_row, as_json)


def _signal(mode: Mode, help: str) -> Callable[..., None]:
    """The command that sends ``mode``."""

    def command(
        agent: AgentName,
        rooms: Rooms = None,
        everywhere: Everywhere = False,
        reason: Reason = "",
        by: By = None,
        cid: Cid = None,
        redis: RedisUrl = None,
        embedded: Embedded = None,
        as_json: Json = False,
    ) -> None:
        with client_of(agent, redis, embedded) as client:
            send = {Mode.STOP: client.stop, Mode.PAUSE: client.pause, Mode.PLAY: client.play}[mode]
            receipts = send(*_targets(rooms, everywhere), everywhere=everywhere, reason=reason, by=by, cid=cid)
        show_rows(RECEIPT_COLUMNS, receipts, receipt_row, as_json)

    command.__name__, command.__doc__ = mode.value, help
    return command


stop = _signal(Mode.STOP, "Abort the cycle in flight, keep its message, and hold the rooms until play.")
pause = _signal(Mode.PAUSE, "Let the cycle in flight finish, then hold the rooms until play.")
play = _signal(
    Mode.PLAY, "Let the rooms go on: a kept message first. Rooms that were held by themselves are played by themselves."
)


def _targets(rooms: list[str] | None, everywhere: bool) -> list[str]:
    if bool(rooms) == everywhere:
        raise InvalidRequest("name rooms, or --everywhere")
    return rooms or []
