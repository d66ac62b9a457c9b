"""The room as a state machine: what has happened goes in, what is to be done comes out. Nothing here waits or talks.

::

    CLAIMING ──grant──▶ RUNNING ──finished, failed──▶ SETTLING ──grant──▶ RUNNING
        │                  │  signal, refusal, drain,     ▲  │
        │ backoff          ▼  overdue                     │  └─ nothing to run ──▶ ENDED
        ▼               ABORTING ──ended, or too slow──▶ CLOSING (the agent's hook, if it has one)
     WAITING ──timer, signal, new entry──▶ CLAIMING

Redis decides: a signal, as a worker hears of it, is only the wake-up to end the cycle. Whether its message is consumed or kept
is the answer of ``settle``. So a signal that comes late, twice or out of turn does no harm, and one that arrives in any state
is honoured in that state: before a grant by comparing its ``upto`` with the ticket, later by ending the cycle.
"""

from __future__ import annotations

from enum import Enum

from ..protocol.store import KEEP_STATE, Grant, Settlement
from .interruption import Code
from .room_events import (
    Abort,
    BackoffOver,
    Cancelled,
    Claim,
    Close,
    Closed,
    Commit,
    Crash,
    Drain,
    Effect,
    End,
    Event,
    Failed,
    Finished,
    Lost,
    Overdue,
    Ready,
    Refused,
    Release,
    Settle,
    Signal,
    Start,
    Taken,
    TooSlow,
    Wait,
)


class State(Enum):
    CLAIMING = "claiming"
    RUNNING = "running"
    ABORTING = "aborting"
    CLOSING = "closing"
    SETTLING = "settling"
    WAITING = "waiting"
    ENDED = "ended"


_SETTLEMENT: dict[str, Settlement] = {"interrupt": "consume", "stop": "release", "drain": "release"}


class RoomMachine:
    """One room's decisions. ``handle`` takes an event and answers the effects, in order.

    ``hooks``: whether its agent is to be asked about a cycle that was aborted.
    """

    def __init__(self, ready: str, *, hooks: bool = False) -> None:
        self._hooks = hooks
        self.state = State.CLAIMING
        self.ready = ready  # the newest entry that the dispatcher has handed over
        self.claimed = ready  # the entry that was claimed last
        self.grant: Grant | None = None
        self.why = ""  # why the live cycle is aborted
        self.draining = False
        self.give_way = False  # whether the room is to go to the end of the line before its next message
        self._failing = ""  # the error that is to be recorded
        self._code: Code = "cancelled"  # what became of the aborted cycle's code
        self._heard: Signal | None = None  # the latest abort signal, for a grant that is still on its way
        self._woken = False  # whether any signal came since the claim, whose answer may be older than it

    def start(self) -> list[Effect]:
        return [Claim(self.claimed)]

    def handle(self, event: Event) -> list[Effect]:  # noqa: C901  # one case an event
        if self.state is State.ENDED:
            return []
        match event:
            case Taken():
                return self._taken(event)
            case Finished():
                return self._finished(event)
            case Failed():
                return self._failed(event)
            case Cancelled():
                return self._cancelled(event)
            case Signal():
                return self._signal(event)
            case Refused():
                return self._refused(event)
            case Closed():
                return self._closed(event)
            case TooSlow():
                return self._too_slow(event)
            case Overdue():
                return self._overdue(event)
            case Ready():
                return self._ready(event)
            case Drain():
                return self._drain(event)
            case Lost():
                return self._abort("fenced") if self.state is State.RUNNING else []
            case BackoffOver():
                return self._claim() if self.state is State.WAITING else []

    def _runs(self, ticket: int) -> bool:
        live = self.state in (State.RUNNING, State.ABORTING)
        return live and self.grant is not None and self.grant.ticket == ticket

    # What Redis answered. -------------------------------------------------------------------------

    def _taken(self, event: Taken) -> list[Effect]:
        if isinstance(event.answer, Grant):
            return self._granted(event.answer)
        word, detail = event.answer.word, event.answer.detail
        if word in ("interrupt", "stop") and self.grant is not None:
            return self._close(word)
        if word == "refused" and self.grant is not None:  # told to interrupt what Redis does not hold for interrupted
            return self._settle("release")
        if word == "failed":
            self.state = State.ENDED
            return [Crash(self._failing)]
        if word == "backoff":
            if self.draining:
                self.state = State.SETTLING
                return [Release(self.claimed)]
            if self._woken or self.ready != self.claimed:
                return self._claim()  # as in WAITING: what it is to wait for may be gone
            self.state = State.WAITING
            return [Wait(int(detail))]
        return self._let_go(word)

    def _granted(self, grant: Grant) -> list[Effect]:
        self.grant, self.why, self._failing, self._code = grant, "", "", "not started"
        heard, self._heard = self._heard, None
        if grant.abort:
            return self._close(grant.abort)
        if heard is not None and grant.ticket <= heard.upto:
            return self._close(heard.mode)
        if self.draining:
            return self._settle("release")
        self.state, self._code = State.RUNNING, "cancelled"
        return [Start(grant)]

    def _let_go(self, why: str) -> list[Effect]:
        self.grant = None
        if self.ready != self.claimed and not self.draining:
            return self._claim()
        self.state = State.ENDED
        return [End(why)]

    def _claim(self) -> list[Effect]:
        self.state, self.claimed, self._woken = State.CLAIMING, self.ready, False
        return [Claim(self.claimed)]

    def _settle(self, how: Settlement, error: str = "", *, state: bytes = KEEP_STATE, closing: bytes = b"") -> list[Effect]:
        assert self.grant is not None
        self.state = State.SETTLING
        ticket, attempt = self.grant.ticket, self.grant.message.attempt
        return [Settle(ticket, how, self._takes_next(), error, attempt, state, closing, self._code)]

    def _takes_next(self) -> bool:
        return not (self.draining or self.give_way)

    # What the agent's code did. -------------------------------------------------------------------

    def _finished(self, event: Finished) -> list[Effect]:
        if not self._runs(event.ticket):
            return []
        if self.state is State.ABORTING:
            return self._aborted()
        self.state = State.SETTLING
        return [Commit(event.ticket, event.reply, event.state, self._takes_next())]

    def _failed(self, event: Failed) -> list[Effect]:
        if not self._runs(event.ticket):
            return []
        if self.state is State.ABORTING:
            return self._aborted()
        if event.too_new:
            return self._settle("too_new", event.error)
        self._failing = event.error
        return self._settle("reject" if event.rejected else "fail", event.error)

    def _cancelled(self, event: Cancelled) -> list[Effect]:
        if not self._runs(event.ticket):
            return []
        self._code = event.code
        if self.state is State.ABORTING:
            return self._aborted()
        return self._failed(Failed(event.ticket, "the handler cancelled itself"))

    def _too_slow(self, event: TooSlow) -> list[Effect]:
        """The code was left behind, and its runner knows what became of it."""
        if self.state is not State.ABORTING or not self._runs(event.ticket):
            return []
        self._code = event.code
        return self._aborted()

    def _overdue(self, event: Overdue) -> list[Effect]:
        if self.state is not State.RUNNING or not self._runs(event.ticket):
            return []
        self._failing = event.error
        return self._abort("overdue")

    def _aborted(self) -> list[Effect]:
        if self.why == "fenced":
            return self._let_go("fenced")
        if self.why == "overdue":
            return self._settle("fail", self._failing)
        return self._close(self.why)

    def _close(self, why: str) -> list[Effect]:
        """The cycle has ended, aborted: its agent may have something to say to it."""
        assert self.grant is not None
        if why not in ("interrupt", "stop") or not self._hooks:
            return self._settle(_SETTLEMENT[why])
        self.state = State.CLOSING
        return [Close(self.grant.ticket, self._code)]

    def _closed(self, event: Closed) -> list[Effect]:
        if self.state is not State.CLOSING or self.grant is None or self.grant.ticket != event.ticket:
            return []
        if event.mode == "interrupt":
            return self._settle("consume", state=event.state, closing=event.closing)
        return self._settle("release")  # a stop leaves no trace in the room's state; told to end for nothing, it begins anew

    # What came from outside. ----------------------------------------------------------------------

    def _abort(self, why: str) -> list[Effect]:
        assert self.grant is not None
        self.state, self.why = State.ABORTING, why
        return [Abort(self.grant.ticket, why)]

    def _signal(self, event: Signal) -> list[Effect]:
        if self.state is State.WAITING:
            return self._claim()  # the message may be gone, or the room held: the answer tells
        self._woken = True
        if event.mode not in ("interrupt", "stop"):
            return []
        if self.state is State.RUNNING:
            assert self.grant is not None
            if self.grant.ticket <= event.upto:
                return self._abort(event.mode)
        elif self.state in (State.CLAIMING, State.SETTLING) and (self._heard is None or self._heard.upto <= event.upto):
            self._heard = event
        return []

    def _refused(self, event: Refused) -> list[Effect]:
        if self.state is not State.RUNNING or not self._runs(event.ticket):
            return []
        return self._abort(event.why)

    def _ready(self, event: Ready) -> list[Effect]:
        self.ready = event.ready
        return self._claim() if self.state is State.WAITING and self.ready != self.claimed else []

    def _drain(self, event: Drain) -> list[Effect]:
        self.draining = True
        if self.state is State.WAITING:
            self.state = State.SETTLING
            return [Release(self.claimed)]
        if self.state is State.RUNNING and event.now:
            return self._abort("drain")
        return []
