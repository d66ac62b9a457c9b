"""What is read back from Redis, as typed and immutable records."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from . import codec
from .clock import EPOCH, time_of_entry
from .errors import InvalidBody, NewerVersion, RedisRefused, UnknownMode

# As in lua/prelude.lua: of each message, and of all that an agent has in Redis. What is older is read, what is newer refused.
VERSION, LAYOUT = 1, 1
MAX_WHY_CHARS = 300
NUMBER = re.compile(r"[0-9]{1,18}(-0)?")  # an id or a count, as text


class Mode(StrEnum):
    """The four signals."""

    INTERRUPT = "interrupt"
    STOP = "stop"
    PAUSE = "pause"
    PLAY = "play"


class Outcome(StrEnum):
    """What a signal did to one room.

    ``applied``; ``idle``: nothing in processing to interrupt; ``held``: an interrupt on a stopped room, without effect;
    ``deferred``: it acts when the cycle's shield goes down; ``already``: it was so before.
    """

    APPLIED = "applied"
    IDLE = "idle"
    HELD = "held"
    DEFERRED = "deferred"
    ALREADY = "already"


class Kind(StrEnum):
    """What an entry of the outbox is."""

    CHUNK = "chunk"
    REPLY = "reply"
    ABORTED = "aborted"
    FAILED = "failed"
    DEAD = "dead"
    DISCARDED = "discarded"


class EventKind(StrEnum):
    """What happened, as the scripts record it: ``docs/protocol.md`` says when, and with which fields."""

    CYCLE_COMMITTED = "cycle.committed"
    CYCLE_FAILED = "cycle.failed"
    CYCLE_INTERRUPTED = "cycle.interrupted"
    CYCLE_STOPPED = "cycle.stopped"
    CYCLE_RELEASED = "cycle.released"
    CYCLE_CRASHED = "cycle.crashed"
    INTERRUPT_LAPSED = "interrupt.lapsed"
    MESSAGE_DEAD = "message.dead"
    MESSAGE_DISCARDED = "message.discarded"
    MESSAGE_REQUEUED = "message.requeued"
    MESSAGE_NEWER = "message.newer"
    MESSAGE_DROPPED = "message.dropped"
    SIGNAL_APPLIED = "signal.applied"
    SIGNAL_DEFERRED = "signal.deferred"
    SIGNAL_MALFORMED = "signal.malformed"
    ROOM_UNREADABLE = "room.unreadable"
    ROOM_ADOPTED = "room.adopted"
    ROOM_FORGOTTEN = "room.forgotten"
    WORKER_JOINED = "worker.joined"
    WORKER_LAPSED = "worker.lapsed"
    WORKER_LEFT = "worker.left"
    OUTPUT_REJECTED = "output.rejected"
    RELAY_REGISTERED = "relay.registered"
    RELAY_JOINED = "relay.joined"
    RELAY_LEFT = "relay.left"
    RELAY_FORGOTTEN = "relay.forgotten"


class Phase(StrEnum):
    """Where a room with work is."""

    QUEUED = "queued"
    PROCESSING = "processing"
    BACKOFF = "backoff"
    HELD = "held"


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Message(Record):
    """One item of a room's queue, as an agent's handler gets it.

    ``attempt`` is 1 plus the failures and crashes so far; ``enqueued_at`` is by the server's clock.
    """

    id: int
    room: str
    body: Any
    attempt: int = 1
    enqueued_at: dt.datetime


class Output(Record):
    """One entry of a room's outbox.

    ``id`` is its place (pass it as ``after=``); ``seq`` numbers the outputs of one ``ticket`` from 1, so that a replay shows
    as another ticket of the same message; it is 0 where no cycle sent it: dead, discarded. ``body`` is that of a chunk or a
    reply, else None. ``mode`` says how an aborted cycle ended: ``interrupt``, ``stop``, or ``release`` (given back at a
    shutdown); ``error`` why one failed.
    """

    id: str
    kind: Kind
    message: int
    ticket: int
    seq: int
    body: Any = None
    mode: str | None = None
    error: str | None = None

    @property
    def final(self) -> bool:
        """Whether its message has ended with it: a reply, aborted by an interrupt, dead or discarded."""
        ends = (Kind.REPLY, Kind.DEAD, Kind.DISCARDED)
        return self.kind in ends or (self.kind is Kind.ABORTED and self.mode == Mode.INTERRUPT)


class Receipt(Record):
    """What a signal did, for one room; ``room`` is None for the agent as a whole.

    ``message`` is the message in processing at that instant, if any.
    """

    room: str | None
    mode: Mode
    outcome: Outcome
    message: int | None
    cid: str
    by: str
    reason: str
    at: dt.datetime


class Hold(Record):
    """Why a room, or a whole agent, does not play: the signal's ``mode``, stop or pause, and who sent it, why and when."""

    mode: Mode
    by: str = ""
    reason: str = ""
    at: dt.datetime | None = None
    cid: str = ""


class DeadLetter(Record):
    """A message that failed for good. ``id`` is what ``requeue`` and ``drop`` take, ``message`` the id that it had.

    ``attempts`` counts its failures and crashes, ``error`` is the last one's, ``died_at`` is by the server's clock. A ``body``
    that is no msgpack is given as its bytes.
    """

    id: str
    room: str
    message: int
    body: Any
    attempts: int
    error: str
    died_at: dt.datetime


class Event(Record):
    """One thing that happened. What an event does not say is None.

    ``id`` is its place (pass it as ``after=``), ``at`` the server's time. ``kind`` is a plain string when it is none that this
    version knows. ``worker`` is who had the room: of a cycle, who ran it. ``code`` is what became of an aborted cycle's code
    (``cancelled``, ``killed``, ``detached``, ``not started``), if anybody knew. ``details`` has the fields of the stream that
    have no attribute here, such as the ``cid`` of a deferred signal.
    """

    id: str
    kind: Annotated[EventKind | str, Field(union_mode="left_to_right")]
    at: dt.datetime
    room: str | None = None
    message: int | None = None
    ticket: int | None = None
    attempt: int | None = None
    worker: str | None = None
    mode: str | None = None
    error: str | None = None
    code: str | None = None
    details: dict[str, str] = {}


class AgentStatus(Record):
    """An agent as a whole; the numbers count rooms, but ``dead`` counts messages.

    ``waiting`` rooms may run and do not: they are queued, or wait for a retry. ``oldest`` is since when the oldest cycle runs.
    """

    agent: str
    hold: Hold | None
    rooms: int
    waiting: int
    processing: int
    oldest: dt.datetime | None
    held: int
    dead: int
    workers: tuple[str, ...]


class RoomStatus(Record):
    """A room as Redis has it now.

    ``phase`` is None when it has no work; ``hold`` None when it plays (its agent may still be held); ``waiting`` counts the
    queue, the message in processing included. ``processing`` is that message, ``attempt`` the number of its try; ``ticket``,
    ``shielded`` and ``claimed_at`` are of the live cycle, as is ``abort``: by what it was aborted, ``interrupt`` or ``stop``.
    ``deferred`` is what waits for its shield. ``owner`` is the worker that has the room, ``retry_at`` when the message is
    tried again, ``last_error`` of what it failed.
    """

    room: str
    phase: Phase | None = None
    hold: Hold | None = None
    waiting: int = 0
    owner: str | None = None
    processing: int | None = None
    attempt: int = 0
    claimed_at: dt.datetime | None = None
    retry_at: dt.datetime | None = None
    last_error: str | None = None
    ticket: int | None = None
    shielded: bool = False
    abort: str | None = None
    deferred: str | None = None


def check_mode(mode: object) -> Mode:
    """Return the mode of that name, or raise UnknownMode."""
    try:
        return Mode(mode)  # type: ignore[arg-type]  # that it may be anything is the point
    except ValueError:
        raise UnknownMode(f"unknown mode {str(mode)[:40]!r}: want interrupt, stop, pause or play") from None


def text(data: Any) -> str:
    """Redis' bytes as text; what is not UTF-8 shows as escapes and never raises."""
    return data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else str(data)


def fields(flat: Sequence[bytes]) -> dict[str, bytes]:
    """Redis' flat list of names and values as a dict."""
    return {text(name): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def read_id(entry: str) -> int:
    """The message id of a queue's entry ``<id>-0``."""
    return int(entry.partition("-")[0])


def entry_id(message: int) -> str:
    """The queue's entry of a message id."""
    return f"{message}-0"


def check_version(version: bytes, known: int, what: str) -> None:
    """Refuse what was written by a newer greenroom than one that knows versions up to ``known``.

    Raises:
        NewerVersion: that it was.
    """
    if not version.isdigit() or len(version) > 18 or int(version) > known:
        raise NewerVersion(f"{what} was written by a newer greenroom (version {text(version)[:20]}, here {known}): upgrade")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """In place of the body of a message that is not what greenroom writes: what is wrong with it."""

    error: str


def read_message(message_id: int, room: str, attempt: int, entry: Mapping[str, bytes]) -> Message:
    """A message from its stream entry, whatever that says: the body of one that cannot be read is Unreadable.

    No worker gets to see one that was written by a newer version of greenroom: it is not granted.
    """
    body: Any
    at = EPOCH
    try:
        version = entry.get("v", b"1")
        if not version.isdigit():
            raise ValueError("its version is no number")
        check_version(version, VERSION, f"message {message_id} of room {room}")
        at = dt.datetime.fromisoformat(text(entry["at"]))
        body = codec.decode(entry["body"])
    except (KeyError, ValueError, NewerVersion) as error:
        body = Unreadable(f"the message is not what greenroom writes: {_why(error)}")
    return Message.model_construct(id=message_id, room=room, body=body, attempt=attempt, enqueued_at=at)


def _why(error: Exception) -> str:
    return f"no {error.args[0]}" if isinstance(error, KeyError) else str(error)[:MAX_WHY_CHARS]


def read_output(output_id: bytes, entry: Mapping[bytes, bytes]) -> Output:
    """An output from its outbox entry.

    Raises:
        RedisRefused: it is not what greenroom writes.
    """
    row = {text(name): text(value) for name, value in entry.items() if name != b"body"}
    try:
        body = codec.decode(entry[b"body"]) if entry.get(b"body") else None
        return Output.model_validate({**row, "id": text(output_id), "message": read_id(row["message"]), "body": body})
    except (KeyError, ValueError) as error:
        raise RedisRefused(f"output {text(output_id)} is not what greenroom writes: {_why(error)}") from None


def read_event(event_id: bytes, entry: Mapping[bytes, bytes]) -> Event:
    """An event from its stream entry, whatever that says: a number that is none stays among the details."""
    row = {text(name): text(value) for name, value in entry.items()}
    named: dict[str, Any] = {name: row.pop(name) for name in ("room", "worker", "mode", "error", "code") if row.get(name)}
    for name in ("message", "ticket", "attempt"):
        if NUMBER.fullmatch(row.get(name, "")):
            named[name] = read_id(row.pop(name))
    return Event(id=text(event_id), kind=row.pop("event", ""), at=time_of_entry(text(event_id)), **named, details=row)


def read_receipts(data: bytes) -> list[Receipt]:
    """The receipts of one signal, from the JSON of the control script."""
    signal = json.loads(data)
    shared = {name: signal[name] for name in ("mode", "cid", "by", "reason", "at")}
    return [
        Receipt(room=room or None, outcome=outcome, message=read_id(message) if message else None, **shared)
        for room, outcome, message in signal["receipts"] or []
    ]


def read_dead_letter(letter_id: bytes, entry: Mapping[bytes, bytes]) -> DeadLetter:
    """A dead letter from its stream entry. A body that is no msgpack, of which it may have died, is given as its bytes.

    Raises:
        NewerVersion: it was written by a newer version of greenroom.
        RedisRefused: it is not what greenroom writes.
    """
    version: bytes = entry.get(b"v", b"1")
    if version.isdigit():  # else the message died of it
        check_version(version, VERSION, f"dead letter {text(letter_id)}")
    row = {text(name): text(value) for name, value in entry.items() if name != b"body"}
    body: Any = entry.get(b"body")
    with suppress(InvalidBody):
        body = codec.decode(body or b"")
    try:
        return DeadLetter.model_validate({**row, "id": text(letter_id), "message": read_id(row["message"]), "body": body})
    except (KeyError, ValueError) as error:
        raise RedisRefused(f"dead letter {text(letter_id)} is not what greenroom writes: {_why(error)}") from None


def read_hold(row: Mapping[str, str]) -> Hold | None:
    """Why the room or agent of this hash is held, or None.

    Raises:
        RedisRefused: the hash is not what greenroom writes.
    """
    if not row.get("mode"):
        return None
    said = {name: row[f"mode_{name}"] for name in ("by", "reason", "at", "cid") if f"mode_{name}" in row}
    try:
        return Hold.model_validate(said | {"mode": row["mode"]})
    except ValidationError as error:
        raise RedisRefused(f"a hash has a mode that greenroom did not write: {_why(error)}") from None


def read_status(room: str, entry: Mapping[bytes, bytes], waiting: int) -> RoomStatus:
    """A room's status from its hash.

    Raises:
        RedisRefused: the hash is not what greenroom writes.
    """
    row = {text(name): text(value) for name, value in entry.items()}
    try:
        processing = read_id(row["processing"]) if "processing" in row else None
        named = {"processing": processing, "ticket": row.get("cycle"), "shielded": "shield" in row, "hold": read_hold(row)}
        return RoomStatus.model_validate({**row, **named, "room": room, "waiting": waiting})
    except ValueError as error:
        raise RedisRefused(f"room {room} has a hash that greenroom did not write: {_why(error)}") from None
