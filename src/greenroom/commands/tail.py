"""``greenroom tail`` and ``signals``: what rooms have sent, what has happened, and who has signalled what."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Annotated, Protocol, TypeVar

import typer

from ..options import AgentName, Embedded, Follow, Json, Last, RedisUrl, option
from ..protocol.audit import SignalEntry
from ..protocol.errors import InvalidRequest
from ..protocol.records import Event
from ..rendering import show_event, show_output, show_signal, to_json
from .clients import reading

After = Annotated[str | None, option("--after", metavar="ID", help="Only what came after this entry.")]


class _Entry(Protocol):
    @property
    def id(self) -> str: ...


E = TypeVar("E", bound=_Entry)


def tail(
    agent: AgentName,
    room: Annotated[str | None, typer.Argument(metavar="ROOM", show_default=False)] = None,
    events: Annotated[
        bool, option("--events", help="Show what happened instead, in the room or in all: what kind of event, where, to what.")
    ] = False,
    last: Last = None,
    follow: Follow = False,
    after: After = None,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> None:
    """Show what a room has sent, the newest last: id, kind, message, ticket, number, and what it says."""
    if room is None and not events:
        raise InvalidRequest("name a room, or --events")
    with reading(agent, redis, embedded, as_json, follow=follow) as client:
        if events:

            def happened(place: str | None, on: bool) -> Iterator[Event]:
                return (event for event in client.events(after=place, follow=on) if room is None or _is_of(event, room))

            _show(happened, show_event, last, follow, after, as_json)
        elif room is not None:
            _show(lambda place, on: client.outputs(room, after=place, follow=on), show_output, last, follow, after, as_json)


def signals(
    agent: AgentName,
    room: Annotated[str | None, option("--room", metavar="ROOM", help="Only those to this room, and those to all.")] = None,
    last: Last = None,
    follow: Follow = False,
    after: After = None,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> None:
    """Show the signals, the newest last: id, mode, room, outcome, message, by whom, why, and the signal's id.

    One that was written by hand is told as such, and once a worker has read it, its outcomes follow.
    """
    with reading(agent, redis, embedded, as_json, follow=follow) as client:

        def given(place: str | None, on: bool) -> Iterator[SignalEntry]:
            found = client.signals(after=place, follow=on)
            return (signal for signal in found if room is None or signal.room in (None, room))

        _show(given, show_signal, last, follow, after, as_json)


def _show(
    read: Callable[[str | None, bool], Iterator[E]],
    show: Callable[[E], None],
    last: int | None,
    follow: bool,
    after: str | None,
    as_json: bool,
) -> None:
    """Show what ``read(after, follow)`` gives. What ``last`` passes over is read, and not shown."""
    if last is not None:
        newest = deque(read(after, False), maxlen=last)
        for entry in newest:
            typer.echo(to_json(entry)) if as_json else show(entry)
        if not follow:
            return
        after = newest[-1].id if newest else after
    for entry in read(after, follow):
        typer.echo(to_json(entry)) if as_json else show(entry)


def _is_of(event: Event, room: str) -> bool:
    return event.room == room or room in event.details.get("rooms", "").split(" ")
