"""What interrupt, stop, pause and play do to a cycle in flight, to its message, to the next ones and to the room."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest
import redis as redis_py

from greenroom import Client, Interrupted, Kind, Mode, Outcome, Phase
from greenroom.protocol.keys import Keys
from integration.agents import Director, Run, StoreGate, events, live_run, wait_event, wait_output
from integration.conftest import Running

BOTH = pytest.mark.parametrize("threaded", [False, True], ids=["coroutine", "function"])


def story(client: Client, room: str) -> list[tuple[Kind, int, Any]]:
    """Kind, message and body (of an aborted cycle: the signal's mode) of all that a room has sent."""
    return [(output.kind, output.message, output.mode or output.body) for output in client.outputs(room)]


def is_reply_to(message: int) -> Any:
    """A condition on outputs."""
    return lambda output: output.kind is Kind.REPLY and output.message == message


def in_background(call: Any, *args: Any) -> Future[Any]:
    """Call it in a thread; the future has its answer or error."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args))
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def pass_by(client: Client) -> None:
    """Have another room's message answered: what was to run in other rooms before it has been handed to this worker."""
    assert client.ask("passer-by", "hello") == "hello"


# Interrupt. ----------------------------------------------------------------------------------------------


@BOTH
def test_interrupt_ends_the_cycle_and_consumes_its_message_and_the_next_one_runs(
    threaded: bool, running: Running, director: Director, client: Client
) -> None:
    """row 1"""
    running(director.agent(threaded=threaded))
    first, second = client.send("1", "wait"), client.send("1", "next")
    run = director.run("1")
    run.send("some of it")
    [receipt] = client.interrupt("1", reason="enough")
    assert (receipt.room, receipt.mode, receipt.outcome, receipt.message) == ("1", Mode.INTERRUPT, Outcome.APPLIED, first)
    assert (receipt.by, receipt.reason) == ("test", "enough")
    run.wait_cancelled()
    wait_output(client, "1", is_reply_to(second))
    assert story(client, "1") == [
        (Kind.CHUNK, first, "some of it"),
        (Kind.ABORTED, first, "interrupt"),
        (Kind.REPLY, second, "next"),
    ]
    assert client.ask("1", "last") == "last"
    assert director.bodies("1") == ["wait", "next", "last"]


def test_whoever_asked_learns_that_the_message_was_interrupted(running: Running, director: Director, client: Client) -> None:
    """row 1"""
    running(director.agent())
    asked = in_background(client.ask, "1", "wait")
    director.run("1")
    client.interrupt("1")
    with pytest.raises(Interrupted):
        asked.result(30)


def test_an_interrupted_message_is_not_replayed_by_a_worker_that_starts_later(
    running: Running, director: Director, client: Client
) -> None:
    """row 1"""
    system = running(director.agent())
    client.send("1", "wait")
    director.run("1")
    client.interrupt("1")
    system.stop()
    running(director.agent())
    assert client.ask("1", "next") == "next"
    assert director.bodies("1") == ["wait", "next"]


# Stop and play. ------------------------------------------------------------------------------------------


@BOTH
def test_stop_ends_the_cycle_keeps_its_message_and_holds_the_room_until_play_replays_it_first(
    threaded: bool, running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """rows 2 and 3"""
    running(director.agent(threaded=threaded))
    kept = client.send("1", "wait")
    run = director.run("1")
    run.send("some of it")
    [receipt] = client.stop("1", reason="hold on")
    assert (receipt.mode, receipt.outcome, receipt.message) == (Mode.STOP, Outcome.APPLIED, kept)
    run.wait_cancelled()
    wait_event(redis, agent, "cycle.stopped", room="1")

    later = [client.send("1", f"later {n}") for n in range(3)]
    pass_by(client)
    status = client.status("1")
    assert status.hold is not None
    assert (status.hold.mode, status.hold.by, status.hold.reason) == (Mode.STOP, "test", "hold on")
    assert (status.phase, status.waiting, status.processing, status.ticket) == (Phase.HELD, 4, kept, None)
    assert director.count("1") == 1

    [played] = client.play("1")
    assert played.outcome is Outcome.APPLIED
    replay = director.run("1")
    assert (replay.message.id, replay.attempt) == (kept, 1)
    assert replay.ticket > run.ticket
    replay.finish("done")
    wait_output(client, "1", is_reply_to(later[-1]))
    assert story(client, "1") == [
        (Kind.CHUNK, kept, "some of it"),
        (Kind.ABORTED, kept, "stop"),
        (Kind.REPLY, kept, "done"),
        *((Kind.REPLY, message, f"later {n}") for n, message in enumerate(later)),
    ]
    assert client.status("1").hold is None


def test_whoever_asked_gets_the_reply_of_the_replay(running: Running, director: Director, client: Client) -> None:
    """row 3"""
    running(director.agent())
    asked = in_background(client.ask, "1", "wait")
    run = director.run("1")
    run.send("lost ")
    client.stop("1")
    client.play("1")
    replay = director.run("1")
    replay.send("found ")
    replay.send("again")
    replay.finish()
    assert asked.result(30) == "found again"


def test_play_returns_while_the_replay_is_under_way_and_a_stop_then_ends_it(
    running: Running, director: Director, client: Client
) -> None:
    """row 3: nothing lets this replay end but the stop, so neither play nor stop waits for it"""
    running(director.agent())
    kept = client.send("1", "wait")
    director.run("1")
    client.stop("1")
    client.play("1")
    replay = director.run("1")
    [receipt] = client.stop("1")
    assert (receipt.outcome, receipt.message) == (Outcome.APPLIED, kept)
    replay.wait_cancelled()


def test_a_stop_right_after_play_is_applied_at_once_wherever_the_replay_is_by_then(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 3: a stop after none to a few round trips hits the replay before its claim, while it is claimed, and while it runs"""
    running(director.agent())
    kept = client.send("1", "wait")
    director.run("1")
    client.stop("1")
    for n in range(40):
        client.play("1")
        for _ in range(n % 5):
            client.status("1")  # takes a fraction of a millisecond
        [receipt] = client.stop("1")
        assert receipt.outcome is Outcome.APPLIED
        status = client.status("1")
        assert status.hold is not None
        assert status.abort == ("stop" if status.ticket else None)
    client.play("1")
    replay = live_run(director, client, "1")
    assert (replay.message.id, replay.attempt) == (kept, 1)
    replay.finish("done")
    wait_output(client, "1", is_reply_to(kept))
    for run in director.runs:
        run.wait_ended()


def test_a_replay_begins_at_once_although_the_aborted_code_still_runs_in_another_room(
    running: Running, director: Director, client: Client
) -> None:
    """row 3: play waits neither for its own room's replay nor for another room's"""
    running(director.agent())
    for room in ("1", "2"):
        client.send(room, "wait")
        director.run(room)
    client.stop("1", "2")
    client.play("1")
    first = director.run("1")
    client.play("2")
    second = director.run("2")
    for run in (first, second):
        run.finish()


# Pause. --------------------------------------------------------------------------------------------------


@BOTH
def test_pause_lets_the_cycle_finish_and_commit_and_then_holds_the_room(
    threaded: bool, running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 4"""
    running(director.agent(threaded=threaded))
    first, second = client.send("1", "wait"), client.send("1", "next")
    run = director.run("1")
    [receipt] = client.pause("1")
    assert (receipt.mode, receipt.outcome, receipt.message) == (Mode.PAUSE, Outcome.APPLIED, first)
    pass_by(client)
    run.send("still sent")
    run.do(lambda cycle: cycle.state.update(kept=True))
    run.finish("done")
    wait_output(client, "1", is_reply_to(first))
    pass_by(client)
    status = client.status("1")
    assert status.hold is not None
    assert (status.hold.mode, status.phase, status.waiting) == (Mode.PAUSE, Phase.HELD, 1)
    assert not run.cancelled.is_set()
    assert director.bodies("1") == ["wait"]

    client.play("1")
    wait_output(client, "1", is_reply_to(second))
    assert director.runs[-1].cycle.state == {"kept": True}
    assert story(client, "1") == [(Kind.CHUNK, first, "still sent"), (Kind.REPLY, first, "done"), (Kind.REPLY, second, "next")]
    assert not events(redis, agent, "cycle.stopped")


def test_a_cycle_that_fails_while_the_room_is_paused_is_tried_again_after_play_only(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 4"""
    running(director.agent())
    client.send("1", "wait")
    run = director.run("1")
    client.pause("1")
    run.fail()
    wait_event(redis, agent, "cycle.failed", room="1")
    pass_by(client)
    assert director.count("1") == 1
    assert client.status("1").phase is Phase.HELD
    client.play("1")
    assert director.run("1").attempt == 2


# Signals that hit nothing, or come in odd orders. ----------------------------------------------------------


def test_interrupt_of_an_idle_room_changes_nothing_and_the_next_message_runs_once(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """row 8"""
    running(director.agent())
    assert client.ask("1", "before") == "before"
    before = client.status("1")
    [receipt] = client.interrupt("1")
    assert (receipt.outcome, receipt.message) == (Outcome.IDLE, None)
    assert client.status("1") == before
    assert client.ask("1", "after") == "after"
    assert client.ask("1", "last") == "last"
    assert director.bodies("1") == ["before", "after", "last"]


def test_an_interrupt_meant_for_a_message_that_has_ended_leaves_the_running_one_alone(
    running: Running, director: Director, client: Client
) -> None:
    """row 8"""
    running(director.agent())
    ended = client.send("1", "first")
    current = client.send("1", "wait")
    run = director.run("1")
    [receipt] = client.interrupt("1", message=ended)
    assert receipt.outcome is Outcome.IDLE
    pass_by(client)
    run.send("unharmed")
    assert not run.cancelled.is_set()
    [receipt] = client.interrupt("1", message=current)
    assert (receipt.outcome, receipt.message) == (Outcome.APPLIED, current)
    run.wait_cancelled()


def test_an_interrupt_meant_for_a_message_that_still_waits_hits_neither_it_nor_the_running_one(
    running: Running, director: Director, client: Client
) -> None:
    """row 8"""
    running(director.agent())
    first = client.send("1", "wait")
    waiting = client.send("1", "next")
    run = director.run("1")
    assert client.interrupt("1", message=waiting)[0].outcome is Outcome.IDLE
    pass_by(client)
    run.finish("done")
    wait_output(client, "1", is_reply_to(waiting))
    assert story(client, "1") == [(Kind.REPLY, first, "done"), (Kind.REPLY, waiting, "next")]


def test_an_interrupt_after_a_stop_does_not_consume_the_message_that_the_stop_keeps(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 9: whether the stopped cycle has been settled by then or not"""
    system = running(director.agent())
    gate = StoreGate.of(system)
    kept = client.send("1", "wait")
    run = director.run("1")
    held_settle = gate.before("settle")
    client.stop("1")
    held_settle.wait()
    assert client.interrupt("1")[0].outcome is Outcome.HELD
    held_settle.release()
    wait_event(redis, agent, "cycle.stopped", room="1")
    assert client.interrupt("1")[0].outcome is Outcome.HELD
    assert client.interrupt("1", message=kept)[0].outcome is Outcome.HELD
    run.wait_cancelled()
    client.play("1")
    replay = director.run("1")
    assert replay.message.id == kept
    replay.finish("done")
    wait_output(client, "1", is_reply_to(kept))


def test_a_stop_after_an_interrupt_holds_the_room_and_the_message_is_consumed(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 9: whether the interrupted cycle has been settled by then or not"""
    system = running(director.agent())
    gate = StoreGate.of(system)
    first, second = client.send("1", "wait"), client.send("1", "next")
    director.run("1")
    held_settle = gate.before("settle")
    assert client.interrupt("1")[0].outcome is Outcome.APPLIED
    held_settle.wait()
    assert client.stop("1")[0].outcome is Outcome.APPLIED
    held_settle.release()
    wait_event(redis, agent, "cycle.interrupted", room="1")
    pass_by(client)
    assert director.bodies("1") == ["wait"]
    client.play("1")
    wait_output(client, "1", is_reply_to(second))
    assert story(client, "1") == [(Kind.ABORTED, first, "interrupt"), (Kind.REPLY, second, "next")]


def test_stop_play_stop_in_quick_succession_ends_stopped_with_the_message_kept(
    running: Running, director: Director, client: Client
) -> None:
    """row 9"""
    running(director.agent())
    kept = client.send("1", "wait")
    first: Run = director.run("1")
    for verb in (client.stop, client.play, client.stop):
        assert verb("1")[0].outcome is Outcome.APPLIED
    first.wait_cancelled()
    status = client.status("1")
    assert status.hold is not None
    assert (status.hold.mode, status.waiting) == (Mode.STOP, 1)
    pass_by(client)
    for run in director.runs:
        run.wait_ended()
    assert not [output for output in client.outputs("1") if output.kind is Kind.REPLY]
    client.play("1")
    live_run(director, client, "1").finish()
    wait_output(client, "1", is_reply_to(kept))
