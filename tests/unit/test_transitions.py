"""The room's state machine: every state against every event, and what no sequence of events may bring about."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from greenroom.actors.interruption import Code
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
from greenroom.protocol.store import KEEP_STATE, Settlement
from unit.machines import NEWER, READY, grant, taken


def settle(
    ticket: int,
    how: Settlement,
    *,
    take_next: bool = True,
    error: str = "",
    attempt: int = 1,
    state: bytes = KEEP_STATE,
    closing: bytes = b"",
    code: str = "cancelled",
) -> Settle:
    return Settle(ticket, how, take_next, error, attempt, state, closing, code)


def machine(state: State, *, hooks: bool = False) -> RoomMachine:
    """A machine in that state; its live ticket, if it has one, is 10."""
    room = RoomMachine(READY, hooks=hooks or state is State.CLOSING)
    assert room.start() == [Claim(READY)]
    ways: dict[State, list[Event]] = {
        State.CLAIMING: [],
        State.RUNNING: [Taken(grant(10))],
        State.ABORTING: [Taken(grant(10)), Signal("stop", 10)],
        State.CLOSING: [Taken(grant(10)), Signal("stop", 10), Cancelled(10)],
        State.SETTLING: [Taken(grant(10)), Finished(10, b"reply", b"=")],
        State.WAITING: [taken("backoff", "500")],
        State.ENDED: [taken("empty")],
    }
    for event in ways[state]:
        room.handle(event)
    assert room.state is state
    return room


# What each event does in each state: (effects, the state after). An event that is not listed for a state does nothing there.
EVENTS: dict[str, Callable[[], Event]] = {
    "grant": lambda: Taken(grant(20)),
    "grant aborted by interrupt": lambda: Taken(grant(20, abort="interrupt")),
    "grant aborted by stop": lambda: Taken(grant(20, abort="stop")),
    "empty": lambda: taken("empty"),
    "held": lambda: taken("held"),
    "lost": lambda: taken("lost"),
    "stale": lambda: taken("stale"),
    "released": lambda: taken("released"),
    "settled": lambda: taken("settled"),
    "fenced": lambda: taken("fenced"),
    "superseded": lambda: taken("superseded"),
    "backoff": lambda: taken("backoff", "700"),
    "answered interrupt": lambda: taken("interrupt"),
    "answered stop": lambda: taken("stop"),
    "answered refused": lambda: taken("refused"),
    "finished": lambda: Finished(10, b"reply", b"+state"),
    "finished by an older cycle": lambda: Finished(9, b"reply", b"+state"),
    "failed": lambda: Failed(10, "boom"),
    "rejected": lambda: Failed(10, "never", rejected=True),
    "too new": lambda: Failed(10, "too old", too_new=True),
    "failed by an older cycle": lambda: Failed(9, "boom"),
    "cancelled": lambda: Cancelled(10),
    "cancelled by an older cycle": lambda: Cancelled(9),
    "back-off over": BackoffOver,
    "interrupt": lambda: Signal("interrupt", 10),
    "stop": lambda: Signal("stop", 10),
    "stop of before the cycle": lambda: Signal("stop", 9),
    "pause": lambda: Signal("pause", 10),
    "play": lambda: Signal("play", 10),
    "refused": lambda: Refused(10, "interrupt"),
    "fenced by Redis": lambda: Refused(10, "fenced"),
    "refused of an older cycle": lambda: Refused(9, "stop"),
    "too slow": lambda: TooSlow(10, "detached"),
    "too slow, an older cycle": lambda: TooSlow(9, "detached"),
    "overdue": lambda: Overdue(10, "too long"),
    "overdue, an older cycle": lambda: Overdue(9, "too long"),
    "closed after an interrupt": lambda: Closed(10, "interrupt", b"+state", b"closing"),
    "closed after a stop": lambda: Closed(10, "stop", b"+state", b"closing"),
    "closed, not aborted": lambda: Closed(10, ""),
    "closed, an older cycle": lambda: Closed(9, "interrupt"),
    "lost the room": Lost,
    "a newer entry": lambda: Ready(NEWER),
    "the same entry": lambda: Ready(READY),
    "drain": lambda: Drain(now=False),
    "drain now": lambda: Drain(now=True),
}

DEAD_ENDS = ("empty", "held", "lost", "stale", "released", "settled", "fenced", "superseded")
ENDING: dict[str, tuple[list[Effect], State]] = {word: ([End(word)], State.ENDED) for word in DEAD_ENDS}
GRANTED: dict[str, tuple[list[Effect], State]] = {
    "grant": ([Start(grant(20))], State.RUNNING),
    "grant aborted by interrupt": ([settle(20, "consume", code="not started")], State.SETTLING),
    "grant aborted by stop": ([settle(20, "release", code="not started")], State.SETTLING),
    "backoff": ([Wait(700)], State.WAITING),
}
RELEASED: tuple[list[Effect], State] = ([settle(10, "release")], State.SETTLING)

TABLE: dict[State, dict[str, tuple[list[Effect], State]]] = {
    State.CLAIMING: {
        **ENDING,
        **GRANTED,
        "answered interrupt": ([End("interrupt")], State.ENDED),  # a claim never answers so; it must not hang on it
        "answered stop": ([End("stop")], State.ENDED),
        "answered refused": ([End("refused")], State.ENDED),
    },
    State.RUNNING: {
        "finished": ([Commit(10, b"reply", b"+state", True)], State.SETTLING),
        "failed": ([settle(10, "fail", error="boom")], State.SETTLING),
        "rejected": ([settle(10, "reject", error="never")], State.SETTLING),
        "too new": ([settle(10, "too_new", error="too old")], State.SETTLING),
        "cancelled": ([settle(10, "fail", error="the handler cancelled itself")], State.SETTLING),
        "interrupt": ([Abort(10, "interrupt")], State.ABORTING),
        "stop": ([Abort(10, "stop")], State.ABORTING),
        "refused": ([Abort(10, "interrupt")], State.ABORTING),
        "fenced by Redis": ([Abort(10, "fenced")], State.ABORTING),
        "lost the room": ([Abort(10, "fenced")], State.ABORTING),
        "overdue": ([Abort(10, "overdue")], State.ABORTING),
        "drain now": ([Abort(10, "drain")], State.ABORTING),
    },
    State.ABORTING: {
        "finished": RELEASED,
        "failed": RELEASED,
        "rejected": RELEASED,
        "too new": RELEASED,
        "cancelled": RELEASED,
        "too slow": ([settle(10, "release", code="detached")], State.SETTLING),
    },
    State.CLOSING: {
        "fenced": ([End("fenced")], State.ENDED),
        "closed after an interrupt": ([settle(10, "consume", state=b"+state", closing=b"closing")], State.SETTLING),
        "closed after a stop": RELEASED,
        "closed, not aborted": RELEASED,
    },
    State.SETTLING: {
        **ENDING,
        **GRANTED,
        "answered interrupt": ([settle(10, "consume")], State.SETTLING),
        "answered stop": RELEASED,
        "answered refused": RELEASED,
    },
    State.WAITING: {
        "back-off over": ([Claim(READY)], State.CLAIMING),
        "interrupt": ([Claim(READY)], State.CLAIMING),
        "stop": ([Claim(READY)], State.CLAIMING),
        "stop of before the cycle": ([Claim(READY)], State.CLAIMING),
        "pause": ([Claim(READY)], State.CLAIMING),
        "play": ([Claim(READY)], State.CLAIMING),
        "a newer entry": ([Claim(NEWER)], State.CLAIMING),
        "drain": ([Release(READY)], State.SETTLING),
        "drain now": ([Release(READY)], State.SETTLING),
    },
    State.ENDED: {},
}

ANSWERS = {name for name, make in EVENTS.items() if isinstance(make(), Taken)}
IN_FLIGHT = (State.CLAIMING, State.SETTLING)  # the states in which an answer is awaited; elsewhere none can come


def possible(state: State, name: str) -> bool:
    if state is State.CLOSING and name == "fenced":  # the hook's question is answered so
        return True
    return name not in ANSWERS or state in (*IN_FLIGHT, State.ENDED)


CELLS = [(state, name) for state in State for name in EVENTS if possible(state, name)]


@pytest.mark.parametrize(("state", "name"), CELLS)
def test_every_event_in_every_state(state: State, name: str) -> None:
    room = machine(state)
    effects, after = TABLE[state].get(name, ([], state))
    assert room.handle(EVENTS[name]()) == effects
    assert room.state is after


# Signals in the gaps (rows 7 and 9). ----------------------------------------------------------------------


@pytest.mark.parametrize("state", IN_FLIGHT)
@pytest.mark.parametrize(("mode", "how"), [("interrupt", "consume"), ("stop", "release")])
def test_a_grant_that_a_signal_has_overtaken_is_never_started(state: State, mode: str, how: str) -> None:
    """row 7"""
    room = machine(state)
    assert room.handle(Signal(mode, 20)) == []
    assert room.handle(Taken(grant(20))) == [settle(20, how, code="not started")]  # type: ignore[arg-type]  # a settlement by name


def test_a_grant_after_the_signal_is_started() -> None:
    """row 8"""
    room = machine(State.CLAIMING)
    room.handle(Signal("interrupt", 19))
    assert room.handle(Taken(grant(20))) == [Start(grant(20))]


def test_a_signal_is_not_held_against_the_grant_after_the_one_that_it_hit() -> None:
    """row 8"""
    room = machine(State.CLAIMING)
    room.handle(Signal("stop", 20))
    room.handle(Taken(grant(20)))
    assert room.handle(Taken(grant(21))) == [Start(grant(21))]


def test_an_older_signal_that_comes_late_does_not_hide_a_newer_one() -> None:
    room = machine(State.CLAIMING)
    room.handle(Signal("stop", 20))
    room.handle(Signal("interrupt", 5))
    assert room.handle(Taken(grant(20))) == [settle(20, "release", code="not started")]


def test_a_pause_never_aborts() -> None:
    """row 4"""
    room = machine(State.CLAIMING)
    room.handle(Signal("pause", 20))
    assert room.handle(Taken(grant(20))) == [Start(grant(20))]
    assert room.handle(Signal("pause", 20)) == []


def test_the_first_abort_wins_and_redis_has_the_last_word() -> None:
    """row 9"""
    room = machine(State.RUNNING)
    assert room.handle(Signal("interrupt", 10)) == [Abort(10, "interrupt")]
    assert room.handle(Signal("stop", 10)) == []
    assert room.handle(Cancelled(10)) == [settle(10, "consume")]
    assert room.handle(taken("refused")) == [settle(10, "release")]


def test_a_cycle_that_finished_just_before_its_abort_arrived_is_settled_as_redis_says() -> None:
    room = machine(State.SETTLING)  # its commit is in flight
    assert room.handle(Signal("interrupt", 10)) == []
    assert room.handle(taken("interrupt")) == [settle(10, "consume")]


# Failures, hand-over, drain. --------------------------------------------------------------------------------


def test_a_recorded_failure_crashes_the_room_with_its_error() -> None:
    """row 32"""
    room = machine(State.RUNNING)
    assert room.handle(Failed(10, "boom")) == [settle(10, "fail", error="boom")]
    assert room.handle(taken("failed", "1000")) == [Crash("boom")]
    assert room.state is State.ENDED


def test_the_attempt_goes_with_the_settlement_for_the_back_off() -> None:
    room = machine(State.CLAIMING)
    room.handle(Taken(grant(10, attempt=3)))
    assert room.handle(Failed(10, "boom")) == [settle(10, "fail", error="boom", attempt=3)]


def test_a_fenced_cycle_is_let_go_without_a_settlement() -> None:
    """row 36"""
    room = machine(State.RUNNING)
    room.handle(Lost())
    assert room.handle(Cancelled(10)) == [End("fenced")]


def test_a_fenced_cycle_whose_code_does_not_end_is_left_behind() -> None:
    room = machine(State.RUNNING)
    room.handle(Refused(10, "fenced"))
    assert room.handle(TooSlow(10, "detached")) == [End("fenced")]


@pytest.mark.parametrize("state", [State.CLAIMING, State.SETTLING])
def test_an_entry_that_arrived_while_the_last_was_being_given_back_is_claimed(state: State) -> None:
    """row 26"""
    room = machine(state)
    assert room.handle(Ready(NEWER)) == []
    assert room.handle(taken("empty")) == [Claim(NEWER)]
    assert room.handle(taken("empty")) == [End("empty")]


def test_a_room_that_is_told_to_wait_does_not_when_it_has_a_newer_entry() -> None:
    """row 26: the message that it was to wait for is gone"""
    room = machine(State.CLAIMING)
    assert room.handle(Ready(NEWER)) == []
    assert room.handle(taken("backoff", "500")) == [Claim(NEWER)]


def test_a_draining_room_takes_nothing_after_its_commit() -> None:
    """row 38"""
    room = machine(State.RUNNING)
    assert room.handle(Drain(now=False)) == []
    assert room.handle(Finished(10, b"r", b"=")) == [Commit(10, b"r", b"=", False)]
    room.handle(Ready(NEWER))
    assert room.handle(taken("released")) == [End("released")]


def test_a_draining_room_gives_back_what_it_is_granted() -> None:
    """row 38"""
    room = machine(State.CLAIMING)
    room.handle(Drain(now=False))
    assert room.handle(Taken(grant(20))) == [settle(20, "release", take_next=False, code="not started")]


def test_a_draining_room_does_not_wait_out_a_back_off() -> None:
    """row 38"""
    room = machine(State.CLAIMING)
    room.handle(Drain(now=False))
    assert room.handle(taken("backoff", "500")) == [Release(READY)]
    assert room.handle(taken("ok")) == [End("ok")]


def test_drain_now_refunds_a_running_cycle() -> None:
    """row 10, row 38"""
    room = machine(State.RUNNING)
    assert room.handle(Drain(now=True)) == [Abort(10, "drain")]
    assert room.handle(Cancelled(10)) == [settle(10, "release", take_next=False)]


# Hooks, and cycles that run for too long. ------------------------------------------------------------------


@pytest.mark.parametrize("code", ["cancelled", "killed"])
def test_an_aborted_cycle_of_an_agent_with_hooks_is_closed_before_it_is_settled(code: Code) -> None:
    """row 22"""
    room = machine(State.ABORTING, hooks=True)
    assert room.handle(Cancelled(10, code)) == [Close(10, code)]
    assert room.handle(Closed(10, "stop")) == [settle(10, "release", code=code)]


def test_the_hook_is_told_that_the_code_still_runs() -> None:
    """row 22"""
    room = machine(State.ABORTING, hooks=True)
    assert room.handle(TooSlow(10, "detached")) == [Close(10, "detached")]


@pytest.mark.parametrize("word", ["interrupt", "stop"])
def test_a_cycle_whose_commit_finds_it_aborted_is_closed_too(word: str) -> None:
    """row 7, row 22"""
    room = machine(State.SETTLING, hooks=True)
    assert room.handle(taken(word)) == [Close(10, "cancelled")]


@pytest.mark.parametrize("abort", ["interrupt", "stop"])
def test_a_cycle_that_was_aborted_before_it_began_is_closed_too(abort: str) -> None:
    """row 7, row 22"""
    room = machine(State.CLAIMING, hooks=True)
    assert room.handle(Taken(grant(10, abort=abort))) == [Close(10, "not started")]


@pytest.mark.parametrize("event", [Drain(now=True), Overdue(10, "too long"), Lost()])
def test_what_is_no_signal_is_not_closed(event: Drain | Overdue | Lost) -> None:
    room = machine(State.RUNNING, hooks=True)
    room.handle(event)
    (effect,) = room.handle(Cancelled(10))
    assert not isinstance(effect, Close)


def test_a_cycle_that_ran_for_too_long_is_a_failed_attempt() -> None:
    """row 30"""
    room = machine(State.RUNNING)
    room.handle(Overdue(10, "too long"))
    assert room.handle(Cancelled(10)) == [settle(10, "fail", error="too long")]
    assert room.handle(taken("failed")) == [Crash("too long")]


def test_a_signal_to_a_cycle_that_ran_for_too_long_comes_before_its_failure() -> None:
    """row 11, row 30"""
    room = machine(State.RUNNING)
    room.handle(Overdue(10, "too long"))
    room.handle(Cancelled(10))
    assert room.handle(taken("stop")) == [settle(10, "release")]
