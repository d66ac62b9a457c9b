"""What an agent is told of a cycle that was aborted, when it is, and what it may do then (row 22)."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py

from greenroom import Backoff, Client, Interruption, Kind, Mode, Output, Phase, Receipt
from greenroom.protocol.keys import Keys
from integration.agents import (
    LONG,
    WAIT_S,
    Director,
    Run,
    StoreGate,
    cut_off,
    events,
    settled,
    wait_event,
    wait_for,
    wait_heard,
)
from integration.conftest import Running
from integration.replays import BOTH, Hanging, Hooks, step

ABORTS = pytest.mark.parametrize("mode", [Mode.INTERRUPT, Mode.STOP])
HOOKS = pytest.mark.parametrize("plain", [False, True], ids=["coroutine hook", "plain hook"])
SHORT = timedelta(milliseconds=200)


def abort(client: Client, mode: Mode, **options: Any) -> Receipt:
    [receipt] = getattr(client, mode)("1", **options)
    assert isinstance(receipt, Receipt)
    return receipt


def stream(client: Client, run: Run) -> list[Output]:
    """All outputs of the run, once it has been settled."""
    settled(client, "1", run.ticket)
    return [output for output in client.outputs("1") if output.ticket == run.ticket]


# What it is told. -----------------------------------------------------------------------------------------------


@BOTH
@HOOKS
@ABORTS
def test_a_hook_is_told_all_of_the_signal_and_of_what_the_cycle_had_done(
    mode: Mode, plain: bool, threaded: bool, running: Running, director: Director, client: Client
) -> None:
    hooks, before, now = Hooks(plain=plain), Hanging(threaded), Hanging(threaded)
    running(director.agent(threaded=threaded, abort_timeout=LONG, **hooks.options))
    client.send("1", "wait")
    run = director.run("1")
    step(run, "looked-up", lambda: "found")
    before.begin(run, "first")
    client.stop("1")
    before.go.set()
    hooks.wait()
    client.play("1")
    replay = director.run("1")
    replay.send("one")
    replay.send({"two": 2})
    assert step(replay, "looked-up", lambda: "again") == "found"
    now.begin(replay, "second")
    receipt = abort(client, mode, reason="because", by="ann")
    now.go.set()
    told = hooks.wait(2)
    assert (told.mode, told.by, told.reason, told.cid, told.at) == (mode, "ann", "because", receipt.cid, receipt.at)
    assert (told.message.id, told.message.body, told.message.attempt) == (receipt.message, "wait", 1)
    assert told.sent == ("one", {"two": 2})
    assert (told.done, told.begun, told.unknown) == (("looked-up",), ("second",), ("first",))
    assert told.code == "cancelled"
    assert timedelta(0) <= told.ran < timedelta(seconds=WAIT_S)


def test_a_hook_is_told_of_this_cycles_chunks_only(running: Running, director: Director, client: Client) -> None:
    hooks = Hooks()
    running(director.agent(**hooks.options))
    client.send("1", "wait")
    run = director.run("1")
    run.send("of the first try")
    run.fail()
    second = director.run("1")
    second.send("of the second")
    client.interrupt("1")
    assert (hooks.wait().sent, hooks.wait().message.attempt) == (("of the second",), 2)


@ABORTS
def test_a_hook_is_told_that_the_code_runs_on_when_it_was_left_behind(
    mode: Mode, running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 27: and so is the event"""
    hooks, begun, go = Hooks(), threading.Event(), threading.Event()
    running(director.agent(threaded=True, abort_timeout=SHORT, **hooks.options))
    client.send("1", "wait")

    def hang(_: object) -> None:
        begun.set()
        wait_for(go, "the test is over")

    director.run("1").begin(hang)
    wait_for(begun, "the handler hangs")
    abort(client, mode)
    assert hooks.wait().code == "detached"
    go.set()
    ended = "cycle.interrupted" if mode is Mode.INTERRUPT else "cycle.stopped"
    assert wait_event(redis, agent, ended, room="1")["code"] == "detached"


@ABORTS
@pytest.mark.parametrize("told", ["by the signal", "by the grant"])
def test_a_hook_is_called_for_an_abort_that_came_before_the_start(
    told: str, mode: Mode, running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    hooks = Hooks()
    system = running(director.agent(**hooks.options))
    hold = StoreGate.of(system).after("claim")
    client.send("1", "wait")
    hold.wait()
    if told == "by the signal":
        abort(client, mode)
        wait_heard(system)
    else:
        cut_off(system)
        abort(client, mode)
    hold.release(again=told == "by the grant")  # as is done when the connection was lost: Redis then answers what it knows now
    heard = hooks.wait()
    assert (heard.mode, heard.code, heard.sent, heard.done, heard.begun) == (mode, "not started", (), (), ())
    ended = "cycle.interrupted" if mode is Mode.INTERRUPT else "cycle.stopped"
    assert wait_event(redis, agent, ended, room="1")["code"] == "not started"
    assert director.runs == []


@ABORTS
def test_a_hook_is_called_when_only_the_commit_finds_the_abort(
    mode: Mode, running: Running, director: Director, client: Client
) -> None:
    hooks = Hooks()
    system = running(director.agent(**hooks.options))
    cut_off(system)
    hold = StoreGate.of(system).before("commit")
    client.send("1", "wait")
    run = director.run("1")
    run.send("all of it")
    run.finish("too late")
    hold.wait()
    abort(client, mode)
    hold.release()
    told = hooks.wait()
    assert (told.mode, told.sent, told.code) == (mode, ("all of it",), "cancelled")
    assert [output.kind for output in stream(client, run)] == [Kind.CHUNK, Kind.ABORTED]


@ABORTS
def test_a_hook_is_called_when_the_handler_raises_at_the_moment_of_the_abort(
    mode: Mode, running: Running, director: Director, client: Client
) -> None:
    hooks = Hooks()
    hold = StoreGate.of(running(director.agent(max_attempts=1, **hooks.options))).before("settle")
    client.send("1", "wait")
    run = director.run("1")
    run.fail(RuntimeError("at that moment"))
    hold.wait()  # the failure is on its way to Redis
    abort(client, mode)
    hold.release()
    assert hooks.wait().mode == mode
    assert stream(client, run)[-1].kind is Kind.ABORTED
    assert list(client.dead_letters()) == []


def test_a_hook_is_called_when_a_shield_ends_with_a_cycle_that_failed(
    running: Running, director: Director, client: Client
) -> None:
    """row 21: the interrupt had been deferred"""
    hooks = Hooks()
    running(director.agent(interruptible=False, **hooks.options))
    client.send("1", "wait")
    run = director.run("1")
    receipt = abort(client, Mode.INTERRUPT, reason="later")
    run.fail()
    told = hooks.wait()
    assert (told.mode, told.reason, told.cid) == (Mode.INTERRUPT, "later", receipt.cid)


# What it may do. ------------------------------------------------------------------------------------------------


@BOTH
@HOOKS
def test_what_on_interrupt_changes_is_committed_as_the_message_is_consumed_and_the_next_message_finds_it(
    plain: bool, threaded: bool, running: Running, director: Director, client: Client
) -> None:
    hooks = Hooks(lambda told, state: state.update(was_saying=list(told.sent), seen=dict(state)), plain=plain)
    agent_class = director.agent(threaded=threaded, **hooks.options)
    system = running(agent_class)
    client.send("1", "wait")
    first = director.run("1")
    first.do(lambda cycle: cycle.state.update(n=1))
    first.finish()
    client.send("1", "wait")
    client.send("1", "wait")
    second = director.run("1")
    second.do(lambda cycle: cycle.state.update(n=2, lost=True))
    second.send("I was")
    client.interrupt("1")
    expected = {"n": 1, "was_saying": ["I was"], "seen": {"n": 1}}
    assert director.run("1").do(lambda cycle: dict(cycle.state)) == expected
    system.stop(timedelta(0))
    running(agent_class)  # which knows of the room what Redis does
    assert director.run("1").do(lambda cycle: dict(cycle.state)) == expected


@HOOKS
def test_what_on_interrupt_returns_is_the_cycles_last_chunk(
    plain: bool, running: Running, director: Director, client: Client
) -> None:
    """row 23: numbered as the others"""
    running(director.agent(**Hooks(lambda told, _: "sorry", plain=plain).options))
    client.send("1", "wait")
    run = director.run("1")
    run.send("I was")
    client.interrupt("1")
    said = [(output.seq, output.kind, output.body) for output in stream(client, run)]
    assert said == [(1, Kind.CHUNK, "I was"), (2, Kind.CHUNK, "sorry"), (3, Kind.ABORTED, None)]


def test_a_stop_leaves_no_trace_of_its_hook_in_the_room(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    def trace(told: Interruption, state: dict[str, Any]) -> str:
        state.update(stopped=True)
        return "never sent"

    hooks = Hooks(trace)
    running(director.agent(**hooks.options))
    client.send("1", "wait")
    run = director.run("1")
    client.stop("1")
    assert [output.kind for output in stream(client, run)] == [Kind.ABORTED]
    assert not redis.exists(keys.state("1"))
    client.play("1")
    replay = director.run("1")
    assert (replay.message.id, replay.attempt, replay.do(lambda cycle: dict(cycle.state))) == (run.message.id, 1, {})


# When it is not called, and what it does not disturb. -----------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.INTERRUPT, Mode.STOP])
def test_an_agent_may_have_one_hook_only(mode: Mode, running: Running, director: Director, client: Client) -> None:
    hooks, other = Hooks(), "on_stop" if mode is Mode.INTERRUPT else "on_interrupt"
    running(director.agent(**{other: hooks.options[other]}))
    client.send("1", "wait")
    run = director.run("1")
    abort(client, mode)
    assert stream(client, run)[-1].kind is Kind.ABORTED
    assert hooks.told == []


def test_a_shutdown_calls_no_hook(running: Running, director: Director, client: Client) -> None:
    hooks = Hooks()
    system = running(director.agent(**hooks.options))
    client.send("1", "wait")
    run = director.run("1")
    system.stop(timedelta(0))
    assert [output.mode for output in stream(client, run)] == ["release"]
    assert hooks.told == []
    assert client.status("1").phase is Phase.QUEUED


def test_a_cycle_that_runs_too_long_calls_no_hook(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 30"""
    hooks = Hooks()
    running(director.agent(max_attempts=1, max_cycle=SHORT, **hooks.options))
    client.send("1", "wait")
    wait_event(redis, agent, "message.dead", room="1")
    assert hooks.told == []


def test_an_interrupt_of_a_message_of_which_no_cycle_runs_calls_no_hook(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """It waits for its retry: its cycle has ended, and was not aborted."""
    hooks = Hooks()
    running(director.agent(retry=Backoff(first=timedelta(minutes=1)), **hooks.options))
    client.send("1", "wait")
    director.run("1").fail()
    wait_event(redis, agent, "cycle.failed", room="1")
    client.interrupt("1")
    assert events(redis, agent, "cycle.interrupted", room="1")[0]["code"] == ""
    assert client.ask("1", "next") == "next"
    assert hooks.told == []


@pytest.mark.parametrize("hooked", [True, False], ids=["with a hook", "without"])
def test_the_time_that_an_aborted_cycle_and_its_hook_may_take_ends_with_them(
    hooked: bool, running: Running, director: Director, client: Client
) -> None:
    """The next cycle of the room has no part in it."""
    hooks = Hooks().options if hooked else {}
    running(director.agent(**{**hooks, "abort_timeout": SHORT, "hook_timeout": SHORT}))
    client.send("1", "wait")
    client.send("1", "wait")
    director.run("1")
    client.interrupt("1")
    following = director.run("1")
    assert not following.cancelled.wait(3 * SHORT.total_seconds())
    following.finish("done")
    assert stream(client, following)[-1].body == "done"
