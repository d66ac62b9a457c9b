"""What happened, for the message of a wait that failed."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ..protocol.client import AsyncClient
from ..protocol.errors import GreenroomError
from ..protocol.records import Event, Output, RoomStatus

READ_S = 5.0  # for reading it: Redis may be what is wrong
EVENTS, OUTPUTS, LINES = 20, 10, 5  # the last so many are told
BODY_CHARS = 200


class LoggedTrouble:
    """The warnings and errors that an agent's worker logs, with their stacks.

    It listens as a filter and not as a handler: where nobody has configured logging, a handler would keep Python from showing
    warnings as it does.
    """

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._lock = threading.Lock()
        self._lines: deque[tuple[str | None, str]] = deque(maxlen=100)  # the room, if it is of one

    def __call__(self, record: logging.LogRecord) -> bool:
        known = getattr(record, "greenroom", {})
        if record.levelno >= logging.WARNING and known.get("agent") == self._agent:
            line = record.getMessage()
            if record.exc_info:
                line += "\n" + logging.Formatter().formatException(record.exc_info)
            with self._lock:
                self._lines.append((known.get("room"), line))
        return True

    @contextmanager
    def listening(self) -> Iterator[None]:
        logger = logging.getLogger("greenroom")
        logger.addFilter(self)
        try:
            yield
        finally:
            logger.removeFilter(self)

    def of(self, room: str | None) -> list[str]:
        """The last lines, of that room or of none."""
        with self._lock:
            lines = [line for of_room, line in self._lines if room is None or of_room in (room, None)]
        return lines[-LINES:]


async def story(client: AsyncClient, room: str | None, since: str | None, trouble: LoggedTrouble) -> str:
    """What happened in the room, or in all of the agent's, since that event."""
    try:
        async with asyncio.timeout(READ_S):
            told = await _read(client, room, since)
    except (GreenroomError, TimeoutError) as error:
        told = [f"Redis does not say what happened: {str(error) or 'it does not answer'}"]
    if lines := trouble.of(room):
        told += ["the worker's log:", *lines]
    return "\n".join(told).encode("utf-8", "backslashreplace").decode()


async def _read(client: AsyncClient, room: str | None, since: str | None) -> list[str]:
    events = [event async for event in client.events(after=since) if room is None or event.room == room]
    told = [] if room is None else [f"room {room}: {_status(await client.status(room))}"]
    told += _told("happened", [_event(event) for event in events], EVENTS)
    if room is not None:
        told += _told("sent", [_output(output) async for output in client.outputs(room)], OUTPUTS)
    return told


def _told(what: str, lines: list[str], most: int) -> list[str]:
    if not lines:
        return [f"{what}: nothing"]
    return [f"{what}:" if len(lines) <= most else f"{what}, the last {most} of {len(lines)}:", *lines[-most:]]


def _status(status: RoomStatus) -> str:
    words = [status.phase or "no work", f"{status.waiting} in the queue"]
    if status.processing is not None:
        words.append(f"message {status.processing} in its attempt {status.attempt}")
    if status.hold is not None:
        words.append(f"{status.hold.mode} by {status.hold.by}: {status.hold.reason}")
    return ", ".join(words)


def _event(event: Event) -> str:
    fields: Iterable[tuple[str, object]] = (
        ("room", event.room),
        ("message", event.message),
        ("attempt", event.attempt),
        ("mode", event.mode),
        ("code", event.code),
        *event.details.items(),
        ("error", event.error),
    )
    said = " ".join(f"{name}={value}" for name, value in fields if value is not None)
    return f"  {_time(event.at)} {event.kind} {said}"


def _output(output: Output) -> str:
    body = "" if output.body is None else f" {output.body!r}"[:BODY_CHARS]
    why = output.error or output.mode or ""
    return f"  {output.kind} {output.seq} of message {output.message}{body}{f' ({why})' if why else ''}"


def _time(at: dt.datetime) -> str:
    return at.strftime("%H:%M:%S.%f")[:-3]
