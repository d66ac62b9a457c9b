"""Cycles that run for too long end as failed attempts, whatever they are (row 30)."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py

from greenroom import Client, Cycle, CycleEnded, Kind, ThreadCycle
from integration.agents import WAIT_S, Director, Run, eventually, settled, wait_event, wait_for
from integration.conftest import Running
from integration.replays import BOTH

SHORT = timedelta(milliseconds=200)
ERROR = "it ran longer than max_cycle, 0.2 s"


@BOTH
@pytest.mark.parametrize("shielded", ["not", "a block", "the agent"])
def test_a_cycle_that_hangs_is_a_failed_attempt_and_in_the_end_a_dead_letter(
    shielded: str, threaded: bool, running: Running, director: Director, client: Client
) -> None:
    """A shield does not hold it up: nobody has asked for it to end."""
    running(director.agent(threaded=threaded, max_cycle=SHORT, max_attempts=2, interruptible=shielded != "the agent"))
    message = client.send("1", "wait")
    client.send("1", "next")
    for attempt in (1, 2):
        run = director.run("1")
        assert run.attempt == attempt
        if shielded == "a block":
            run.begin(in_shield_in_thread if threaded else in_shield)
        run.wait_ended()
        failed = settled(client, "1", run.ticket)
        assert (failed.kind, failed.error) == (Kind.FAILED, ERROR)
    assert client.ask("1", "one more") == "one more"
    [letter] = client.dead_letters()
    assert (letter.message, letter.attempts, letter.error) == (message, 2, ERROR)


async def in_shield(cycle: Cycle) -> None:
    async with cycle.shield():
        await asyncio.Event().wait()


def in_shield_in_thread(cycle: ThreadCycle) -> None:
    with cycle.shield():
        eventually(lambda: cycle.cancelled, "it has run for too long")


def test_a_cycle_that_ran_too_long_is_named_in_the_log(
    running: Running, director: Director, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    running(director.agent(max_cycle=SHORT, max_attempts=1))
    client.send("the-room", "wait")
    run = director.run("the-room")
    settled(client, "the-room", run.ticket)
    [line] = [record.message for record in caplog.records if "cycle.overdue" in record.message]
    assert f"room=the-room ticket={run.ticket} after_s=0.2" in line


def test_code_that_is_told_so_learns_that_it_ran_too_long(running: Running, director: Director, client: Client) -> None:
    """row 27"""
    running(director.agent(threaded=True, max_cycle=SHORT, max_attempts=1))
    client.send("1", "wait")
    run = director.run("1")

    def works(cycle: ThreadCycle) -> None:
        eventually(lambda: cycle.cancelled, "it has run for too long")
        cycle.checkpoint()

    with pytest.raises(CycleEnded, match="overdue"):
        run.do(works)


def test_a_thread_that_hangs_is_left_behind_and_refused_and_its_message_is_tried_again(
    running: Running, director: Director, client: Client
) -> None:
    """row 27"""
    system = running(director.agent(threaded=True, max_cycle=SHORT, abort_timeout=SHORT, max_attempts=2))
    client.send("1", "wait")
    hung, go = director.run("1"), threading.Event()

    def hangs(cycle: ThreadCycle) -> None:
        wait_for(go, "the test lets it go")
        cycle.send("late")

    late = hung.begin(hangs)
    again = director.run("1")
    assert (again.attempt, again.message.id) == (2, hung.message.id)
    assert settled(client, "1", hung.ticket).error == ERROR
    assert system._worker.context.detached == 1
    go.set()
    with pytest.raises(CycleEnded):
        late.result(WAIT_S)
    assert "late" not in [output.body for output in client.outputs("1")]


def test_a_handler_that_blocks_its_loop_for_too_long_is_a_failed_attempt_at_once(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 29"""
    running(director.agent(max_cycle=SHORT, abort_timeout=SHORT))
    client.send("1", "wait")
    go = threading.Event()
    director.run("1").begin(lambda _: wait_for(go, "the test lets it go"))
    wait_event(redis, agent, "cycle.failed", room="1", error=ERROR)
    go.set()


@pytest.fixture
def slow_to_end(running: Running, director: Director, client: Client) -> Any:
    """A run that has run for too long and has been told so, and the stack whose end lets it end."""
    running(director.agent(threaded=True, max_cycle=SHORT, abort_timeout=timedelta(seconds=WAIT_S)))
    client.send("1", "wait")
    run, end, told = director.run("1"), threading.Event(), threading.Event()

    def ends_slowly(cycle: ThreadCycle) -> None:
        eventually(lambda: cycle.cancelled, "it has run for too long")
        told.set()
        wait_for(end, "the test lets it end")

    run.begin(ends_slowly)
    wait_for(told, "it is told")
    with ExitStack() as stack:
        stack.callback(end.set)
        yield run, stack


def test_a_stop_of_a_cycle_that_ran_too_long_and_has_not_ended_keeps_the_message_and_refunds_the_attempt(
    slow_to_end: tuple[Run, ExitStack], director: Director, client: Client
) -> None:
    """row 11"""
    run, end = slow_to_end
    client.stop("1")
    end.close()
    assert settled(client, "1", run.ticket).mode == "stop"
    client.play("1")
    again = director.run("1")
    assert (again.message.id, again.attempt) == (run.message.id, 1)


def test_an_interrupt_of_a_cycle_that_ran_too_long_and_has_not_ended_consumes_the_message(
    slow_to_end: tuple[Run, ExitStack], client: Client
) -> None:
    """row 1"""
    run, end = slow_to_end
    client.interrupt("1")
    end.close()
    assert settled(client, "1", run.ticket).mode == "interrupt"
    assert client.ask("1", "next") == "next"
