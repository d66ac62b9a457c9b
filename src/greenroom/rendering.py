"""What the command line prints: JSON for programs, plain lines for pipes, tables and colours for a terminal."""

from __future__ import annotations

import datetime as dt
import json
import math
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .protocol.audit import SignalEntry
from .protocol.clock import time_of_entry
from .protocol.fleet import WorkerStatus
from .protocol.records import (
    AgentStatus,
    DeadLetter,
    Event,
    EventKind,
    Hold,
    Kind,
    Mode,
    Output,
    Receipt,
    RoomStatus,
    text,
)
from .protocol.relays import RelayStatus
from .supervisors.process import complain
from .tables import lay_out

R = TypeVar("R")

ROOM_COLUMNS = ("room", "phase", "hold", "waiting", "owner", "since", "processing", "attempt", "retry", "says")
WORKER_COLUMNS = ("worker", "alive", "owns", "at work", "slots", "lag", "since", "renewed", "host", "pid", "incarnation")
RELAY_COLUMNS = ("relay", "runs as", "seen", "rooms", "oldest", "since")
LETTER_COLUMNS = ("id", "room", "message", "attempts", "died", "error")
RECEIPT_COLUMNS = ("room", "mode", "outcome", "message", "at", "cid")
TABLE_ROWS = 500  # of a table on a terminal, before its columns' names are told again
_STYLES = {Kind.REPLY: "green", Kind.ABORTED: "yellow", Kind.DISCARDED: "yellow", Kind.FAILED: "red", Kind.DEAD: "red"}
_EVENT_STYLES: dict[str, str] = {
    EventKind.CYCLE_FAILED: "red",
    EventKind.CYCLE_CRASHED: "red",
    EventKind.MESSAGE_DEAD: "red",
    EventKind.SIGNAL_MALFORMED: "red",
    EventKind.CYCLE_INTERRUPTED: "yellow",
    EventKind.CYCLE_STOPPED: "yellow",
}


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
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
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


def show_rows(columns: Sequence[str], records: Iterable[R], row: Callable[[R], Sequence[Any]], as_json: bool) -> None:
    """A table of records; with ``as_json`` each of them as JSON, a line each."""
    if as_json:
        for record in records:
            typer.echo(to_json(record))
    else:
        show_table(columns, map(row, records))


def show_json_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows as JSON, an object a line."""
    for row in rows:
        typer.echo(to_json(dict(zip(columns, row, strict=True))))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; for pipes a line with the columns' names and then a line a row, all separated by tabs."""
    if sys.stdout.isatty():
        _print_tables(columns, iter(rows))
    else:
        typer.echo("\t".join(columns))
        for row in rows:
            typer.echo("\t".join(map(cell, row)))


def _print_tables(columns: Sequence[str], rows: Iterator[Sequence[Any]]) -> None:
    """A long table in parts, so that its first rows need not wait for its last."""
    console, part = Console(), list(islice(rows, TABLE_ROWS))
    if not part:
        console.print(Text("none", style="dim"))
    while part:
        head, *lines = lay_out(columns, [[_short(value) for value in row] for row in part], console.width)
        for line in (Text(head, style="bold"), *map(Text, lines)):
            console.print(line, no_wrap=True, crop=True)
        part = list(islice(rows, TABLE_ROWS))


def _short(value: Any) -> str:
    """A cell as people read it: of times, the seconds suffice, and the day unless it is today."""
    if not isinstance(value, dt.datetime):
        return cell(value)
    return f"{value:%H:%M:%SZ}" if value.date() == dt.datetime.now(dt.UTC).date() else f"{value:%m-%d %H:%M:%SZ}"


def show_entry(entry: str, facts: Sequence[Any], style: str = "", *, spared: Sequence[Any] = ()) -> None:
    """One entry of a stream that may be followed: its id and facts, with tabs between. People get its time instead, and only
    what says something, without what they are ``spared``.
    """
    if sys.stdout.isatty():
        told = [f"{time_of_entry(entry):%m-%d %H:%M:%S.%f}"[:-3], *filter(lambda fact: fact != "-", map(cell, facts))]
        Console().print(Text("  ".join(told), style=style), soft_wrap=True)
    else:
        typer.echo("\t".join(map(cell, (entry, *facts, *spared))))


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
    show_entry(output.id, (output.kind, output.message, output.ticket, output.seq, says), _STYLES.get(output.kind, ""))


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
    """A room as a row of ROOM_COLUMNS. ``since``: when its cycle began, or else when it was held."""
    hold, since = status.hold and status.hold.mode, status.claimed_at or (status.hold and status.hold.at)
    attempt = status.attempt or None
    facts = (status.room, status.phase, hold, status.waiting, status.owner, since, status.processing, attempt)
    return (*facts, status.retry_at, room_says(status))


def room_says(status: RoomStatus) -> str:
    """Who holds a room and why, and what has failed in it last."""
    held = f"by {status.hold.by or 'unknown'}{status.hold.reason and ': '}{status.hold.reason}" if status.hold else ""
    return "; ".join(filter(None, (held, status.last_error)))


def receipt_row(receipt: Receipt) -> Sequence[Any]:
    """A receipt as a row of RECEIPT_COLUMNS."""
    room = "(everywhere)" if receipt.room is None else receipt.room
    return (room, receipt.mode, receipt.outcome, receipt.message, receipt.at, receipt.cid)


def room_facts(status: RoomStatus, agent: AgentStatus, why: str, last: Output | None) -> Mapping[str, Any]:
    """What there is to say about a room, whether its whole agent is held, what it is at, and the last thing that it sent."""
    said = {name: value for name, value in status if value}
    more = {"agent": agent.hold, "why": why, "last": last and _output_says(last)}
    told = {name: value for name, value in more.items() if value}
    return {"room": status.room, "phase": status.phase, "waiting": status.waiting} | said | told


def _output_says(output: Output) -> str:
    """In one short line, and without what the agent has said."""
    at = cell(time_of_entry(output.id))
    return f"{output.kind} of message {output.message} at {at}" + (f": {output.error}" if output.error else "")


def worker_row(worker: WorkerStatus) -> Sequence[Any]:
    """A worker as a row of WORKER_COLUMNS."""
    alive = "yes" if worker.alive else "NO"
    lag = None if worker.lag_s is None else f"{worker.lag_s:.1f}s"
    numbers = (worker.name, alive, worker.owns, worker.rooms, worker.slots, lag, worker.since, worker.renewed_at)
    return (*numbers, worker.host, worker.pid, worker.incarnation)


def relay_row(relay: RelayStatus) -> Sequence[Any]:
    """A relay as a row of RELAY_COLUMNS."""
    return (relay.name, relay.holder or "NOBODY", relay.seen_at, relay.rooms, relay.oldest, relay.since)


def letter_row(letter: DeadLetter) -> Sequence[Any]:
    """A dead letter as a row of LETTER_COLUMNS."""
    return (letter.id, letter.room, letter.message, letter.attempts, letter.died_at, letter.error)


def show_event(event: Event) -> None:
    """One event: id, kind, room, message, attempt, worker, and what else it says."""
    more = " ".join(f"{name}={value}" for name, value in event.details.items() if value)
    says = " ".join(filter(None, (event.error or event.mode, event.code, more)))
    facts = (event.kind, event.room, event.message, event.attempt, event.worker, says)
    show_entry(event.id, facts, _EVENT_STYLES.get(event.kind, ""))


def show_signal(signal: SignalEntry) -> None:
    """One entry of the control stream: id, mode, room, outcome, message, by whom, why, and the signal's id."""
    by_hand = "by hand, not read yet" if not signal.read else "by hand, read" if signal.mode in list(Mode) else "no signal"
    outcome = signal.outcome or by_hand
    room = "(everywhere)" if signal.room is None else signal.room
    facts = (signal.mode, room, outcome, signal.message, signal.by, signal.reason)
    show_entry(signal.id, facts, "" if signal.read else "yellow", spared=(signal.cid,))
