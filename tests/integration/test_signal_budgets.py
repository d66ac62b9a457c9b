"""Signals that are many or come again: nothing is charged for them, and each counts once, in the order of Redis."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py

from greenroom import AsyncClient, Client, Conflict, Kind, Mode, Outcome
from greenroom.protocol.keys import Keys
from integration.agents import Director, StoreGate, events, eventually, live_run, wait_event, wait_heard, wait_output
from integration.conftest import Running


def replied(message: int) -> Callable[[Any], bool]:
    return lambda output: output.kind is Kind.REPLY and output.message == message


# The attempts of a message. ------------------------------------------------------------------------------


def test_fifty_stops_and_plays_on_one_message_with_one_attempt_leave_it_to_run_after_the_last_play(
    running: Running, director: Director, client: Client
) -> None:
    """row 10: half of the stops hit a run, half come wherever the replay is by then"""
    running(director.agent(max_attempts=1))
    kept = client.send("1", "wait")
    director.run("1")
    for n in range(50):
        assert client.stop("1")[0].outcome is Outcome.APPLIED
        assert client.play("1")[0].outcome is Outcome.APPLIED
        if n % 2:
            live_run(director, client, "1")
    client.stop("1")
    client.play("1")
    final = live_run(director, client, "1")
    assert {run.attempt for run in director.runs} == {1}
    final.finish("done")
    wait_output(client, "1", replied(kept))
    assert not list(client.dead_letters())


def test_fifty_graceful_shutdowns_in_the_middle_of_a_message_with_one_attempt_leave_it_to_run(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 10"""
    kept = client.send("1", "wait")
    for _ in range(50):
        system = running(director.agent(max_attempts=1), name="the-same")
        assert director.run("1").attempt == 1
        system.stop(timedelta(0))
    assert len(events(redis, agent, "cycle.released", room="1")) == 50
    running(director.agent(max_attempts=1), name="the-same")
    final = director.run("1")
    assert final.attempt == 1
    final.finish("done")
    wait_output(client, "1", replied(kept))


def test_two_real_failures_stay_charged_over_a_stop_and_a_play(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 11: the third failure is the last"""
    running(director.agent(max_attempts=3))
    message = client.send("1", "wait")
    for attempt in (1, 2):
        run = director.run("1")
        assert run.attempt == attempt
        run.fail(ValueError(f"failure {attempt}"))
    assert director.run("1").attempt == 3
    client.stop("1")
    wait_event(redis, agent, "cycle.stopped", room="1")
    status = client.status("1")
    assert (status.attempt, status.last_error) == (2, "ValueError: failure 2")
    client.play("1")
    run = director.run("1")
    assert run.attempt == 3
    run.fail(ValueError("failure 3"))
    wait_output(client, "1", lambda output: output.kind is Kind.DEAD)
    [letter] = client.dead_letters()
    assert (letter.message, letter.attempts, letter.error) == (message, 3, "ValueError: failure 3")
    assert client.ask("1", "next") == "next"


# Ids. ----------------------------------------------------------------------------------------------------


def test_an_interrupt_repeated_with_its_id_spares_the_next_message_and_answers_as_before(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 13: also when the worker has been restarted in between"""
    system = running(director.agent(), name="the-same")
    client.send("1", "wait")
    client.send("1", "wait again")
    director.run("1")
    first = client.interrupt("1", cid="once")
    run = director.run("1")
    assert client.interrupt("1", cid="once") == first
    run.send("unharmed")
    system.stop(timedelta(0))
    running(director.agent(), name="the-same")
    replay = director.run("1")
    assert client.interrupt("1", cid="once") == first
    replay.send("unharmed")
    replay.finish("done")
    wait_output(client, "1", lambda output: output.body == "done")
    assert len(events(redis, agent, "signal.applied", cid="once")) == 1
    assert [output.mode for output in client.outputs("1") if output.kind is Kind.ABORTED] == ["interrupt", "release"]


def test_a_stop_repeated_with_its_id_after_the_play_does_not_stop_again(
    running: Running, director: Director, client: Client
) -> None:
    """row 13"""
    running(director.agent())
    client.stop("1", cid="one-stop")
    client.play("1", cid="one-play")
    client.stop("1", cid="one-stop")
    assert client.status("1").hold is None
    client.stop("1", cid="another-stop")
    client.play("1", cid="one-play")
    assert client.status("1").hold is not None


@pytest.mark.parametrize(
    "other",
    [
        lambda client: client.stop("1", cid="once"),
        lambda client: client.interrupt("2", cid="once"),
        lambda client: client.interrupt("1", "2", cid="once"),
        lambda client: client.interrupt("1", cid="once", message=1),
        lambda client: client.interrupt(everywhere=True, cid="once"),
    ],
    ids=["another mode", "another room", "more rooms", "one message", "everywhere"],
)
def test_the_id_of_another_signal_is_a_conflict_and_changes_nothing(
    other: Callable[[Client], Any], running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 13"""
    running(director.agent())
    client.interrupt("1", cid="once")
    for room in ("1", "2"):
        client.send(room, "wait")
    runs = [director.run(room) for room in ("1", "2")]
    with pytest.raises(Conflict, match="once"):
        other(client)
    for run in runs:
        run.send("unharmed")
        assert client.status(run.room).hold is None
    assert len(events(redis, agent, "signal.applied")) == 1


def test_a_signal_written_by_hand_is_applied_once_although_two_workers_read_it_and_one_starts_later(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str, keys: Keys
) -> None:
    """row 13"""
    for _ in range(2):
        running(director.agent())
    redis.xadd(keys.control, {"mode": "interrupt", "room": "1"})
    redis.xadd(keys.control, {"mode": "stop", "room": "1"})
    redis.xadd(keys.control, {"mode": "play", "room": "1"})
    wait_event(redis, agent, "signal.applied", mode="play")
    client.send("1", "wait")
    run = director.run("1")
    third = running(director.agent())
    eventually(lambda: third._worker.control_seen is not None, "the third worker reads the control stream")
    redis.xadd(keys.control, {"mode": "pause", "room": "elsewhere"})
    wait_event(redis, agent, "signal.applied", mode="pause")
    run.send("unharmed")
    assert [event["mode"] for event in events(redis, agent, "signal.applied")] == ["interrupt", "stop", "play", "pause"]


def test_a_signal_written_by_hand_is_not_applied_again_by_a_worker_that_starts_days_later(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str, keys: Keys
) -> None:
    """row 13: its receipt is kept for a day, its place in the stream for good"""
    running(director.agent())
    entry: Any = redis.xadd(keys.control, {"mode": "stop", "room": "1"})
    wait_event(redis, agent, "signal.applied", mode="stop")
    client.play("1")
    assert redis.delete(f"{keys.root}:signal:{entry}") == 1
    wait_heard(running(director.agent()))
    assert client.status("1").hold is None
    assert client.ask("1", "hello") == "hello"


# Many at once. -------------------------------------------------------------------------------------------


def model_of(rows: list[dict[str, str]]) -> tuple[Mode | None, list[set[str]]]:
    """What signals of one room come to when applied in this order: its hold, and each one's possible outcomes."""
    hold: Mode | None = None
    outcomes: list[set[str]] = []
    for mode in (Mode(row["mode"]) for row in rows):
        if mode is Mode.INTERRUPT:
            outcomes.append({"held"} if hold is Mode.STOP else {"applied", "idle", "already"})
        elif mode is Mode.PLAY:
            outcomes.append({"applied" if hold else "already"})
            hold = None
        else:
            stands = hold is Mode.STOP or hold is mode
            outcomes.append({"already" if stands else "applied"})
            hold = hold if stands else mode
    return hold, outcomes


async def storm(url: str, agent: str, seed: int) -> None:
    """100 mixed signals of four clients at once, some by hand, on a room that gets messages all the while."""
    rng = random.Random(seed)
    clients = [AsyncClient(agent, redis=url) for _ in range(4)]
    try:

        async def signal(client: AsyncClient, verbs: list[str]) -> None:
            for verb in verbs:
                if rng.random() < 0.2:
                    await client._store.pipeline.command("XADD", Keys(agent).control, "*", "mode", verb, "room", "1")
                else:
                    await getattr(client, verb)("1")

        modes = [rng.choice(list(Mode)).value for _ in range(100)]
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for n, client in enumerate(clients):
                group.create_task(signal(client, modes[n::4]))
            for n in range(40):
                await clients[n % 4].send("1", f"message {n}")
    finally:
        for client in clients:
            await client.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_hundred_mixed_signals_come_to_what_redis_order_says_and_every_message_ends_once(
    seed: int,
    running: Running,
    director: Director,
    client: Client,
    redis: redis_py.Redis,
    redis_url: str,
    agent: str,
    keys: Keys,
) -> None:
    """row 9"""
    for _ in range(2):
        running(director.agent(max_attempts=1))
    asyncio.run(storm(redis_url, agent, seed))
    wait_event(redis, agent, "signal.applied", count=100)
    entries: Any = redis.xrange(keys.control)
    rows = [row for _, row in entries if "outcome" in row]
    assert len(rows) == 100
    hold, outcomes = model_of(rows)
    for row, possible in zip(rows, outcomes, strict=True):
        assert row["outcome"] in possible, row
    status = client.status("1")
    assert (status.hold.mode if status.hold else None) == hold

    client.play("1")
    assert client.ask("1", "last") == "last"
    ends = [
        o.message for o in client.outputs("1") if o.kind is Kind.REPLY or (o.kind is Kind.ABORTED and o.mode == "interrupt")
    ]
    assert len(ends) == 41
    assert ends == sorted(set(ends)), "each message ended once, in the order of sending"
    assert not list(client.dead_letters())


def test_many_signals_to_one_message_reach_a_run_that_is_about_to_commit_or_not_at_all(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 9: interrupt, stop, play while the commit waits: it is refused, whichever of them the worker hears of first"""
    system = running(director.agent())
    gate = StoreGate.of(system)
    message = client.send("1", "wait")
    run = director.run("1")
    hold = gate.before("commit")
    run.finish("too late")
    hold.wait()
    outcomes = [verb("1")[0].outcome for verb in (client.stop, client.interrupt, client.play, client.interrupt, client.stop)]
    assert [str(outcome) for outcome in outcomes] == ["applied", "held", "applied", "already", "applied"]
    hold.release()
    wait_event(redis, agent, "cycle.stopped", room="1")
    client.play("1")
    replay = director.run("1")
    assert (replay.message.id, replay.attempt) == (message, 1)
    replay.finish("in time")
    wait_output(client, "1", lambda output: output.kind is Kind.REPLY)
    assert [output.body for output in client.outputs("1") if output.kind is Kind.REPLY] == ["in time"]
