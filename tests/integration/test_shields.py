"""Cycles that interrupt and stop wait for: of an agent that is not interruptible, and shielded blocks inside others."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
import redis as redis_py

from greenroom import Client, CycleEnded, Kind, Mode, Outcome, Phase
from integration.agents import WAIT_S, Director, StoreGate, cut_off, events, wait_event, wait_heard, wait_output
from integration.conftest import Running
from integration.replays import BOTH, Shields

ABORTS = pytest.mark.parametrize("verb", [Mode.INTERRUPT, Mode.STOP])


def kinds(client: Client, room: str) -> list[tuple[Kind, Any]]:
    return [(output.kind, output.mode or output.body) for output in client.outputs(room)]


def reply_of(client: Client, room: str, body: str) -> None:
    wait_output(client, room, lambda output: output.kind is Kind.REPLY and output.body == body)


# Agents that are not interruptible. ------------------------------------------------------------------------


@BOTH
def test_an_interrupt_of_an_agent_that_is_not_interruptible_is_deferred_and_lapses_when_the_cycle_commits(
    threaded: bool, running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 21"""
    system = running(director.agent(threaded=threaded, interruptible=False))
    message = client.send("1", "wait")
    client.send("1", "next")
    run = director.run("1")
    [receipt] = client.interrupt("1")
    assert (receipt.outcome, receipt.message) == (Outcome.DEFERRED, message)
    assert client.interrupt("1")[0].outcome is Outcome.ALREADY
    assert client.status("1").deferred == "interrupt"
    wait_heard(system)
    run.send("goes on")
    run.finish("done")
    reply_of(client, "1", "next")
    assert kinds(client, "1") == [(Kind.CHUNK, "goes on"), (Kind.REPLY, "done"), (Kind.REPLY, "next")]
    assert not run.cancelled.is_set()
    assert [event["message"] for event in events(redis, agent, "interrupt.lapsed")] == [f"{message}-0"]


@BOTH
@pytest.mark.parametrize("everywhere", [False, True], ids=["room", "everywhere"])
def test_a_stop_of_an_agent_that_is_not_interruptible_is_deferred_and_holds_the_room_once_the_cycle_has_committed(
    threaded: bool, everywhere: bool, running: Running, director: Director, client: Client, redis: redis_py.Redis
) -> None:
    """row 21"""
    system = running(director.agent(threaded=threaded, interruptible=False))
    client.send("1", "wait")
    client.send("1", "next")
    run = director.run("1")
    receipts = client.stop(everywhere=True) if everywhere else client.stop("1")
    assert [(r.room, r.outcome) for r in receipts if r.room] == [("1", Outcome.DEFERRED)]
    wait_heard(system)
    run.send("goes on")
    run.finish("done")
    reply_of(client, "1", "done")
    status = client.status("1")
    assert (status.phase, status.waiting, status.deferred) == (Phase.HELD, 1, None)
    assert director.bodies("1") == ["wait"]
    client.play(everywhere=True) if everywhere else client.play("1")
    reply_of(client, "1", "next")
    assert director.bodies("1") == ["wait", "next"]


def test_a_deferred_interrupt_consumes_the_message_when_the_cycle_fails(
    running: Running, director: Director, client: Client
) -> None:
    """row 21: the shield ends with the cycle"""
    running(director.agent(interruptible=False))
    client.send("1", "wait")
    client.send("1", "next")
    run = director.run("1")
    client.interrupt("1")
    run.fail()
    reply_of(client, "1", "next")
    assert kinds(client, "1") == [(Kind.ABORTED, "interrupt"), (Kind.REPLY, "next")]


def test_a_deferred_stop_keeps_the_message_when_the_cycle_fails_and_the_attempt_stays_charged(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 21"""
    running(director.agent(interruptible=False))
    message = client.send("1", "wait")
    run = director.run("1")
    client.stop("1")
    run.fail()
    wait_event(redis, agent, "cycle.failed", room="1")
    assert client.status("1").phase is Phase.HELD
    client.play("1")
    replay = director.run("1")
    assert (replay.message.id, replay.attempt) == (message, 2)


# Shielded blocks. ------------------------------------------------------------------------------------------


@BOTH
@ABORTS
def test_a_shielded_block_defers_the_signal_which_acts_the_moment_the_shield_goes_down(
    verb: Mode, threaded: bool, running: Running, director: Director, client: Client, redis: redis_py.Redis
) -> None:
    """row 21"""
    system = running(director.agent(threaded=threaded))
    message = client.send("1", "wait")
    run = director.run("1")
    shields = Shields(run, threaded)
    shields.up()
    assert client.status("1").shielded
    [receipt] = getattr(client, verb)("1")
    assert (receipt.outcome, receipt.message) == (Outcome.DEFERRED, message)
    wait_heard(system)
    run.send("inside")
    assert not run.cycle.cancelled
    shields.down_and_out(verb)
    outcome = wait_output(client, "1", lambda output: output.kind is Kind.ABORTED)
    assert outcome.mode == verb
    assert kinds(client, "1") == [(Kind.CHUNK, "inside"), (Kind.ABORTED, verb)]
    client.send("1", "next")
    if verb is Mode.STOP:
        client.play("1")
        replay = director.run("1")
        assert (replay.message.id, replay.attempt) == (message, 1)
        replay.finish("done")
    reply_of(client, "1", "next")


@BOTH
@ABORTS
def test_of_nested_shields_the_outermost_end_lets_the_signal_act(
    verb: Mode, threaded: bool, running: Running, director: Director, client: Client
) -> None:
    """row 21"""
    running(director.agent(threaded=threaded))
    client.send("1", "wait")
    run = director.run("1")
    shields = Shields(run, threaded)
    shields.up()
    shields.up()
    assert getattr(client, verb)("1")[0].outcome is Outcome.DEFERRED
    shields.down()
    run.send("still inside")
    shields.down_and_out(verb)


@BOTH
@ABORTS
def test_a_signal_that_redis_has_before_the_shield_is_up_keeps_the_block_from_running(
    verb: Mode, threaded: bool, running: Running, director: Director, client: Client
) -> None:
    """row 21: the shield's own request is under way while the signal is applied, and its refusal is the first that is heard"""
    system = running(director.agent(threaded=threaded))
    cut_off(system)
    gate = StoreGate.of(system)
    client.send("1", "wait")
    run = director.run("1")
    hold = gate.before("shield")
    entered: list[bool] = []

    def block(cycle: Any) -> None:
        with cycle.shield():
            entered.append(True)

    async def async_block(cycle: Any) -> None:
        while not entered:
            with contextlib.suppress(asyncio.CancelledError):  # the cancel may overtake the refusal: insist on it
                async with cycle.shield():
                    entered.append(True)

    begun = run.begin(block if threaded else async_block)
    hold.wait()
    assert getattr(client, verb)("1")[0].outcome is Outcome.APPLIED
    hold.release()
    with pytest.raises(CycleEnded, match=verb):
        begun.result(WAIT_S)
    run.finish()
    wait_output(client, "1", lambda output: output.kind is Kind.ABORTED and output.mode == verb)
    assert entered == []


@BOTH
def test_a_shield_that_went_down_before_the_signal_leaves_it_to_act_at_once(
    threaded: bool, running: Running, director: Director, client: Client
) -> None:
    """row 21"""
    running(director.agent(threaded=threaded))
    client.send("1", "wait")
    run = director.run("1")
    shields = Shields(run, threaded)
    shields.up()
    run.send("inside")
    shields.down()
    run.send("after")
    assert client.interrupt("1")[0].outcome is Outcome.APPLIED
    run.wait_cancelled()


def test_a_stop_after_a_deferred_interrupt_holds_the_room_and_the_message_is_consumed(
    running: Running, director: Director, client: Client
) -> None:
    """rows 9 and 21"""
    running(director.agent())
    client.send("1", "wait")
    client.send("1", "next")
    run = director.run("1")
    shields = Shields(run, threaded=False)
    shields.up()
    assert client.interrupt("1")[0].outcome is Outcome.DEFERRED
    assert client.stop("1")[0].outcome is Outcome.DEFERRED
    shields.down_and_out(Mode.INTERRUPT)
    wait_output(client, "1", lambda output: output.kind is Kind.ABORTED and output.mode == "interrupt")
    assert client.status("1").waiting == 1
    assert director.bodies("1") == ["wait"]
    client.play("1")
    reply_of(client, "1", "next")


def test_an_interrupt_after_a_deferred_stop_does_not_consume_the_message(
    running: Running, director: Director, client: Client
) -> None:
    """rows 9 and 21"""
    running(director.agent())
    client.send("1", "wait")
    run = director.run("1")
    shields = Shields(run, threaded=False)
    shields.up()
    assert client.stop("1")[0].outcome is Outcome.DEFERRED
    assert client.interrupt("1")[0].outcome is Outcome.HELD
    shields.down_and_out(Mode.STOP)
    client.play("1")
    assert director.run("1").message.id == run.message.id


def test_a_pause_does_not_end_a_cycle_whose_shield_goes_down(running: Running, director: Director, client: Client) -> None:
    """rows 4 and 21"""
    running(director.agent())
    client.send("1", "wait")
    run = director.run("1")
    shields = Shields(run, threaded=False)
    shields.up()
    assert client.pause("1")[0].outcome is Outcome.APPLIED
    shields.down()
    run.send("after")
    run.finish("done")
    reply_of(client, "1", "done")
