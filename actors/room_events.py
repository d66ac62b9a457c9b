"""What happens to a room (events), and what its state machine answers is to be done (effects)."""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol.store import KEEP_STATE, Answer, Grant, Settlement
from .interruption import Code
from .mailbox import Control

# Events. ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Taken:
    """The store's answer to the claim, commit, settle or release in flight."""

    answer: Grant | Answer


@dataclass(frozen=True, slots=True)
class Finished:
    """The agent's code has returned."""

    ticket: int
    reply: bytes
    state: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """The agent's code has raised; ``rejected`` when it says that no try will help, ``too_new`` when none of this worker will:
    it is of an older version than what it found.
    """

    ticket: int
    error: str
    rejected: bool = False
    too_new: bool = False


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The agent's code has ended because it was told to, or was kept from beginning."""

    ticket: int
    code: Code = "cancelled"


@dataclass(frozen=True, slots=True)
class Closed:
    """The hook for an aborted cycle has ended. ``mode`` is how Redis has it aborted; empty when it has not."""

    ticket: int
    mode: str
    state: bytes = KEEP_STATE
    closing: bytes = b""


@dataclass(frozen=True, slots=True)
class BackoffOver:
    """The retry time has come, and there is a slot."""


class Signal(Control):
    """An applied signal of the control stream. ``upto`` is the agent's clock at that instant; 0 wakes waiting rooms only."""

    __slots__ = ("mode", "upto")

    def __init__(self, mode: str, upto: int) -> None:
        self.mode = mode
        self.upto = upto


class Refused(Control):
    """Redis refused an effect of the cycle: ``interrupt``, ``stop`` or ``fenced``."""

    __slots__ = ("ticket", "why")

    def __init__(self, ticket: int, why: str) -> None:
        self.ticket = ticket
        self.why = why


class TooSlow(Control):
    """An aborted cycle's code has not ended within its time, and was left behind or killed."""

    __slots__ = ("code", "ticket")

    def __init__(self, ticket: int, code: Code) -> None:
        self.ticket = ticket
        self.code = code


class Overdue(Control):
    """A cycle has run for longer than its agent allows."""

    __slots__ = ("error", "ticket")

    def __init__(self, ticket: int, error: str) -> None:
        self.ticket = ticket
        self.error = error


class Lost(Control):
    """The room is not this worker's any more: its lease had run out, and another has taken over."""

    __slots__ = ()


class Ready(Control):
    """The dispatcher was handed an entry of this room (again, or a newer one)."""

    __slots__ = ("ready",)

    def __init__(self, ready: str) -> None:
        self.ready = ready


class Drain(Control):
    """Take no more work; ``now``: give back what runs, too."""

    __slots__ = ("now",)

    def __init__(self, *, now: bool) -> None:
        self.now = now


Report = Finished | Failed | Cancelled | Closed
Event = Taken | Report | BackoffOver | Signal | Refused | TooSlow | Overdue | Lost | Ready | Drain

# Effects. --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    ready: str


@dataclass(frozen=True, slots=True)
class Start:
    grant: Grant


@dataclass(frozen=True, slots=True)
class Abort:
    """Tell the cycle's code to end, and watch how long it takes."""

    ticket: int
    why: str


@dataclass(frozen=True, slots=True)
class Close:
    """Ask Redis how the cycle was aborted, and run the agent's hook for that."""

    ticket: int
    code: Code


@dataclass(frozen=True, slots=True)
class Commit:
    ticket: int
    reply: bytes
    state: bytes
    take_next: bool


@dataclass(frozen=True, slots=True)
class Settle:
    ticket: int
    how: Settlement
    take_next: bool
    error: str = ""
    attempt: int = 0
    state: bytes = KEEP_STATE
    closing: bytes = b""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    ready: str


@dataclass(frozen=True, slots=True)
class Wait:
    delay_ms: int


@dataclass(frozen=True, slots=True)
class End:
    """Nothing is left to do: the room leaves memory."""

    why: str


@dataclass(frozen=True, slots=True)
class Crash:
    """The failure is recorded; let the actor fail, so that its supervisor starts a new one."""

    error: str


Effect = Claim | Start | Abort | Close | Commit | Settle | Release | Wait | End | Crash
