"""An async agent that blocks its loop: signals act as ever, and a warning says who does it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import redis as redis_py

from greenroom import Client, Outcome, Phase
from greenroom.protocol.keys import Keys
from integration.agents import WAIT_S, Director, Run, eventually, wait_event, wait_for, wait_heard, wait_output
from integration.conftest import Running


class Hog:
    """Has a handler hold its event loop until it is let go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()

    def hold_the_loop(self, _: object = None) -> None:
        self.reached.set()
        self.go.wait(2 * WAIT_S)

    async def hold_it_in_a_child_task(self, _: object) -> None:
        async def child() -> None:
            self.hold_the_loop()

        await asyncio.create_task(child(), name="tally")


@pytest.fixture
def hog() -> Iterator[Hog]:
    hog = Hog()
    yield hog
    hog.go.set()


@contextmanager
def holding(hog: Hog, run: Run) -> Iterator[None]:
    """Within this the run's handler holds its loop."""
    held = run.begin(hog.hold_the_loop)
    wait_for(hog.reached, "the handler holds its loop")
    yield
    hog.go.set()
    held.result(WAIT_S)


def warnings(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if f"event={event} " in record.getMessage()]


# Control. ---------------------------------------------------------------------------------------------


def test_signals_are_heard_and_cycles_are_ended_while_an_agent_blocks_its_loop(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str, hog: Hog
) -> None:
    """row 29: the blocker itself is stopped, another room is interrupted, and both are over while the loop still hangs"""
    system = running(director.agent())
    blocker, other = client.send("1", "wait"), client.send("2", "wait")
    run = director.run("1")
    director.run("2")
    with holding(hog, run):
        stopped, interrupted = client.stop("1")[0], client.interrupt("2")[0]
        assert (stopped.outcome, stopped.message) == (Outcome.APPLIED, blocker)
        assert (interrupted.outcome, interrupted.message) == (Outcome.APPLIED, other)
        wait_heard(system)
        wait_event(redis, agent, "cycle.stopped", room="1", worker=system.name)
        wait_event(redis, agent, "cycle.interrupted", room="2", worker=system.name)
        assert client.status("1").phase is Phase.HELD
        assert system.ready
    client.play("1")
    replay = director.run("1")
    assert (replay.message.id, replay.attempt) == (blocker, 1)
    assert client.ask("2", "next") == "next"


def test_signals_of_other_rooms_are_durable_and_answered_while_an_agent_blocks_its_loop(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str, keys: Keys, hog: Hog
) -> None:
    """row 29: of rooms at work, of rooms that are not, in every mode, and by hand"""
    running(director.agent())
    client.send("1", "wait")
    with holding(hog, director.run("1")):
        for number in range(20):
            room = f"other-{number}"
            client.send(room, "hello")
            assert [client.pause(room)[0].outcome, client.stop(room)[0].outcome] == [Outcome.APPLIED, Outcome.APPLIED]
            assert client.interrupt(room)[0].outcome is Outcome.HELD
            assert client.status(room).hold is not None
        redis.xadd(keys.control, {"mode": "stop", "room": "by-hand"})
        wait_event(redis, agent, "signal.applied", rooms="by-hand")
        assert client.status("by-hand").hold is not None
    for number in range(20):
        assert director.count(f"other-{number}") == 0
        client.play(f"other-{number}")
        wait_output(client, f"other-{number}", lambda output: output.body == "hello")


def test_the_lease_is_held_and_new_rooms_are_claimed_while_an_agent_blocks_its_loop(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str, hog: Hog
) -> None:
    """row 29"""
    system = running(director.agent())
    client.send("1", "wait")
    with holding(hog, director.run("1")):
        held_until_s = system._worker.held_until_s
        client.send("2", "hello")
        eventually(lambda: client.status("2").phase is Phase.PROCESSING, "the next room is claimed")
        eventually(lambda: system._worker.held_until_s > held_until_s, "the lease is renewed")
    wait_output(client, "2", lambda output: output.body == "hello")


# The warning. -----------------------------------------------------------------------------------------


def test_the_warning_names_room_and_task_and_shows_the_stack_once(
    running: Running, director: Director, client: Client, hog: Hog, caplog: pytest.LogCaptureFixture
) -> None:
    """row 29"""
    system = running(director.agent())
    client.send("room-1", "wait")
    run = director.run("room-1")
    with holding(hog, run):
        eventually(lambda: warnings(caplog, "loop.blocked"), "it is warned of")
        assert warnings(caplog, "loop.free") == []
    eventually(lambda: warnings(caplog, "loop.free"), "it is over")
    [told] = warnings(caplog, "loop.blocked")
    first, *stack = told.splitlines()
    cycle = f"room=room-1 message={run.message.id} attempt=1 ticket={run.ticket}"
    assert f" worker={system.name} {cycle} task=greenroom-cycle-{run.ticket} blocked_s=" in first
    assert "greenroom/actors/runner.py" in stack[0], "not how a thread comes to run a loop, and the loop a callback"
    assert any("agents.py" in line and "in _obey" in line for line in stack)
    assert any("test_loop_watch.py" in line and "in hold_the_loop" in line for line in stack)
    assert "self.go.wait(2 * WAIT_S)" in told
    run.send("goes on")


def test_of_a_child_task_the_warning_has_the_name_and_the_stack(
    running: Running, director: Director, client: Client, hog: Hog, caplog: pytest.LogCaptureFixture
) -> None:
    running(director.agent())
    client.send("room-1", "wait")
    held = director.run("room-1").begin(hog.hold_it_in_a_child_task)
    [told] = eventually(lambda: warnings(caplog, "loop.blocked"), "it is warned of")
    assert " task=tally blocked_s=" in told.splitlines()[0]
    assert "in hold_the_loop" in told
    hog.go.set()
    held.result(WAIT_S)


def test_a_system_stops_while_its_loop_is_blocked(
    running: Running, director: Director, client: Client, hog: Hog, caplog: pytest.LogCaptureFixture
) -> None:
    system = running(director.agent())
    client.send("1", "wait")
    with holding(hog, director.run("1")):
        eventually(lambda: warnings(caplog, "loop.blocked"), "it is warned of")
        client.stop("1")
        system.stop()
        assert system.wait(0)


def test_a_blocked_loop_is_seen_from_outside_by_the_heartbeat(
    running: Running, director: Director, client: Client, hog: Hog
) -> None:
    """row 29: where no log is at hand"""
    system = running(director.agent(), max_rooms=7, lease=timedelta(seconds=1))
    client.send("42", "wait")
    with holding(hog, director.run("42")):
        [worker] = eventually(lambda: [each for each in client.workers() if (each.lag_s or 0) >= 1], "its lag is told")
    assert (worker.name, worker.alive, worker.rooms, worker.slots) == (system.name, True, 1, 7)
