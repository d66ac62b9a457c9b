"""Redis goes away and comes back: work resumes by itself, control included, and nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import groupby
from typing import Any

import pytest
import redis as redis_py

from greenroom import ActorSystem, AsyncClient, Client, Kind, Outcome, RedisRefused, RedisUnavailable, Relay
from greenroom.protocol.connect import back_off
from greenroom.protocol.server import RedisServer
from greenroom.supervisors import control, dispatcher, listeners
from greenroom.supervisors import relay as relay_module
from greenroom.supervisors import system as system_module
from integration.agents import WAIT_S, Director, eventually, wait_heard, wait_logged, wait_output
from integration.conftest import Running

ROOMS = [f"room-{number}" for number in range(5)]
PATIENCE_S = 2 * WAIT_S


@pytest.fixture
def redis_url(server: RedisServer) -> str:
    """Systems and clients of these tests talk to the test's own server."""
    return server.url


@pytest.fixture
def client(redis_url: str, agent: str) -> Iterator[Client]:
    with Client(agent, redis=redis_url, timeout=PATIENCE_S) as client:
        yield client


def restart(server: RedisServer, *, crash: bool = True) -> None:
    url = server.url
    if crash:
        server.kill()
    else:
        server.stop()
    server.start()
    assert server.url == url


def kill_connections(redis: redis_py.Redis) -> None:
    for kind in ("normal", "pubsub"):
        redis.client_kill_filter(_type=kind, skipme=True)


async def ask_all(client: AsyncClient, per_room: int, disturb: Any) -> None:
    """Ask each room so many things, and have ``disturb(round)`` called now and then on another thread."""
    asks = []
    async with asyncio.timeout(2 * WAIT_S):
        for number in range(per_room):
            asks += [asyncio.create_task(client.ask(room, number, timeout=None)) for room in ROOMS]
            await asyncio.sleep(0)
            if number % 10 == 5:
                await asyncio.to_thread(disturb)
        assert await asyncio.gather(*asks) == [number for number in range(per_room) for _ in ROOMS]


def check_once(client: Client, director: Director, per_room: int, *, runs_once: bool) -> None:
    """Every message was answered once and in order; a run may only be repeated when its server died in the middle of it."""
    for room in ROOMS:
        replies = [output for output in client.outputs(room) if output.kind is Kind.REPLY]
        assert sorted(output.body for output in replies) == list(range(per_room))
        messages = [output.message for output in replies]
        assert messages == sorted(messages)  # asks of tasks of their own: an outage may send them in another order
        bodies = director.bodies(room)
        assert [body for body, _ in groupby(bodies)] == [output.body for output in replies]
        if runs_once:
            assert Counter(bodies).most_common(1)[0][1] == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_connections_killed_in_the_middle_of_work_lose_and_repeat_nothing(
    running: Running, director: Director, client: Client, redis_url: str, agent: str, redis: redis_py.Redis, workers: int
) -> None:
    """row 40"""
    systems = [running(director.agent()) for _ in range(workers)]

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url, timeout=PATIENCE_S) as asking:
            await ask_all(asking, 60, lambda: kill_connections(redis))

    asyncio.run(test())
    check_once(client, director, 60, runs_once=True)
    assert all(system._store.pipeline.reconnects >= 1 for system in systems)


@pytest.mark.parametrize("crash", [True, False], ids=["killed", "restarted"])
def test_a_restart_of_redis_in_the_middle_of_work_loses_and_repeats_nothing(
    running: Running, director: Director, client: Client, redis_url: str, agent: str, server: RedisServer, crash: bool
) -> None:
    """row 40"""
    running(director.agent())

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url, timeout=PATIENCE_S) as asking:
            await ask_all(asking, 30, lambda: restart(server, crash=crash))

    asyncio.run(test())
    check_once(client, director, 30, runs_once=True)


def test_a_cycle_that_ends_while_a_script_of_somebody_blocks_redis_is_committed_after_it(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """row 40"""
    running(director.agent(max_attempts=1))
    client.send("a", "wait")
    run = director.run("a")
    redis.config_set("lua-time-limit", "10")

    def block() -> None:
        with suppress(redis_py.ResponseError):  # it is killed
            redis.eval("while true do end", 0)

    def is_busy() -> bool:
        try:
            redis.ping()
        except redis_py.ResponseError as error:
            return "BUSY" in str(error)
        return False

    blocking = threading.Thread(target=block)
    blocking.start()
    try:
        eventually(is_busy, "no script blocks Redis")
        run.finish("done")
        wait_logged(caplog, "redis.lost")
    finally:
        redis.script_kill()
        blocking.join(WAIT_S)
    wait_output(client, "a", lambda output: output.kind is Kind.REPLY)
    assert [(output.ticket, output.kind, output.body) for output in client.outputs("a")] == [(run.ticket, Kind.REPLY, "done")]


@pytest.mark.parametrize("how", ["connections", "redis"])
def test_a_cycle_in_flight_goes_on_over_a_lost_redis_and_control_still_reaches_it(
    running: Running, director: Director, client: Client, server: RedisServer, redis: redis_py.Redis, how: str
) -> None:
    """row 40"""
    running(director.agent())
    for room in ("a", "b", "c"):
        client.send(room, "wait")
    a, b, c = (director.run(room) for room in ("a", "b", "c"))
    a.send(1)
    for _ in range(3):
        kill_connections(redis) if how == "connections" else restart(server)
    a.send(2)
    a.finish("done")
    assert [receipt.outcome for receipt in client.stop("b")] == [Outcome.APPLIED]
    assert [receipt.outcome for receipt in client.interrupt("c")] == [Outcome.APPLIED]
    for run in (b, c):
        run.wait_cancelled()
    wait_output(client, "a", lambda output: output.kind is Kind.REPLY)
    assert [(o.ticket, o.seq, o.body) for o in client.outputs("a")] == [
        (a.ticket, 1, 1),
        (a.ticket, 2, 2),
        (a.ticket, 3, "done"),
    ]
    client.play("b")
    director.run("b").finish("replayed")
    wait_output(client, "b", lambda output: output.body == "replayed")


def test_what_a_cycle_does_during_an_outage_waits_and_is_done_once(
    running: Running, director: Director, client: Client, server: RedisServer
) -> None:
    """row 40"""
    system = running(director.agent())
    client.send("42", "wait")
    run = director.run("42")
    run.send("before")
    server.kill()
    sent = run.begin(lambda cycle: cycle.send("during"))
    eventually(lambda: not system._store.pipeline.connected, "the worker has noticed")
    assert not sent.done()
    server.start()
    sent.result(WAIT_S)
    run.finish("after")
    wait_output(client, "42", lambda output: output.kind is Kind.REPLY)
    assert [output.body for output in client.outputs("42")] == ["before", "during", "after"]
    assert director.count("42") == 1


def test_an_outage_longer_than_the_lease_is_survived(
    running: Running, director: Director, client: Client, server: RedisServer, redis: redis_py.Redis
) -> None:
    """row 40"""
    systems = [running(director.agent(max_attempts=10), lease=timedelta(seconds=1)) for _ in range(2)]
    for room in ROOMS:
        client.send(room, "wait")
    for room in ROOMS:
        director.run(room)
    server.kill()
    threading.Event().wait(1.5)  # the outage: longer than the lease
    server.start()
    for room in ROOMS:  # whoever has the room now, the same worker or the other
        eventually(lambda r=room: finish_live(director, client, r), f"{room} is answered")  # type: ignore[misc]
        wait_output(client, room, lambda output: output.kind is Kind.REPLY)
        assert [o.kind for o in client.outputs(room)].count(Kind.REPLY) == 1
    assert client.ask("new", "x") == "x"
    assert all(system.wait(0) is False for system in systems)


def finish_live(director: Director, client: Client, room: str) -> bool:
    """Finish the run of the live cycle, if one runs here; answer whether the room has been answered."""
    ticket = client.status(room).ticket
    for run in list(director.runs):
        if run.room == room and run.ticket == ticket and not run.ended.is_set():
            run.finish("answered")
    return client.status(room).waiting == 0


def test_a_stop_sent_just_before_redis_dies_is_there_when_it_is_back(
    running: Running, director: Director, client: Client, server: RedisServer
) -> None:
    """row 40, row 16"""
    running(director.agent())
    client.send("42", "wait")
    run = director.run("42")
    client.stop("42")
    restart(server)
    run.wait_cancelled()
    eventually(lambda: client.status("42").owner is None, "the room is given back")
    assert client.status("42").hold is not None
    assert client.ask("other", "x") == "x"
    assert director.count("42") == 1


def test_clients_wait_for_redis_within_their_timeout_and_say_so_after_it(
    director: Director, agent: str, server: RedisServer, redis_url: str
) -> None:
    """row 40"""
    with Client(agent, redis=redis_url, timeout=0.3) as hasty, Client(agent, redis=redis_url, timeout=PATIENCE_S) as patient:
        hasty.send("42", "x")
        patient.send("42", "x")
        server.kill()
        with pytest.raises(RedisUnavailable, match="cannot be reached"):
            hasty.send("42", "lost")
        answers: list[int] = []
        sender = threading.Thread(target=lambda: answers.append(patient.send("42", "kept")))
        sender.start()
        server.start()
        sender.join(WAIT_S)
        assert len(answers) == 1
        assert patient.status("42").waiting in (3, 4)  # the hasty one was told that its message may or may not have arrived
        assert hasty.send("42", "again")


def test_a_worker_stops_in_its_time_while_redis_is_away(
    redis_url: str, agent: str, director: Director, server: RedisServer
) -> None:
    """row 38, row 40"""
    system = ActorSystem(director.agent(), agent=agent, redis=redis_url).start()
    with Client(agent, redis=redis_url) as client:
        client.send("42", "wait")
        run = director.run("42")
        server.kill()
        eventually(lambda: not system._store.pipeline.connected, "the worker has noticed")
        stopper = threading.Thread(target=system.stop, args=(timedelta(0),))
        stopper.start()
        stopper.join(WAIT_S)
        assert not stopper.is_alive()
        run.wait_cancelled()


def test_a_worker_restarted_during_the_outage_picks_up_what_was_there(
    director: Director, agent: str, server: RedisServer, redis_url: str
) -> None:
    """row 40, row 35"""
    agent_class = director.agent(max_attempts=5)
    with Client(agent, redis=redis_url, timeout=PATIENCE_S) as client:
        first = ActorSystem(agent_class, agent=agent, redis=redis_url, name="same").start()
        client.send("42", "wait")
        director.run("42")
        server.kill()
        first.stop(timedelta(0))
        server.start()
        with ActorSystem(agent_class, agent=agent, redis=redis_url, name="same"):
            again = director.run("42")
            assert again.attempt == 2
            again.finish("done")
            wait_output(client, "42", lambda output: output.kind is Kind.REPLY)


def test_a_long_outage_is_told_once_and_not_at_each_try_and_the_next_one_again(
    running: Running,
    director: Director,
    client: Client,
    server: RedisServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = Counter[str]()

    def counted(part: str) -> Callable[[int], Awaitable[None]]:
        async def again(failures: int) -> None:
            tries[part] += 1
            await back_off(failures, most_s=0.05)

        return again

    for part in (control, dispatcher, listeners):
        monkeypatch.setattr(part, "back_off", counted(part.__name__))
    system = running(director.agent())
    system.on("cycle.committed", lambda _: None)
    for outage in (1, 2):
        caplog.clear()
        eventually(lambda: system.ready, "it works")
        assert client.ask("42", f"before outage {outage}", timeout=PATIENCE_S)
        client.pause("other")
        wait_heard(system)
        tries.clear()
        server.kill()
        eventually(lambda: len(tries) == 3 and min(tries.values()) >= 10, "each part has tried ten times")
        told = Counter(f"{record.greenroom['event']}: {record.greenroom['error']}" for record in lost(caplog))
        assert {words.partition(":")[0] for words in told} >= {
            "control.lost",
            "dispatcher.lost",
            "listeners.lost",
            "redis.lost",
        }
        assert max(told.values()) <= 2, told  # the two parts of the dispatcher tell for themselves
        server.start()


def lost(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """The records that say that a connection is lost."""
    return [record for record in caplog.records if re.search(r"event=\w+\.lost ", record.getMessage())]


# It answers, and does not do what it is asked. ---------------------------------------------------------------


def test_a_client_does_not_wait_longer_than_its_timeout_for_a_redis_that_answers_and_writes_nothing(
    redis_url: str, agent: str
) -> None:
    """A replica, also while it answers what the same client reads."""
    reads = 0

    async def refused(client: AsyncClient) -> None:
        nonlocal reads
        sending = asyncio.create_task(client.send("42", "again"))
        while not sending.done():
            with suppress(RedisUnavailable):
                await client.status("42")
                reads += 1
        with pytest.raises(RedisUnavailable, match="read only"):
            await sending

    async def main() -> None:
        async with AsyncClient(agent, redis=redis_url, timeout=1) as client, asyncio.timeout(WAIT_S):
            await client.send("42", "hello")
            redis.replicaof("127.0.0.1", "1")
            await refused(client)
            redis.replicaof("NO", "ONE")
            await client.send("42", "at last")
            assert (await client.status("42")).waiting == 2

    with redis_py.Redis.from_url(redis_url) as redis:
        asyncio.run(main())
    assert reads > 0


def test_a_worker_is_not_ready_while_redis_writes_nothing_and_goes_on_when_it_does(
    running: Running, director: Director, redis_url: str, client: Client
) -> None:
    system = running(director.agent(), lease=timedelta(seconds=60))
    with redis_py.Redis.from_url(redis_url) as redis:
        redis.replicaof("127.0.0.1", "1")
        eventually(lambda: not system.ready, "it is not ready")
        redis.replicaof("NO", "ONE")
    assert client.ask("42", "hello", timeout=WAIT_S) == "hello"
    eventually(lambda: system.ready, "it is ready")


def test_a_full_redis_ends_no_worker_and_its_clients_are_told_at_once(
    running: Running, director: Director, redis_url: str, client: Client
) -> None:
    system = running(director.agent(), lease=timedelta(seconds=1))
    with redis_py.Redis.from_url(redis_url) as redis:

        def connections() -> int:
            return int(redis.info("stats")["total_connections_received"])

        redis.config_set("maxmemory", "1")
        with pytest.raises(RedisRefused, match="full"):
            client.send("42", "hello")
        tried = connections()
        eventually(lambda: connections() > tried + 7, "the worker tries again and again")
        redis.config_set("maxmemory", "0")
    assert client.ask("42", "hello", timeout=WAIT_S) == "hello"
    eventually(lambda: system.ready, "it is ready")


@pytest.mark.parametrize("part", [system_module, relay_module])
def test_a_start_on_a_redis_that_writes_nothing_says_so(
    part: Any, director: Director, redis_url: str, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "START_PATIENCE_S", 1.0)
    starting: Any = (
        ActorSystem(director.agent(), agent=agent, redis=redis_url)
        if part is system_module
        else Relay(agent, print, redis=redis_url)
    )
    with redis_py.Redis.from_url(redis_url) as redis:
        redis.replicaof("127.0.0.1", "1")
        with pytest.raises(RedisUnavailable, match="read only"):
            starting.start()
