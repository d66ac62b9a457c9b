"""The room's state machine: every state against every event, and what no sequence of events may bring about."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest

from greenroom.actors.transitions import (
    Abort,
    BackoffOver,
    Cancelled,
    Claim,
    Commit,
    Crash,
    Detach,
    Drain,
    Effect,
    End,
    Event,
    Failed,
    Finished,
    Lost,
    Ready,
    Refused,
    Release,
    RoomMachine,
    Settle,
    Signal,
    Start,
    State,
    Taken,
    TooSlow,
    Wait,
)
from greenroom.protocol.records import Message
from greenroom.protocol.store import Answer, Grant

READY, NEWER = "1-0", "2-0"
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def grant(ticket: int, *, attempt: int = 1, abort: str = "") -> Grant:
    message = Message(id=1, room="42", body=None, attempt=attempt, enqueued_at=NOW)
    return Grant(message, ticket, abort, None)


def taken(word: str, detail: str = "") -> Taken:
    return Taken(Answer(word, detail))


def machine(state: State) -> RoomMachine:
    """A machine in that state; its live ticket, if it has one, is 10."""
    room = RoomMachine(READY)
    assert room.start() == [Claim(READY)]
    ways: dict[State, list[Event]] = {
        State.CLAIMING: [],
        State.RUNNING: [Taken(grant(10))],
        State.ABORTING: [Taken(grant(10)), Signal("stop", 10)],
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
    "too slow": lambda: TooSlow(10),
    "too slow, an older cycle": lambda: TooSlow(9),
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
    "grant aborted by interrupt": ([Settle(20, "consume", True, "", 1)], State.SETTLING),
    "grant aborted by stop": ([Settle(20, "release", True, "", 1)], State.SETTLING),
    "backoff": ([Wait(700)], State.WAITING),
}
RELEASED: tuple[list[Effect], State] = ([Settle(10, "release", True, "", 1)], State.SETTLING)

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
        "failed": ([Settle(10, "fail", True, "boom", 1)], State.SETTLING),
        "rejected": ([Settle(10, "reject", True, "never", 1)], State.SETTLING),
        "cancelled": ([Settle(10, "fail", True, "the handler cancelled itself", 1)], State.SETTLING),
        "interrupt": ([Abort(10, "interrupt")], State.ABORTING),
        "stop": ([Abort(10, "stop")], State.ABORTING),
        "refused": ([Abort(10, "interrupt")], State.ABORTING),
        "fenced by Redis": ([Abort(10, "fenced")], State.ABORTING),
        "lost the room": ([Abort(10, "fenced")], State.ABORTING),
        "drain now": ([Abort(10, "drain")], State.ABORTING),
    },
    State.ABORTING: {
        "finished": RELEASED,
        "failed": RELEASED,
        "rejected": RELEASED,
        "cancelled": RELEASED,
        "too slow": ([Detach(10), *RELEASED[0]], State.SETTLING),
    },
    State.SETTLING: {
        **ENDING,
        **GRANTED,
        "answered interrupt": ([Settle(10, "consume", True, "", 1)], State.SETTLING),
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


CELLS = [(state, name) for state in State for name in EVENTS if name not in ANSWERS or state in (*IN_FLIGHT, State.ENDED)]


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
    assert room.handle(Taken(grant(20))) == [Settle(20, how, True, "", 1)]  # type: ignore[arg-type]  # a settlement by name


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
    assert room.handle(Taken(grant(20))) == [Settle(20, "release", True, "", 1)]


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
    assert room.handle(Cancelled(10)) == [Settle(10, "consume", True, "", 1)]
    assert room.handle(taken("refused")) == [Settle(10, "release", True, "", 1)]


def test_a_cycle_that_finished_just_before_its_abort_arrived_is_settled_as_redis_says() -> None:
    room = machine(State.SETTLING)  # its commit is in flight
    assert room.handle(Signal("interrupt", 10)) == []
    assert room.handle(taken("interrupt")) == [Settle(10, "consume", True, "", 1)]


# Failures, hand-over, drain. --------------------------------------------------------------------------------


def test_a_recorded_failure_crashes_the_room_with_its_error() -> None:
    """row 32"""
    room = machine(State.RUNNING)
    assert room.handle(Failed(10, "boom")) == [Settle(10, "fail", True, "boom", 1)]
    assert room.handle(taken("failed", "1000")) == [Crash("boom")]
    assert room.state is State.ENDED


def test_the_attempt_goes_with_the_settlement_for_the_back_off() -> None:
    room = machine(State.CLAIMING)
    room.handle(Taken(grant(10, attempt=3)))
    assert room.handle(Failed(10, "boom")) == [Settle(10, "fail", True, "boom", 3)]


def test_a_fenced_cycle_is_let_go_without_a_settlement() -> None:
    """row 36"""
    room = machine(State.RUNNING)
    room.handle(Lost())
    assert room.handle(Cancelled(10)) == [End("fenced")]


def test_a_fenced_cycle_whose_code_does_not_end_is_left_behind() -> None:
    room = machine(State.RUNNING)
    room.handle(Refused(10, "fenced"))
    assert room.handle(TooSlow(10)) == [Detach(10), End("fenced")]


@pytest.mark.parametrize("state", [State.CLAIMING, State.SETTLING])
def test_an_entry_that_arrived_while_the_last_was_being_given_back_is_claimed(state: State) -> None:
    """row 26"""
    room = machine(state)
    assert room.handle(Ready(NEWER)) == []
    assert room.handle(taken("empty")) == [Claim(NEWER)]
    assert room.handle(taken("empty")) == [End("empty")]


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
    assert room.handle(Taken(grant(20))) == [Settle(20, "release", False, "", 1)]


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
    assert room.handle(Cancelled(10)) == [Settle(10, "release", False, "", 1)]
