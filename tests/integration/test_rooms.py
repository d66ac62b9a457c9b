"""How rooms share a worker, are taken up again, and are given up."""

from __future__ import annotations

from datetime import timedelta

import pytest
import redis as redis_py

from greenroom import Backoff, Client, MessageProcessing, Phase
from greenroom.protocol.keys import Keys
from greenroom.supervisors.rooms import ROOM_POLICY
from integration.agents import Director, StoreGate, abandon, eventually, ready_of, wait_event
from integration.conftest import Running

from helpers import unique


def test_a_room_in_which_nothing_succeeds_is_stopped_durably_and_play_tries_again(
    running: Running, director: Director, client: Client
) -> None:
    """Row 33: each message is a dead letter of its own; the room has a budget apart from theirs."""
    running(director.agent(max_attempts=1))
    budget = ROOM_POLICY.intensity + 1
    client.stop("42")
    for number in range(budget + 5):
        client.send("42", f"fail {number}")
    client.play("42")
    status = eventually(lambda: (s := client.status("42")).hold and s, "the room is stopped")
    assert (status.hold.mode, status.hold.by) == ("stop", "supervisor")
    assert "RuntimeError: fail" in status.hold.reason
    assert status.phase is Phase.HELD
    assert director.count("42") == budget
    client.play("42")
    eventually(lambda: client.overview().dead == budget + 5, "the others have had their try")
    assert client.status("42").hold is None


def test_a_failing_room_stops_no_other(running: Running, director: Director, client: Client) -> None:
    running(director.agent(max_attempts=1))
    client.stop("bad")
    for number in range(ROOM_POLICY.intensity + 1):  # a room that runs out of work has its whole budget again
        client.send("bad", f"fail {number}")
    client.play("bad")
    eventually(lambda: client.status("bad").hold, "the room is stopped")
    assert client.ask("good", "hello") == "hello"


def test_discarding_a_message_that_waits_for_its_retry_lets_the_next_run_at_once(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    hour = timedelta(hours=1)
    running(director.agent(retry=Backoff(first=hour, most=hour)))
    failing = client.send("42", "fail")
    client.send("42", "next")
    eventually(lambda: str(redis.hget(keys.room("42"), "answer")).startswith("backoff"), "the room waits for the retry time")
    client.discard("42", failing)
    eventually(lambda: client.status("42").waiting == 0, "the next message is answered")
    assert director.bodies("42") == ["fail", "next"]


def test_discarding_a_message_whose_stop_is_not_done_says_to_try_again(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    gate = StoreGate.of(running(director.agent()))
    message = client.send("42", "wait")
    director.run("42")
    with pytest.raises(MessageProcessing, match="interrupt it instead"):
        client.discard("42", message)
    hold = gate.before("settle")
    client.stop("42")
    hold.wait()
    with pytest.raises(MessageProcessing, match=r"a signal ends \(stop\): try again when its code has ended"):
        client.discard("42", message)
    hold.release()
    wait_event(redis, agent, "cycle.stopped", room="42")
    client.discard("42", message)
    client.play("42")
    assert client.ask("42", "next") == "next"


def test_discarding_a_message_while_the_answer_that_it_waits_is_on_its_way_lets_the_next_run_at_once(
    running: Running, director: Director, client: Client
) -> None:
    """row 26: the room hears of its new entry before it hears that it is to wait with the old one"""
    hour = timedelta(hours=1)
    system = running(director.agent(retry=Backoff(first=hour, most=hour)))
    gate = StoreGate.of(system)
    failing = client.send("42", "wait")
    client.send("42", "next")
    run = director.run("42")
    hold = gate.after("claim")
    run.fail()
    hold.wait()
    client.discard("42", failing)
    eventually(lambda: system._worker.context.active.get("42") == ready_of(client, "42"), "the new entry is handed over")
    hold.release()
    eventually(lambda: client.status("42").waiting == 0, "the next message is answered")
    assert director.bodies("42") == ["wait", "next"]


def test_a_room_with_a_long_queue_gives_way_to_those_that_wait_for_a_slot(
    running: Running, director: Director, client: Client
) -> None:
    running(director.agent(), max_rooms=1)
    client.send("long", "wait")
    first = director.run("long")
    for number in range(49):
        client.send("long", number)
    client.send("short", "me too")
    first.finish()
    eventually(lambda: len(director.runs) == 51, "all are answered")
    rooms = [run.room for run in director.runs]
    assert rooms.index("short") < 20
    assert director.bodies("long") == ["wait", *range(49)]


def test_recovery_after_a_crash_is_staged_and_new_work_does_not_wait_for_it(
    running: Running, director: Director, client: Client
) -> None:
    """Row 41."""
    name = unique("worker")
    crashed = running(director.agent(), name=name)
    rooms = [f"room-{number}" for number in range(5)]
    for room in rooms:
        client.send(room, "wait")
        director.run(room)
    abandon(crashed)
    running(director.agent(), name=name, recovery_rate=0.1)  # one at once, the next in ten seconds
    replayed = director.run()
    assert replayed.attempt == 2
    assert client.ask("new", "hello") == "hello"
    assert sum(director.count(room) for room in rooms) == len(rooms) + 1
