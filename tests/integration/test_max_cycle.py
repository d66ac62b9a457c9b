"""Cycles that run for too long end as failed attempts, whatever they are (row 30)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py

from greenroom import Agent, Client, Cycle, CycleEnded, Kind, Message, ThreadCycle
from integration.agents import AT_ONCE, LONG, Director, eventually, settled, wait_event, wait_for, wait_output
from integration.conftest import Running
from integration.replays import BOTH

SHORT, SECOND = timedelta(milliseconds=300), timedelta(seconds=1)
ERROR = "it ran longer than max_cycle, 0.3 s"


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
    for words in ("room=the-room", f"ticket={run.ticket}", "after_s=0.3"):
        assert words in line.split()


class Told:
    """A handler in a thread that does not end when it is told to, but when the test lets it."""

    def __init__(self) -> None:
        self.reached, self.end = threading.Event(), threading.Event()
        self.runs: list[tuple[int, int]] = []  # message and attempt
        self.why: list[str] = []
        told = self

        class Slow(Agent):
            max_cycle = SECOND  # which the handlers that do not hang must not need on a busy machine
            max_attempts = 2
            retry = AT_ONCE
            abort_timeout = LONG

            def respond(self, message: Message, cycle: ThreadCycle) -> Any:
                told.runs.append((message.id, message.attempt))
                if message.body == "slow" and len(told.runs) == 1:
                    told.hang(cycle)
                return message.body

        self.agent = Slow

    def hang(self, cycle: ThreadCycle) -> None:
        eventually(lambda: cycle.cancelled, "it has run for too long")
        self.reached.set()
        wait_for(self.end, "the test lets it end")
        for effect in (cycle.checkpoint, lambda: cycle.send("late")):
            try:
                effect()
            except CycleEnded as error:
                self.why.append(error.why)


@pytest.fixture
def told() -> Iterator[Told]:
    told = Told()
    yield told
    told.end.set()


def test_code_that_looks_learns_that_it_ran_too_long(told: Told, running: Running, client: Client) -> None:
    """row 27"""
    running(told.agent)
    client.send("1", "slow")
    wait_for(told.reached, "it is told")
    told.end.set()
    eventually(lambda: told.why, "it looks")
    assert told.why[0] == "overdue"


def test_a_thread_that_hangs_is_left_behind_and_refused_and_its_message_is_tried_again(
    told: Told, running: Running, client: Client
) -> None:
    """row 27"""
    told.agent.abort_timeout = SHORT
    system = running(told.agent)
    assert client.ask("1", "slow") == "slow"
    [(first, one), (second, two)] = told.runs
    assert (first, one, two) == (second, 1, 2)
    [failed] = [output for output in client.outputs("1") if output.kind is Kind.FAILED]
    assert failed.error == "it ran longer than max_cycle, 1 s"
    assert system._worker.context.detached == 1
    told.end.set()
    eventually(lambda: len(told.why) == 2, "it is refused")
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


def test_a_stop_of_a_cycle_that_ran_too_long_and_has_not_ended_keeps_the_message_and_refunds_the_attempt(
    told: Told, running: Running, client: Client
) -> None:
    """row 11"""
    running(told.agent)
    message = client.send("1", "slow")
    wait_for(told.reached, "it is told")
    client.stop("1")
    told.end.set()
    wait_output(client, "1", lambda output: output.kind is Kind.ABORTED and output.mode == "stop")
    client.play("1")
    wait_output(client, "1", lambda output: output.kind is Kind.REPLY)
    assert told.runs == [(message, 1), (message, 1)]


def test_an_interrupt_of_a_cycle_that_ran_too_long_and_has_not_ended_consumes_the_message(
    told: Told, running: Running, client: Client
) -> None:
    """row 1"""
    running(told.agent)
    client.send("1", "slow")
    wait_for(told.reached, "it is told")
    client.interrupt("1")
    told.end.set()
    wait_output(client, "1", lambda output: output.kind is Kind.ABORTED and output.mode == "interrupt")
    assert client.ask("1", "next") == "next"
    assert [attempt for _, attempt in told.runs] == [1, 1]
