"""Starting, stopping and being superseded: what runs finishes or is given back, and nothing is left behind."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pykka
import pytest
import redis as redis_py

import greenroom
from greenroom import (
    ActorSystem,
    Agent,
    Backoff,
    BudgetSpent,
    Client,
    GreenroomError,
    Kind,
    Phase,
    RedisRefused,
    RedisUnavailable,
    Superseded,
)
from greenroom.protocol.keys import Keys
from greenroom.protocol.server import RedisServer
from greenroom.supervisors.control import ControlListener
from integration.agents import WAIT_S, Director, eventually, settled, wait_output
from integration.conftest import Running

from helpers import unique

LONG = timedelta(seconds=300)


# Draining. ----------------------------------------------------------------------------------------------------


def stopping(system: ActorSystem, grace: timedelta) -> Future[None]:
    """Stop a system on another thread; wait until its drain has begun."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(system.stop, grace)
    pool.shutdown(wait=False)

    def drains() -> bool:
        rooms = system._worker.rooms
        actor = rooms._actor_weakref() if rooms is not None else None
        return actor is None or actor._draining is not None

    eventually(drains, "the drain begins")
    return future


def test_stop_lets_cycles_finish_within_the_grace_and_takes_nothing_new(
    running: Running, director: Director, client: Client
) -> None:
    """row 38"""
    agent_class = director.agent()
    system = running(agent_class, lease=LONG)
    client.send("42", "wait")
    run = director.run("42")
    client.send("42", "second")
    stopped = stopping(system, timedelta(seconds=WAIT_S))
    client.send("43", "meanwhile")
    run.send("still accepted")
    run.finish("finished")
    stopped.result(WAIT_S)
    assert settled(client, "42", run.ticket).body == "finished"
    assert director.bodies("42") == ["wait"]
    assert director.count("43") == 0
    for room in ("42", "43"):
        status = client.status(room)
        assert (status.owner, status.phase, status.waiting) == (None, Phase.QUEUED, 1)
    running(agent_class, lease=LONG)
    wait_output(client, "42", lambda output: output.body == "second")
    wait_output(client, "43", lambda output: output.body == "meanwhile")


@pytest.mark.parametrize("threaded", [False, True])
def test_stop_gives_back_the_rest_with_the_attempt_refunded_for_others_to_take_at_once(
    running: Running, director: Director, client: Client, threaded: bool
) -> None:
    """row 38, row 10"""
    agent_class = director.agent(threaded=threaded, max_attempts=1)
    rooms = [f"room-{number}" for number in range(5)]
    for room in rooms:
        client.send(room, "wait")
    system = running(agent_class, lease=LONG)
    for _ in range(3):
        runs = [director.run(room) for room in rooms]
        assert [run.attempt for run in runs] == [1] * 5
        successor = running(agent_class, lease=LONG)
        system.stop(timedelta(0))
        for run in runs:
            run.wait_cancelled()
            last = settled(client, run.room, run.ticket)
            assert (last.kind, last.mode) == (Kind.ABORTED, "release")
        system = successor
    for room in rooms:
        run = director.run(room)
        assert run.attempt == 1
        run.finish("at last")
        assert settled(client, room, run.ticket).body == "at last"


def test_stop_gives_back_rooms_that_wait_out_a_back_off(running: Running, director: Director, client: Client) -> None:
    """row 38"""
    agent_class = director.agent(retry=Backoff(first=timedelta(hours=1), most=timedelta(hours=1)))
    system = running(agent_class, lease=LONG)
    client.send("42", "fail")
    eventually(lambda: client.status("42").phase is Phase.BACKOFF, "the failure is on record")
    system.stop(timedelta(seconds=WAIT_S))
    assert client.status("42").owner is None
    running(agent_class, lease=LONG)
    eventually(lambda: client.status("42").owner is not None or client.status("42").phase is Phase.BACKOFF, "it is taken")
    client.interrupt("42")
    assert client.ask("42", "next") == "next"


def test_stop_does_not_depend_on_handlers_that_behave(running: Running, client: Client, redis_url: str, agent: str) -> None:
    """row 38"""
    begun, go = threading.Semaphore(0), threading.Event()
    ended: list[str] = []
    all_ended = threading.Semaphore(0)

    class Deaf(Agent):
        abort_timeout = timedelta(milliseconds=100)

        def respond(self, message: Any, cycle: Any) -> Any:
            begun.release()
            go.wait(2 * WAIT_S)
            try:
                cycle.send("long after the end")
                ended.append("sent")
            except greenroom.CycleEnded as error:
                ended.append(error.why)
            finally:
                all_ended.release()

    system = running(Deaf, lease=LONG)
    for number in range(20):
        client.send(f"room-{number}", "x")
    for _ in range(20):
        assert begun.acquire(timeout=WAIT_S)
    system.stop(timedelta(0))
    go.set()
    for _ in range(20):
        assert all_ended.acquire(timeout=WAIT_S), "a thread hangs in a call of the system that has ended"
    assert len(ended) == 20
    assert "sent" not in ended
    for number in range(20):
        status = client.status(f"room-{number}")
        assert (status.owner, status.phase, status.attempt) == (None, Phase.QUEUED, 0)


# One name, two workers (row 37). ------------------------------------------------------------------------------


def test_of_two_workers_under_one_name_the_newer_runs_and_the_older_ends_with_an_error(
    running: Running, director: Director, client: Client
) -> None:
    """row 37"""
    agent_class = director.agent(max_attempts=5)
    older = running(agent_class, name="twin", lease=timedelta(seconds=3))
    client.send("42", "wait")
    assert director.run("42").attempt == 1
    newer = running(agent_class, name="twin", lease=timedelta(seconds=3))
    rooms = [f"room-{number}" for number in range(100)]
    for room in rooms:  # some of these are handed to the older, which does not know yet
        client.send(room, room)
    with pytest.raises(Superseded, match="twin"):
        older.wait(WAIT_S)
    replayed = director.run("42")
    assert replayed.attempt == 2
    replayed.finish("by the newer")
    assert settled(client, "42", replayed.ticket).body == "by the newer"
    for room in rooms:
        wait_output(client, room, lambda output: output.kind is Kind.REPLY)
        assert director.count(room) == 1
    older.stop()
    assert client.overview().workers == ("twin",)
    assert newer.wait(0) is False
    assert client.ask("42", "still there") == "still there"


# Start, stop, and what is left behind. --------------------------------------------------------------------------


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    """At the end of the test no thread runs that was not there before."""
    before = set(threading.enumerate())
    yield
    eventually(lambda: set(threading.enumerate()) <= before, "every thread has ended")


@pytest.mark.usefixtures("no_thread_left")
def test_thirty_starts_and_stops_leave_no_thread_no_connection_and_no_key_but_the_documented(
    director: Director, redis_url: str, agent: str, redis: redis_py.Redis
) -> None:
    agent_class = director.agent()
    redis.ping()
    connections = {row["id"] for row in redis.client_list()}
    for number in range(30):
        with (
            ActorSystem(agent_class, agent=agent, redis=redis_url, name=f"worker-{number}"),
            Client(agent, redis=redis_url) as client,
        ):
            assert client.ask("42", number) == number
    eventually(lambda: {row["id"] for row in redis.client_list()} <= connections, "every connection is closed")
    root = re.escape(Keys(agent).root)
    documented = rf"{root}(:(rooms|ready|control|events|seen:\S+|room:42|room:42:outbox))?"
    found: Any = list(redis.scan_iter(match=f"*{agent}*", count=1000))
    assert [key for key in found if not re.fullmatch(documented, key)] == []
    assert redis.ttl(Keys(agent).room("42")) > 0
    consumers: Any = redis.xinfo_consumers(Keys(agent).ready, "supervisors")
    assert consumers == []


@pytest.mark.usefixtures("no_thread_left")
def test_two_systems_in_one_process_work_side_by_side(redis_url: str, agent: str, director: Director) -> None:
    other = unique("other")
    agent_class = director.agent()
    with (
        ActorSystem(agent_class, agent=agent, redis=redis_url, name="same"),
        ActorSystem(agent_class, agent=other, redis=redis_url, name="same"),
        ActorSystem(agent_class, agent=agent, redis=redis_url, name="another"),
        Client(agent, redis=redis_url) as one,
        Client(other, redis=redis_url) as two,
    ):
        assert one.ask("42", "one") == "one"
        assert two.ask("42", "two") == "two"
        one.stop("42")
        assert two.ask("42", "not stopped") == "not stopped"
        assert two.status("42").hold is None


@pytest.mark.usefixtures("no_thread_left")
def test_a_system_serves_asynchronous_hosts(redis_url: str, agent: str, director: Director) -> None:
    async def main() -> None:
        system = ActorSystem(director.agent(), agent=agent, redis=redis_url)
        async with system, greenroom.AsyncClient(agent, redis=redis_url) as client:
            assert await client.ask("42", "x") == "x"
        assert await asyncio.to_thread(system.wait, WAIT_S)

    asyncio.run(main())


def refused_start(error: type[Exception], director: Director, url: str, agent: str) -> str:
    """Start a system that cannot; answer why. Nothing of it is left, and stopping it does nothing."""
    system = ActorSystem(director.agent(), agent=agent, redis=url)
    with pytest.raises(error) as caught:
        system.start()
    assert system.wait(WAIT_S)
    system.stop()
    with pytest.raises(GreenroomError, match="started once"):
        system.start()
    return str(caught.value)


@pytest.mark.usefixtures("no_thread_left")
def test_a_redis_that_cannot_be_reached_is_said_at_the_start(director: Director, agent: str) -> None:
    """row 45"""
    assert "cannot be reached" in refused_start(RedisUnavailable, director, "redis://127.0.0.1:1/0", agent)


@pytest.mark.usefixtures("no_thread_left")
def test_a_wrong_password_is_said_at_the_start_and_not_shown(director: Director, agent: str, redis_dir: Path) -> None:
    """row 45"""
    with RedisServer(redis_dir, extra=["--user", "worker", "on", ">right", "~*", "&*", "+@all"]) as server:
        url = f"redis://worker:wr0ng-one@127.0.0.1:{server.port}/0"
        said = refused_start(RedisRefused, director, url, agent)
        assert "password" in said
        assert "wr0ng-one" not in said
        connected = server.port
        with redis_py.Redis(port=connected, decode_responses=True) as redis:
            eventually(lambda: len(redis.client_list()) == 1, "no connection is left")


@pytest.mark.usefixtures("no_thread_left")
def test_an_eviction_policy_that_drops_keys_is_refused_at_the_start(director: Director, agent: str, redis_dir: Path) -> None:
    """row 45"""
    with RedisServer(redis_dir, extra=["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]) as server:
        assert "allkeys-lru" in refused_start(RedisRefused, director, server.url, agent)
        with redis_py.Redis(port=server.port, decode_responses=True) as redis:
            eventually(lambda: len(redis.client_list()) == 1, "no connection is left")
            assert redis.dbsize() == 0


def test_a_system_is_started_once(running: Running, director: Director) -> None:
    system = running(director.agent())
    with pytest.raises(GreenroomError, match="started once"):
        system.start()
    system.stop()
    with pytest.raises(GreenroomError, match="started once"):
        system.start()


@pytest.mark.usefixtures("no_thread_left")
def test_an_agent_that_cannot_be_made_leaves_nothing(redis_url: str, agent: str) -> None:
    class Broken(Agent):
        def __init__(self) -> None:
            raise LookupError("no model configured")

        async def respond(self, message: Any, cycle: Any) -> None: ...

    system = ActorSystem(Broken, agent=agent, redis=redis_url)
    with pytest.raises(LookupError, match="no model"):
        system.start()
    system.stop()


@pytest.mark.usefixtures("no_thread_left")
def test_stop_before_start_does_nothing_and_every_later_stop_waits_for_the_first(
    director: Director, redis_url: str, agent: str, client: Client
) -> None:
    system = ActorSystem(director.agent(), agent=agent, redis=redis_url)
    system.stop()
    with system:
        client.send("42", "wait")
        run = director.run("42")
        first = stopping(system, timedelta(seconds=WAIT_S))
        with ThreadPoolExecutor(3) as pool:
            later = [pool.submit(system.stop) for _ in range(3)]
            assert not any(future.done() for future in later)
            run.finish()
            for future in (first, *later):
                future.result(WAIT_S)
    assert system.wait(0)


@pytest.mark.usefixtures("no_thread_left")
def test_stop_while_start_is_under_way_ends_it(director: Director, redis_url: str, agent: str) -> None:
    for _ in range(10):
        system = ActorSystem(director.agent(), agent=agent, redis=redis_url)
        with ThreadPoolExecutor(2) as pool:
            starting = pool.submit(system.start)
            pool.submit(system.stop).result(WAIT_S)
            starting.result(WAIT_S)
        system.stop()


@pytest.mark.usefixtures("no_thread_left")
def test_a_spent_budget_reaches_the_host(
    monkeypatch: pytest.MonkeyPatch, running: Running, director: Director, client: Client
) -> None:
    """row 39, row 43"""
    system = running(director.agent(), lease=LONG)
    client.send("42", "wait")
    run = director.run("42")

    async def broken(self: ControlListener) -> None:
        raise ZeroDivisionError("a bug in the listener")

    monkeypatch.setattr(ControlListener, "run", broken)
    for listener in pykka.ActorRegistry.get_by_class(ControlListener):
        actor = listener._actor_weakref()
        if actor is not None and actor.loop is system._control:
            listener.stop(block=False)
    with pytest.raises(BudgetSpent, match="a bug in the listener"):
        system.wait(WAIT_S)
    run.wait_cancelled()
    system.stop()
    monkeypatch.undo()
    running(director.agent(), lease=LONG)
    director.run("42").finish("elsewhere")
    wait_output(client, "42", lambda output: output.body == "elsewhere")
