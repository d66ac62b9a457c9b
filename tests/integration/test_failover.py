"""The primary is lost and a replica takes over, by real Sentinels: work goes on, control included; and a Redis that comes back
without its data is noticed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from greenroom import (
    ActorSystem,
    AsyncClient,
    Client,
    Durability,
    Kind,
    NotReplicated,
    Outcome,
    RedisEmptied,
)
from greenroom.protocol.connect import connect
from greenroom.protocol.keys import Keys
from greenroom.protocol.server import RedisServer
from greenroom.protocol.store import Store
from integration.agents import WAIT_S, Director, Run, eventually, wait_output
from integration.conftest import Running
from integration.replicated import Watched, confirm_all, replicated, timed, watched

from helpers import lasting_server

ROOMS = [f"room-{number}" for number in range(5)]
PATIENCE_S = 2 * WAIT_S


@pytest.fixture
def redises(tmp_path: Path) -> Iterator[Watched]:
    with watched(tmp_path) as servers:
        yield servers


def lose_by_kill(redises: Watched) -> None:
    redises.primary.kill()


def lose_by_hang(redises: Watched) -> None:
    redises.primary.suspend()


def come_back_as_replica(redises: Watched, *, hung: bool) -> None:
    if hung:  # it takes itself for the primary until a Sentinel tells it otherwise, some 10 s later
        redises.primary.resume()
    else:
        redises.primary.start()
        redises.primary.redis.replicaof("127.0.0.1", redises.replica.port)


LOSSES = pytest.mark.parametrize("lose", [lose_by_kill, lose_by_hang], ids=["killed", "hanging"])


async def send_all(client: AsyncClient, room: str, count: int, accepted: list[int], a_third: asyncio.Event) -> None:
    """Send numbers one after the other; what is not confirmed is sent again under its key, until it is."""
    for number in range(count):
        if number == count // 3:
            a_third.set()
        while True:
            try:
                accepted.append(await client.send(room, number, key=f"{room}-{number}"))
                break
            except NotReplicated:
                continue


@LOSSES
def test_work_goes_on_after_a_fail_over_and_what_replicas_confirmed_is_done_once_and_in_order(
    redises: Watched, director: Director, agent: str, lose: Callable[[Watched], None]
) -> None:
    """row 40"""
    accepted: dict[str, list[int]] = {room: [] for room in ROOMS}
    count = 150

    async def send() -> None:
        durability = Durability(replicas=1, timeout=timedelta(milliseconds=200))
        a_third = asyncio.Event()
        client = AsyncClient(agent, redis=redises.url, timeout=PATIENCE_S, durability=durability)
        async with asyncio.timeout(2 * WAIT_S), client, asyncio.TaskGroup() as sending:
            for room in ROOMS:
                sending.create_task(send_all(client, room, count, accepted[room], a_third))
            await a_third.wait()
            await asyncio.to_thread(lose, redises)
            # The only replica is the primary now: nobody is left to confirm, until the former primary is back as a replica.
            await asyncio.to_thread(redises.wait_promoted)
            await asyncio.to_thread(come_back_as_replica, redises, hung=lose is lose_by_hang)

    systems = [ActorSystem(director.agent(max_attempts=10), agent=agent, redis=redises.url, name=f"w{n}") for n in range(2)]
    with ExitStack() as stack:
        for system in systems:
            system.start()
            stack.callback(system.stop, timedelta(0))
        asyncio.run(send())
        with Client(agent, redis=redises.url, timeout=PATIENCE_S) as client:
            for room in ROOMS:
                wait_output(client, room, lambda output: output.kind is Kind.REPLY and output.body == count - 1)
                replies = [(o.message, o.body) for o in client.outputs(room) if o.kind is Kind.REPLY]
                assert [body for _, body in replies] == list(range(count))  # against what this test sent: none lost, none twice
                assert [message for message, _ in replies] == accepted[room]
                assert sorted(set(director.bodies(room))) == list(range(count))
            assert client.overview().dead == 0
        assert all(system.wait(0) is False for system in systems)


@LOSSES
def test_a_cycle_in_flight_ends_and_signals_reach_another_after_a_fail_over(
    redises: Watched, director: Director, agent: str, lose: Callable[[Watched], None], record_property: Callable[..., None]
) -> None:
    """row 40"""
    system = ActorSystem(director.agent(max_attempts=10), agent=agent, redis=redises.url, max_rooms=3)
    with system, Client(agent, redis=redises.url, timeout=PATIENCE_S) as client:
        for room in ("a", "b", "c"):
            client.send(room, "wait")
        a, b, c = (director.run(room) for room in ("a", "b", "c"))
        a.send("before")
        client.send("d", "next")
        confirm_all(redises.primary)  # this is about a replica that has it
        lose(redises)
        sent = a.begin(lambda cycle: cycle.send("after"))
        # Control first: no slot is free, and none is needed.
        record_property("stop_s", timed(lambda: check_stopped(client, b)))
        assert [receipt.outcome for receipt in client.interrupt("c")] == [Outcome.APPLIED]
        c.wait_cancelled()
        sent.result(WAIT_S)
        a.finish("done")
        wait_output(client, "a", lambda output: output.kind is Kind.REPLY)
        assert [output.body for output in client.outputs("a")] == ["before", "after", "done"]
        wait_output(client, "d", lambda output: output.kind is Kind.REPLY)
        assert client.status("b").hold is not None
        client.play("b")
        director.run("b").finish("replayed")
        wait_output(client, "b", lambda output: output.body == "replayed")
        assert director.count("c") == 1
        assert system.wait(0) is False


def check_stopped(client: Client, run: Run) -> None:
    assert [receipt.outcome for receipt in client.stop(run.room)] == [Outcome.APPLIED]
    run.wait_cancelled()


def test_a_client_that_follows_a_room_hears_it_again_after_a_fail_over(
    redises: Watched, director: Director, agent: str
) -> None:
    """row 40"""

    async def test() -> None:
        async with AsyncClient(agent, redis=redises.url, timeout=PATIENCE_S) as client, asyncio.timeout(2 * WAIT_S):
            assert await client.ask("42", "before") == "before"
            asked = asyncio.create_task(client.ask("42", "wait", timeout=None))
            run = await director.arun("42")
            await asyncio.to_thread(confirm_all, redises.primary)
            redises.primary.suspend()
            await asyncio.to_thread(redises.wait_promoted)
            await asyncio.to_thread(run.send, "chunk")
            run.finish("after")
            assert await asked == "after"

    with ActorSystem(director.agent(max_attempts=10), agent=agent, redis=redises.url):
        asyncio.run(test())


def test_a_sentinel_that_is_gone_and_one_that_hangs_do_not_keep_anybody_from_the_primary(
    redises: Watched, director: Director, agent: str
) -> None:
    redises.sentinels[0].kill()
    redises.sentinels[1].suspend()
    with (
        ActorSystem(director.agent(), agent=agent, redis=redises.url),
        Client(agent, redis=redises.url, timeout=PATIENCE_S) as client,
    ):
        assert client.ask("42", "x") == "x"
        redises.primary.redis.client_kill_filter(_type="normal", skipme=True)
        assert client.ask("42", "y") == "y"


def test_a_system_that_ends_leaves_no_connection_to_redis_or_to_sentinels(
    redises: Watched, director: Director, agent: str
) -> None:
    nodes = [redises.primary, *redises.sentinels]

    def others() -> int:  # all but this test's own connections and those of the servers among themselves
        rows: list[Any] = [row for node in nodes for row in node.redis.client_list()]
        return sum(row["flags"] in ("N", "b", "P") and not row["name"] for row in rows) - len(nodes)

    eventually(lambda: others() == 0, "what earlier tests had connected is gone")
    with (
        ActorSystem(director.agent(), agent=agent, redis=redises.url),
        Client(agent, redis=redises.url, timeout=PATIENCE_S) as client,
    ):
        assert client.ask("42", "x") == "x"
        assert others() >= 5
    eventually(lambda: others() == 0, "all connections are closed")


# Without Sentinels: a primary that is demoted, and what it says then. -------------------------------------


def test_a_request_that_a_replica_refuses_waits_until_it_is_the_primary(tmp_path: Path, agent: str) -> None:
    with replicated(tmp_path) as (_, replica):

        async def test() -> None:
            redis = connect(replica.url)
            store = Store(redis, Keys(agent))
            async with asyncio.timeout(WAIT_S):
                sent = store.enqueue("42", b"x", key="k", key_ttl_s=60, limit=10)
                await asyncio.wait([sent], timeout=0.5)
                assert not sent.done()
                await asyncio.to_thread(replica.redis.replicaof, "NO", "ONE")
                await sent
            assert store.pipeline.reconnects >= 1
            await store.close()
            await redis.aclose()

        asyncio.run(test())
        assert replica.redis.xlen(Keys(agent).messages("42")) == 1


def test_a_worker_waits_while_its_primary_may_not_write_without_replicas(
    tmp_path: Path, director: Director, agent: str
) -> None:
    with ExitStack() as stack:
        lines = ("min-replicas-to-write 1", "min-replicas-max-lag 10")
        primary, replica = stack.enter_context(replicated(tmp_path, *lines))
        client = stack.enter_context(Client(agent, redis=primary.url, timeout=PATIENCE_S))
        system = stack.enter_context(ActorSystem(director.agent(), agent=agent, redis=primary.url))
        assert client.ask("42", "x") == "x"
        replica.kill()
        eventually(lambda: not system._store.pipeline.connected, "the worker is told that it may not write")
        asked: list[str] = []
        asking = threading.Thread(target=lambda: asked.append(client.ask("42", "y")))
        asking.start()
        replica.start()
        asking.join(WAIT_S)
        assert asked == ["y"]
        assert system.wait(0) is False


def test_the_listener_hears_signals_whose_ids_are_lower_than_those_of_a_lost_primary(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """row 40: a promoted replica without the last entries gives ids by its own clock, which may be behind"""
    system = running(director.agent())
    client.send("42", "wait")
    run = director.run("42")
    client.interrupt("idle")  # an entry of the script's
    entries: Any = redis.xrevrange(keys.control, count=1)
    redis.xadd(keys.control, entries[0][1], id="99999999999999-0")  # the clock of the lost primary was ahead
    eventually(lambda: system._worker.control_seen == "99999999999999-0", "the worker has read it")
    redis.delete(keys.control)  # and what it wrote last is lost
    redis.client_kill_filter(_type="normal", skipme=True)
    redis.xadd(keys.control, {"mode": "stop", "room": "42"})
    run.wait_cancelled()
    eventually(lambda: client.status("42").hold is not None, "the stop is applied")


def test_a_primary_that_comes_back_after_seconds_finds_the_worker_waiting_and_control_acts_first(
    director: Director, agent: str, redis_dir: Path
) -> None:
    """row 40"""
    server = lasting_server(redis_dir)
    server.start()
    system = ActorSystem(director.agent(), agent=agent, redis=server.url, max_rooms=1)
    with ExitStack() as stack:
        stack.callback(server.stop)
        client = stack.enter_context(Client(agent, redis=server.url, timeout=PATIENCE_S))
        stack.enter_context(system)
        client.send("42", "wait")
        run = director.run("42")
        for room in ROOMS:
            client.send(room, "next")
        server.kill()
        eventually(lambda: not system._store.pipeline.connected, "the worker is not ready")
        stopping = threading.Thread(target=lambda: check_stopped(client, run))
        stopping.start()
        threading.Event().wait(4)  # the outage
        assert not system._store.pipeline.connected
        assert system.wait(0) is False  # it lives
        server.start()
        stopping.join(WAIT_S)
        run.wait_cancelled()
        for room in ROOMS:
            wait_output(client, room, lambda output: output.kind is Kind.REPLY)
        eventually(lambda: system._store.pipeline.connected, "the worker is ready")
        assert director.count("42") == 1


# A Redis without its data. ----------------------------------------------------------------------------------


def test_a_worker_ends_within_its_lease_when_redis_is_flushed(director: Director, agent: str, redis_dir: Path) -> None:
    """row 42"""
    with RedisServer(redis_dir) as server, redis_py.Redis.from_url(server.url, decode_responses=True) as redis:
        system = ActorSystem(director.agent(), agent=agent, redis=server.url, lease=timedelta(seconds=2)).start()
        try:
            with Client(agent, redis=server.url) as client:
                client.send("42", "wait")
                run = director.run("42")
                client.stop("43")
                redis.flushall()
                with pytest.raises(RedisEmptied, match="stops included"):
                    system.wait(WAIT_S)
                run.wait_cancelled()
                assert redis.keys("*worker*") == []  # nothing of it is written there anew
        finally:
            system.stop(timedelta(0))
        with ActorSystem(director.agent(), agent=agent, redis=server.url), Client(agent, redis=server.url) as client:
            assert client.ask("43", "the loss is accepted") == "the loss is accepted"


def test_a_worker_ends_when_redis_is_restarted_without_its_data(director: Director, agent: str, redis_dir: Path) -> None:
    """row 42"""
    with RedisServer(redis_dir, appendonly=False) as server:
        system = ActorSystem(director.agent(), agent=agent, redis=server.url, lease=timedelta(seconds=2)).start()
        try:
            with Client(agent, redis=server.url, timeout=PATIENCE_S) as client:
                assert client.ask("42", "x") == "x"
                server.kill()
                server.start()
                client.send("42", "a client may be there first")
                with pytest.raises(RedisEmptied, match="stops included"):
                    system.wait(WAIT_S)
        finally:
            system.stop(timedelta(0))


def test_a_worker_of_the_lost_data_does_not_end_a_newer_one_of_its_name(
    agent: str, redis: redis_py.Redis, redis_url: str
) -> None:
    """row 42, row 37"""

    async def test() -> None:
        plain = connect(redis_url)
        store = Store(plain, Keys(agent))
        async with asyncio.timeout(WAIT_S):
            old = await store.heartbeat("same", None, lease_ms=5000, instance="lost", about={})
            await asyncio.to_thread(redis.delete, *redis.keys(f"{Keys(agent).root}*"))
            new = await store.heartbeat("same", None, lease_ms=5000, instance="fresh", about={})
            assert (await store.heartbeat("same", old.incarnation, lease_ms=5000, instance="lost", about={})).word == "emptied"
            beat = await store.heartbeat("same", new.incarnation, lease_ms=5000, instance="fresh", about={})
            assert (beat.word, beat.incarnation) == ("ok", new.incarnation)
        await store.close()
        await plain.aclose()

    asyncio.run(test())
