"""``greenroom doctor``: the Redis as it is, and what to do about it."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..options import Embedded, Json, RedisUrl
from ..protocol.checks import Finding, Severity
from ..protocol.doctor import examine
from ..rendering import cell, show_table, to_json
from ..supervisors.process import ExitCode
from ..where import url_of

_STYLES = {Severity.OK: "green", Severity.UNKNOWN: "cyan", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}


def doctor(
    agent: Annotated[str | None, typer.Argument(metavar="AGENT", envvar="GREENROOM_AGENT", show_default=False)] = None,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> int:
    """Look at Redis as it is: reachable, how far away, version, eviction, memory, persistence, replicas, clock, encryption, and
    what this user may do; with an agent, also to its keys, and what ails the agent. A line each, with what to do about it.

    Exits with 1 if greenroom does not work with what is found, or if there is work and no worker.
    """
    found = asyncio.run(examine(url_of(redis, embedded), agent))
    if as_json:
        for finding in found:
            typer.echo(to_json(asdict(finding)))
    else:
        _show(found)
    return ExitCode.FAILED if any(finding.severity is Severity.ERROR for finding in found) else ExitCode.OK


def _show(found: list[Finding]) -> None:
    if not sys.stdout.isatty():
        show_table(("severity", "check", "says", "do"), ((each.severity, each.check, each.says, each.do) for each in found))
        return
    grid = Table.grid(padding=(0, 2))
    for each in found:
        grid.add_row(Text(each.severity, style=_STYLES[each.severity]), each.check, Text(cell(str(each))))
    Console().print(grid)
