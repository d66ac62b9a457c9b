"""What Redis keeps, and for how long: each limit holds, and nothing that is under way is trimmed or forgotten for it."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py

from greenroom import ActorSystem, Client, InvalidRequest, Reject, Retention
from greenroom.protocol.connect import connect
from greenroom.protocol.keys import Keys
from greenroom.protocol.store import Store, Swept
from greenroom.supervisors import housekeeper
from integration.agents import (
    WAIT_S,
    Director,
    blocked,
    events,
    eventually,
    wait_event,
    wait_heard,
    wait_output,
)
from integration.conftest import Running
from integration.receiver import Receiver, Relaying, wait_delivered

HOUR = timedelta(hours=1)
LONG_AGO = 1  # the score of a room that was last at work in 1970
SLACK = 200  # streams are trimmed by whole nodes of a hundred entries


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers sweep when the test says so."""
    monkeypatch.setattr(housekeeper, "ROUND_S", 10 * WAIT_S)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers sweep all the time."""
    monkeypatch.setattr(housekeeper, "ROUND_S", 0.05)


def sweep(client: Client) -> list[Swept]:
    """One round, as a worker makes it: all its calls' answers."""

    async def calls() -> list[Swept]:
        found = [await client._client._store.sweep(0)]
        while found[-1].more:
            found.append(await client._client._store.sweep(found[-1].passed))
        return found

    return client._run(calls)


def forgotten(client: Client) -> int:
    return sum(swept.forgotten for swept in sweep(client))


def remember(client: Client, director: Director, room: str) -> None:
    """Have a room work once, so that it has state, and make that long ago."""
    client.send(room, "wait")
    run = director.run(room)
    run.do(lambda cycle: cycle.state.update(n=1))
    run.finish("done")
    wait_output(client, room, lambda output: output.body == "done")


def age(redis: redis_py.Redis, keys: Keys, *rooms: str) -> None:
    redis.zadd(keys.rooms, dict.fromkeys(rooms, LONG_AGO))


# What is said, and whose word counts. ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"outbox": 0},
        {"events": -1},
        {"control": True},
        {"dead": 1.5},
        {"outbox_for": timedelta(0)},
        {"outbox_for": 60},
        {"receipts": timedelta(seconds=59)},
        {"idle_rooms": timedelta(milliseconds=1)},
        {"idle_rooms": 0},
    ],
    ids=str,
)
def test_a_value_that_cannot_be_used_is_refused_by_its_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=f"^{next(iter(wrong))}: want "):
        Retention(**wrong)


def test_a_retention_that_is_none_is_refused(director: Director, agent: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^retention: want a Retention"):
        ActorSystem(director.agent(), agent=agent, retention={"dead": 1})  # type: ignore[arg-type]  # that is the point


def kept(redis: redis_py.Redis, keys: Keys) -> dict[str, str]:
    row: Any = redis.hgetall(keys.root)
    return {name: value for name, value in row.items() if name.startswith("keep_") and name != "keep_by"}


DEFAULTS = {
    "keep_outbox": "1000",
    "keep_outbox_s": "604800",
    "keep_events": "10000",
    "keep_control": "10000",
    "keep_receipts_s": "86400",
    "keep_dead": "100000",
}


@pytest.mark.usefixtures("by_hand")
def test_the_newest_workers_word_counts_and_redis_shows_it(
    running: Running, director: Director, redis: redis_py.Redis, keys: Keys
) -> None:
    older = running(director.agent(), retention=Retention(outbox=7, idle_rooms=timedelta(seconds=1.5)))
    assert kept(redis, keys) == {**DEFAULTS, "keep_outbox": "7", "keep_idle_rooms_s": "2"}
    running(director.agent())
    assert kept(redis, keys) == DEFAULTS
    older._control.run(older._worker.retain).result(WAIT_S)
    assert kept(redis, keys) == DEFAULTS


def test_who_has_no_lease_has_no_say(client: Client, redis: redis_py.Redis, keys: Keys) -> None:
    async def retain() -> str:
        return (await client._client._store.retain("gone", 10**15, Retention(dead=1))).word

    assert client._run(retain) == "lost"
    assert not redis.hexists(keys.root, "keep_dead")


@pytest.mark.usefixtures("at_once")
def test_a_redis_that_has_lost_what_is_to_be_kept_is_told_again(
    running: Running, director: Director, redis: redis_py.Redis, keys: Keys
) -> None:
    running(director.agent())
    redis.hdel(keys.root, *DEFAULTS, "keep_by")
    eventually(lambda: kept(redis, keys) == DEFAULTS, "it is said again")


# Streams. --------------------------------------------------------------------------------------------------


def chunks(director: Director, client: Client, room: str, count: int) -> None:
    client.send(room, "wait")
    run = director.run(room)

    async def send(cycle: Any) -> None:
        for number in range(count):
            await cycle.send(number)

    run.do(send)
    run.finish("end")
    wait_output(client, room, lambda output: output.body == "end")


def test_an_outbox_keeps_as_many_outputs_and_for_as_long_as_is_said(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    running(director.agent(), retention=Retention(outbox=300, outbox_for=HOUR))
    chunks(director, client, "42", 1000)
    assert 300 <= redis.xlen(keys.outbox("42")) < 300 + SLACK
    assert 3500 < int(redis.ttl(keys.outbox("42"))) <= 3600


def test_an_outbox_neither_expires_nor_is_trimmed_before_a_relay_is_done_with_it(
    running: Running,
    director: Director,
    client: Client,
    relaying: Relaying,
    receiver: Receiver,
    redis: redis_py.Redis,
    keys: Keys,
) -> None:
    running(director.agent(), retention=Retention(outbox=300, outbox_for=HOUR))
    client.ask("42", "before there is a relay")
    relaying().stop()
    client.send("42", "wait")
    director.run("42").send("of a cycle that is aborted")
    client.interrupt("42")
    chunks(director, client, "42", 1000)
    assert redis.xlen(keys.outbox("42")) > 1000
    assert redis.ttl(keys.outbox("42")) == redis.ttl(keys.aborted("42")) == -1
    relaying()
    receiver.wait_last("42", "end")
    wait_delivered(redis, keys)
    eventually(lambda: int(redis.xlen(keys.outbox("42"))) < 300 + SLACK, "the outbox is trimmed behind the relay")
    assert 3500 < int(redis.ttl(keys.outbox("42"))) <= 3600
    assert not redis.exists(keys.aborted("42"))


def test_events_and_receipts_are_kept_as_is_said(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    running(director.agent(), retention=Retention(events=300, receipts=HOUR))
    for number in range(600):
        client.play("42", cid=f"cid-{number}")
    assert 300 <= redis.xlen(keys.events) < 300 + SLACK
    assert 3500 < int(redis.ttl(f"{keys.root}:signal:cid-599")) <= 3600


def signal_often(client: Client, count: int) -> None:
    for number in range(count):
        client.play(*(f"idle-{number}-{room}" for room in range(100)))


@pytest.mark.usefixtures("by_hand")
def test_the_control_stream_is_trimmed_to_what_is_said_once_every_live_worker_has_read_it(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    fast, slow = (running(director.agent(), retention=Retention(control=300)) for _ in range(2))
    eventually(lambda: redis.hget(keys.worker(slow.name), "control"), "it has told its place")
    with blocked(slow._control):
        redis.expire(keys.worker(slow.name), 3600)  # its lease would run out, and with it its say
        signal_often(client, 6)
        wait_heard(fast)
        eventually(lambda: redis.hget(keys.worker(fast.name), "control") == fast._worker.control_seen, "it is told")
        sweep(client)
        assert redis.xlen(keys.control) == 600
    wait_heard(slow)
    eventually(lambda: redis.hget(keys.worker(slow.name), "control") == slow._worker.control_seen, "it is told")
    sweep(client)
    assert 300 <= redis.xlen(keys.control) < 300 + SLACK


@pytest.mark.usefixtures("by_hand")
def test_a_signal_written_by_hand_while_no_worker_runs_is_not_trimmed(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    running(director.agent(), retention=Retention(control=300)).stop()
    redis.xadd(keys.control, {"mode": "stop", "room": "42"})
    signal_often(client, 6)
    sweep(client)
    assert redis.xlen(keys.control) == 601
    system = running(director.agent(), retention=Retention(control=300))
    wait_heard(system)
    hold = client.status("42").hold
    assert hold is not None
    assert hold.mode == "stop"


# Dead letters. ---------------------------------------------------------------------------------------------


def die(client: Client, director: Director, room: str, count: int) -> list[int]:
    messages = []
    for _ in range(count):
        messages.append(client.send(room, "wait"))
        director.run(room).fail(Reject("no"))
    wait_output(client, room, lambda output: output.kind == "dead" and output.message == messages[-1])
    return messages


@pytest.mark.usefixtures("at_once")
def test_the_oldest_dead_letters_beyond_the_limit_are_dropped_with_an_event_and_a_warning_each(
    running: Running,
    director: Director,
    client: Client,
    redis: redis_py.Redis,
    agent: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        running(director.agent(), retention=Retention(dead=3))
        messages = die(client, director, "42", 5)
        wait_event(redis, agent, "message.dropped", room="42", message=f"{messages[1]}-0")
        eventually(lambda: sum("message.dropped" in line for line in caplog.messages) == 2, "two warnings")
    told = [line.split() for line in caplog.messages if "message.dropped" in line]
    assert all("error=Reject" in words for words in told), "of what it died, and none of its words"
    assert [letter.message for letter in client.dead_letters()] == messages[2:]
    dropped = events(redis, agent, "message.dropped")
    assert [(row["room"], row["message"]) for row in dropped] == [("42", f"{message}-0") for message in messages[:2]]
    assert all("no" in row["error"] and row["dead"] for row in dropped)


@pytest.mark.usefixtures("by_hand")
def test_many_dead_letters_are_dropped_a_hundred_a_call(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    running(director.agent(), retention=Retention(dead=3))
    for number in range(250):  # one of them was not written by greenroom
        redis.xadd(keys.dead, {"room": "42", "message": f"{number}-0", "error": "no"} if number else {"hello": "world"})
    assert [len(swept.dropped) for swept in sweep(client)] == [100, 100, 47]
    assert redis.xlen(keys.dead) == 3
    assert forgotten(client) == 0


@pytest.mark.usefixtures("by_hand")
def test_fewer_are_dropped_in_a_call_when_their_bodies_are_large(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    running(director.agent(), retention=Retention(dead=3))
    for number in range(12):
        redis.xadd(keys.dead, {"room": "42", "message": f"{number}-0", "error": "no", "body": "x" * 1_000_000})
    assert [len(swept.dropped) for swept in sweep(client)] == [5, 4]
    assert redis.xlen(keys.dead) == 3


# Idle rooms. -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("at_once")
def test_a_room_that_was_idle_for_too_long_is_forgotten_and_begins_anew(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys, agent: str
) -> None:
    running(director.agent(), retention=Retention(idle_rooms=timedelta(seconds=1)))
    remember(client, director, "42")
    row = wait_event(redis, agent, "room.forgotten", room="42")
    assert row["idle_since"].endswith("Z")
    assert not redis.exists(keys.state("42"))
    assert list(client.rooms()) == []
    client.send("42", "wait")
    run = director.run("42")
    assert run.do(lambda cycle: dict(cycle.state)) == {}
    run.finish()


@pytest.mark.usefixtures("by_hand")
def test_by_default_the_state_of_idle_rooms_is_kept(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    running(director.agent())
    remember(client, director, "42")
    age(redis, keys, "42")
    assert forgotten(client) == 0
    assert redis.exists(keys.state("42"))


@pytest.mark.usefixtures("by_hand")
def test_a_room_is_forgotten_after_as_long_as_is_said_and_not_before(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    running(director.agent(), retention=Retention(idle_rooms=HOUR))
    for room in ("young", "old"):
        remember(client, director, room)
    seconds: Any = redis.time()
    redis.zadd(keys.rooms, {"young": (seconds[0] - 1800) * 1000, "old": (seconds[0] - 5400) * 1000})
    assert forgotten(client) == 1
    assert [room.room for room in client.rooms()] == ["young"]


@pytest.mark.usefixtures("by_hand")
def test_nothing_that_is_under_way_is_forgotten(
    running: Running, director: Director, client: Client, relaying: Relaying, redis: redis_py.Redis, keys: Keys
) -> None:
    system = running(director.agent(), retention=Retention(idle_rooms=timedelta(seconds=1)))
    rooms = ["working", "stopped", "waiting", "agent-held", "undelivered", "idle"]
    for room in rooms:
        if room != "undelivered":
            remember(client, director, room)
    client.send("working", "wait")
    director.run("working")
    client.stop("stopped")
    system.stop(timedelta(0))
    client.send("waiting", "wait")
    relaying().stop()
    running(director.agent(), retention=Retention(idle_rooms=timedelta(seconds=1)))
    remember(client, director, "undelivered")
    client.pause(everywhere=True)
    client.send("agent-held", "wait")
    age(redis, keys, *rooms)
    run = director.run("working")
    assert forgotten(client) == 1
    assert {room for room in rooms if redis.exists(keys.state(room))} == set(rooms) - {"idle"}
    client.forget_relay("relay")
    assert forgotten(client) == 1
    assert {room for room in rooms if redis.exists(keys.state(room))} == set(rooms) - {"idle", "undelivered"}
    run.finish()


@pytest.mark.usefixtures("by_hand")
def test_a_room_is_idle_from_the_end_of_its_work_on_and_not_from_its_beginning(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    running(director.agent(), retention=Retention(idle_rooms=HOUR))
    client.send("42", "wait")
    run = director.run("42")
    age(redis, keys, "42")  # its cycle goes on for decades
    run.do(lambda cycle: cycle.state.update(n=1))
    run.finish("done")
    wait_output(client, "42", lambda output: output.body == "done")
    assert forgotten(client) == 0
    assert redis.exists(keys.state("42"))


@pytest.mark.usefixtures("by_hand")
def test_rooms_that_are_kept_do_not_hide_those_behind_them_and_no_call_looks_at_more_than_a_hundred(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    running(director.agent(), retention=Retention(idle_rooms=HOUR))
    client.stop(*(f"stopped-{number:03}" for number in range(250)))
    for number in range(150):
        redis.set(keys.state(f"idle-{number:03}"), b"state")
    age(redis, keys, *(f"stopped-{number:03}" for number in range(250)))
    redis.zadd(keys.rooms, {f"idle-{number:03}": LONG_AGO + 1 for number in range(150)})
    calls = sweep(client)
    assert [swept.forgotten for swept in calls] == [0, 0, 50, 100, 0]
    assert redis.zcard(keys.rooms) == 250


@pytest.mark.usefixtures("by_hand")
def test_workers_that_sweep_at_once_forget_each_room_once(
    running: Running, director: Director, redis: redis_py.Redis, keys: Keys, agent: str, redis_url: str
) -> None:
    running(director.agent(), retention=Retention(idle_rooms=HOUR))
    rooms = [f"idle-{number:03}" for number in range(500)]
    for room in rooms:
        redis.set(keys.state(room), b"state")
    age(redis, keys, *rooms)

    async def round_(store: Store) -> int:
        found, passed, more = 0, 0, True
        while more:
            swept = await store.sweep(passed)
            found, passed, more = found + swept.forgotten, swept.passed, swept.more
        return found

    async def both() -> list[int]:
        connections = [connect(redis_url) for _ in range(2)]
        workers = [Store(connection, keys) for connection in connections]
        found = await asyncio.gather(*map(round_, workers))
        for worker, connection in zip(workers, connections, strict=True):
            await worker.close()
            await connection.aclose()
        return found

    assert sum(asyncio.run(both())) == 500
    assert sorted(row["room"] for row in events(redis, agent, "room.forgotten")) == rooms
