"""What Redis keeps of an agent, and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from .errors import InvalidRequest

DAY = timedelta(days=1)
# Requests are sent again for as long as their senders are patient, and an aborted cycle asks who aborted it.
LEAST_RECEIPTS = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of what is over is kept. Nothing that is in flight is ever trimmed for it.

    Args:
        outbox: outputs a room, about; more while a relay is not done with them.
        outbox_for: how long an outbox is kept after its last output, 1 s or more; longer while a relay is not done with it.
        events: entries of the events stream, about.
        control: entries of the control stream, about; more while a live worker has not read them.
        receipts: how long a signal is known by its ``cid``, 1 minute or more. Longer than a shield may last: a cycle that an
            older signal ends does not learn who sent it.
        dead: dead letters. The oldest beyond are dropped, each with the event ``message.dropped`` and a warning.
        idle_rooms: for how long a room without work or a mode keeps its state, 1 s or more. None: for ever: it is your data.

    Durations count in whole seconds, rounded up.

    Raises:
        InvalidRequest: a value cannot be used.
    """

    outbox: int = 1000
    outbox_for: timedelta = 7 * DAY
    events: int = 10_000
    control: int = 10_000
    receipts: timedelta = DAY
    dead: int = 100_000
    idle_rooms: timedelta | None = None

    def __post_init__(self) -> None:
        for name in ("outbox", "events", "control", "dead"):
            _check_count(name, getattr(self, name))
        _check_time("outbox_for", self.outbox_for)
        _check_time("receipts", self.receipts, LEAST_RECEIPTS)
        if self.idle_rooms is not None:
            _check_time("idle_rooms", self.idle_rooms)


def words_of(kept: Retention) -> tuple[str | int, ...]:
    """Names and values as the scripts have them, in entries and seconds; an empty value is for ever."""
    counts = ("outbox", kept.outbox, "events", kept.events, "control", kept.control, "dead", kept.dead)
    idle = "" if kept.idle_rooms is None else _seconds(kept.idle_rooms)
    return (*counts, "outbox_s", _seconds(kept.outbox_for), "receipts_s", _seconds(kept.receipts), "idle_rooms_s", idle)


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**53:
        raise InvalidRequest(f"{name}: want a whole number of 1 or more, got {value!r}")


def _check_time(name: str, value: object, least: timedelta = timedelta(seconds=1)) -> None:
    if not isinstance(value, timedelta) or value < least:
        raise InvalidRequest(f"{name}: want a timedelta of {least.total_seconds():g} s or more, got {value}")


def _seconds(value: timedelta) -> int:
    return math.ceil(value.total_seconds())


@dataclass(frozen=True, slots=True)
class Limit:
    """One of them as Redis has it, in a field ``keep_…`` of the agent's hash."""

    option: str
    field: str  # absent where nobody has said anything, or where it is for ever

    def read(self, value: bytes | None) -> int | None:
        """What is in force, in entries or seconds; None for ever."""
        if value is not None and value.isdigit():
            return int(value)
        return _DEFAULTS[self.field] or None  # type: ignore[return-value]  # a number, or empty

    def said(self, value: int | None) -> str:
        """It as ``--keep`` takes it."""
        if value is None:
            return f"{self.option} for ever"
        if not self.field.endswith("_s"):
            return f"{self.option}={value}"
        unit, of = next((unit, of) for unit, of in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)) if value % of == 0)
        return f"{self.option}={value // of}{unit}"


_WORDS = words_of(Retention())
_DEFAULTS = dict(zip(_WORDS[::2], _WORDS[1::2], strict=True))
LIMITS = (
    Limit("outbox", "outbox"),
    Limit("outbox_for", "outbox_s"),
    Limit("events", "events"),
    Limit("control", "control"),
    Limit("receipts", "receipts_s"),
    Limit("dead", "dead"),
    Limit("idle_rooms", "idle_rooms_s"),
)
