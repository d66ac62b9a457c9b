"""The room's state machine under random events: what no sequence of them may bring about."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from greenroom.actors.room_events import (
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
from greenroom.actors.transitions import RoomMachine, State
from unit.machines import READY, grant, taken

IN_FLIGHT = (State.CLAIMING, State.SETTLING)  # the states in which an answer is awaited; elsewhere none can come
CODE_ENDS = ["finished", "failed", "rejected", "cancelled", "late"]
SIGNALS = ["interrupt", "stop", "pause", "play"]
OTHERS = ["backoff-over", "refused", "too-slow", "overdue", "closed", "lost", "drain", "drain-now", "ready"]
ACTS = st.sampled_from(["decide", "answer", *CODE_ENDS, *SIGNALS, *OTHERS])
WORDS = st.sampled_from(["grant", "aborted grant", "backoff", "empty", "held", "lost", "interrupt", "stop", "fenced", "failed"])


@dataclass
class World:
    """What surrounds a machine: it answers its operations, and keeps count of what it does."""

    clock: int = 0
    hooks: bool = False
    in_flight: Effect | None = None
    decided: Taken | None = None  # what Redis has decided about it; the answer is still on its way
    running: int | None = None  # the ticket whose code runs
    ended: bool = False
    crashed: bool = False
    granted: list[int] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    heard: int = 0  # the newest clock that an abort signal covered
    entries: int = 1

    def __post_init__(self) -> None:
        self.machine = RoomMachine(READY, hooks=self.hooks)

    def handle(self, event: Event) -> None:
        was_ended = self.ended
        effects = self.machine.handle(event)
        assert not (was_ended and effects), "effects after the end"
        for effect in effects:
            self.act(effect)
        assert self.ended == (self.machine.state is State.ENDED)
        waits = self.machine.state in IN_FLIGHT
        assert waits == (self.in_flight is not None), "an operation is in flight exactly while one is awaited"

    def act(self, effect: Effect) -> None:
        assert not self.ended, f"{effect} after the end"
        match effect:
            case Claim() | Commit() | Settle() | Release():
                assert self.in_flight is None, f"{effect} while {self.in_flight} is in flight"
                assert self.running is None, f"{effect} while the code of {self.running} runs"
                self.in_flight = effect
            case Start(granted):
                assert self.running is None
                assert granted.ticket == self.granted[-1]
                assert granted.ticket not in self.started
                assert granted.ticket > self.heard, "a signal had overtaken this grant"
                assert not self.machine.draining
                self.started.append(granted.ticket)
                self.running = granted.ticket
            case Abort(ticket):
                assert ticket == self.running
            case Close(ticket):
                assert self.machine.state is State.CLOSING
                assert self.in_flight is None
                assert self.running is None, "the hook would run beside the code"
                assert ticket == self.granted[-1]
            case End() | Crash():
                assert self.in_flight is None
                assert self.running is None, "the room ended while its code ran"
                self.ended, self.crashed = True, isinstance(effect, Crash)
            case Wait():
                assert self.in_flight is None
                assert self.running is None

    def decide(self, word: str) -> None:
        """Redis decides; nobody knows yet."""
        asked = self.in_flight
        if asked is None or self.decided is not None:
            return
        if isinstance(asked, Release):
            self.decided = taken("ok" if word == "grant" else "lost")
        elif word in ("grant", "aborted grant"):
            self.decided = self.grant(asked, "stop" if word == "aborted grant" else "")
        elif word in ("interrupt", "stop") and isinstance(asked, Claim):
            self.decided = taken("held")
        elif word == "failed" and not (isinstance(asked, Settle) and asked.how == "fail"):
            self.decided = taken("empty")
        else:
            self.decided = taken(word, "500" if word == "backoff" else "")

    def grant(self, asked: Effect, abort: str) -> Taken:
        if isinstance(asked, Commit | Settle) and not asked.take_next:
            return taken("released")
        self.clock += 1
        self.granted.append(self.clock)
        return Taken(grant(self.clock, abort=abort))

    def answer(self, word: str) -> None:
        self.decide(word)
        if self.decided is not None:
            event, self.decided, self.in_flight = self.decided, None, None
            self.handle(event)

    def ends(self, act: str) -> None:
        """The code ends, or ended long ago (``late``)."""
        if act == "late":
            self.handle(Finished(0, b"", b"="))
        elif self.running is not None:
            ticket, self.running = self.running, None
            ended: dict[str, Event] = {
                "finished": Finished(ticket, b"", b"="),
                "failed": Failed(ticket, "boom"),
                "rejected": Failed(ticket, "never", rejected=True),
                "cancelled": Cancelled(ticket),
            }
            self.handle(ended[act])

    def do(self, act: str, word: str) -> None:
        ticket = self.granted[-1] if self.granted else 0
        if act in ("decide", "answer"):
            getattr(self, act)(word)
        elif act in CODE_ENDS:
            self.ends(act)
        elif act in SIGNALS:
            if act in ("interrupt", "stop") and not self.ended:
                self.heard = self.clock
            self.handle(Signal(act, self.clock))
        elif act == "too-slow":
            if self.running is not None and self.machine.state is State.ABORTING:
                self.running = None  # left behind
                self.handle(TooSlow(ticket, "detached"))
        elif act == "ready":
            if not self.ended:
                self.entries += 1
            self.handle(Ready(f"{self.entries}-0"))
        else:
            others: dict[str, Event] = {
                "backoff-over": BackoffOver(),
                "refused": Refused(ticket, "interrupt"),
                "overdue": Overdue(ticket, "too long"),
                "closed": Closed(ticket, "interrupt" if word == "interrupt" else "stop"),
                "lost": Lost(),
                "drain": Drain(now=False),
                "drain-now": Drain(now=True),
            }
            self.handle(others[act])


@settings(max_examples=500)
@given(st.lists(st.tuples(ACTS, WORDS), max_size=60), st.booleans())
def test_whatever_happens_one_operation_at_a_time_and_each_grant_started_once_at_the_most(
    acts: list[tuple[str, str]], hooks: bool
) -> None:
    """row 7, row 20"""
    world = World(hooks=hooks)
    for effect in world.machine.start():
        world.act(effect)
    for act, word in acts:
        world.do(act, word)
    # From wherever it is, a room that is told to drain, whose code ends and whose operations are answered, ends.
    world.do("drain-now", "")
    for _ in range(4):
        world.ends("cancelled")
        world.do("closed", "")
        world.answer("empty")
    assert world.ended


@settings(max_examples=300)
@given(st.lists(st.tuples(ACTS, WORDS), max_size=40))
def test_no_entry_that_was_handed_over_is_forgotten(acts: list[tuple[str, str]]) -> None:
    """row 26: unless it drains or crashes, a room does not end before it has claimed the newest entry."""
    world = World()
    for effect in world.machine.start():
        world.act(effect)
    for act, word in acts:
        if not act.startswith("drain"):
            world.do(act, word)
    if world.ended and not world.crashed:
        assert world.machine.claimed == f"{world.entries}-0"
