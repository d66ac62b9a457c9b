"""What the command line prints: JSON for programs, plain lines for pipes, tables and colours for a terminal."""

from __future__ import annotations

import datetime as dt
import json
import math
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .protocol.records import AgentStatus, Hold, Kind, Output, Receipt, RoomStatus, text
from .supervisors.process import complain

ROOM_COLUMNS = ("room", "phase", "hold", "waiting", "owner", "processing", "attempt", "error")
RECEIPT_COLUMNS = ("room", "mode", "outcome", "message", "at", "cid")
_STYLES = {Kind.REPLY: "green", Kind.ABORTED: "yellow", Kind.DISCARDED: "yellow", Kind.FAILED: "red", Kind.DEAD: "red"}


def to_json(value: Any) -> str:
    """One line of JSON. What JSON has no form for is text: dates in ISO-8601, bytes, UUIDs, infinities, the keys of objects."""
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _plain(value.model_dump())
    if isinstance(value, dict):
        return {key if isinstance(key, str) else to_json(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return text(value)


def cell(value: Any) -> str:
    """A value on one line, with nothing in it that a terminal would obey."""
    if value is None or value == "":
        return "-"
    if isinstance(value, Hold):
        why = f": {value.reason}" if value.reason else ""
        return cell(f"{value.mode} by {value.by or 'unknown'} at {cell(value.at)}{why}")
    if isinstance(value, tuple):
        return cell(" ".join(map(cell, value)))
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))


def show_facts(facts: Mapping[str, Any]) -> None:
    """One ``name: value`` a line."""
    if sys.stdout.isatty():
        grid = Table.grid(padding=(0, 2))
        for name, value in facts.items():
            grid.add_row(Text(name, style="bold"), Text(cell(value)))
        Console().print(grid)
    else:
        for name, value in facts.items():
            typer.echo(f"{name}: {cell(value)}")


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; for pipes a line with the columns' names and then a line a row, all separated by tabs."""
    if sys.stdout.isatty():
        table = Table(*columns)
        for row in rows:
            table.add_row(*(Text(cell(value)) for value in row))
        Console().print(table)
    else:
        typer.echo("\t".join(columns))
        for row in rows:
            typer.echo("\t".join(map(cell, row)))


def show_json(outputs: Iterable[Output]) -> Output:
    """The outputs of one message as JSON, each on a line as it comes; answer the last one."""
    last = None
    for last in outputs:
        typer.echo(to_json(last))
    assert last is not None, "the outputs of a message have a last one"
    return last


def show_output(output: Output) -> None:
    """One entry of an outbox: id, kind, message, ticket, number, and what it says."""
    says = output.error or output.mode or (None if output.body is None else to_json(output.body))
    line = "\t".join(map(cell, (output.id, output.kind, output.message, output.ticket, output.seq, says)))
    if sys.stdout.isatty():
        Console().print(Text(line, style=_STYLES.get(output.kind, "")), soft_wrap=True)
    else:
        typer.echo(line)


def show_stream(outputs: Iterable[Output]) -> Output:
    """The outputs of one message as they come; answer the last one.

    Chunks of text are joined, and what is no text is JSON on a line of its own; stderr says where a cycle has ended before its
    message.
    """
    last, within_line = None, False
    try:
        for last in outputs:
            piece = last.kind is Kind.CHUNK and isinstance(last.body, str)
            if within_line and not piece:
                typer.echo()
                within_line = False
            if piece:
                typer.echo(_harmless(last.body), nl=False)
                within_line = not last.body.endswith("\n") if last.body else within_line
            elif last.kind is Kind.CHUNK or (last.kind is Kind.REPLY and (last.body is not None or last.seq == 1)):
                typer.echo(_harmless(last.body if isinstance(last.body, str) else to_json(last.body)))
            elif not last.final:
                complain(f"broken off ({cell(last.error or last.mode)}): what follows begins anew")
    finally:
        if within_line:
            typer.echo()
    assert last is not None, "the outputs of a message have a last one"
    return last


def _harmless(words: str) -> str:
    """A text with its lines and tabs, and with nothing else in it that a terminal would obey."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else cell(c) for c in words)


def room_row(status: RoomStatus) -> Sequence[Any]:
    """A room as a row of ROOM_COLUMNS."""
    hold = status.hold and status.hold.mode
    attempt = status.attempt or None
    return (status.room, status.phase, hold, status.waiting, status.owner, status.processing, attempt, status.last_error)


def receipt_row(receipt: Receipt) -> Sequence[Any]:
    """A receipt as a row of RECEIPT_COLUMNS."""
    room = "(everywhere)" if receipt.room is None else receipt.room
    return (room, receipt.mode, receipt.outcome, receipt.message, receipt.at, receipt.cid)


def room_facts(status: RoomStatus, agent: AgentStatus) -> Mapping[str, Any]:
    """What there is to say about a room, and whether its whole agent is held."""
    said = {name: value for name, value in status if value}
    held = {"agent": agent.hold} if agent.hold else {}
    return {"room": status.room, "phase": status.phase, "waiting": status.waiting} | said | held
