"""The options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .logs import LogFormat, LogLevel
from .protocol.connect import DEFAULT_REDIS
from .where import EMBEDDED_VARIABLE, URL_VARIABLE


def option(*names: str, help: str, **more: Any) -> Any:
    """An option whose default its help tells, if anything."""
    return typer.Option(*names, help=help, show_default=False, **more)


Room = Annotated[str, typer.Argument(metavar="ROOM", show_default=False)]
AgentName = Annotated[str, option("--agent", envvar="GREENROOM_AGENT", help="The agent's name.", metavar="NAME")]
RedisUrl = Annotated[
    str | None,
    option("--redis", metavar="URL", help=f"Where Redis is; else ${URL_VARIABLE}, else {DEFAULT_REDIS}."),
]
Embedded = Annotated[
    Path | None,
    option(
        "--embedded",
        metavar="DIR",
        help=f"Use the embedded Redis of this directory, which run starts; else ${EMBEDDED_VARIABLE}, if no URL is named.",
    ),
]
Json = Annotated[bool, option("--json", help="Print JSON, one value a line.")]
Yes = Annotated[bool, option("--yes", "-y", help="Do not ask.")]
Follow = Annotated[bool, option("--follow", "-f", help="Go on with what is to come, until Ctrl-C.")]
Last = Annotated[int | None, option("--last", "-n", min=1, metavar="N", help="Only the newest N of what is there.")]
ChosenLevel = Annotated[LogLevel, typer.Option("--log-level", help="Log to stderr from this level on.")]
ChosenFormat = Annotated[
    LogFormat | None,
    option("--log-format", envvar="GREENROOM_LOG_FORMAT", help="By default console on a terminal, else json."),
]
