"""Workers that crash, are killed, suspended, superseded or stopped: nothing is lost, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

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
    Output,
    Phase,
    RedisRefused,
    RedisUnavailable,
    Superseded,
)
from greenroom.protocol.connect import connect
from greenroom.protocol.keys import Keys
from greenroom.protocol.server import RedisServer
from greenroom.protocol.store import Answer, Store, Terms
from greenroom.supervisors.control import ControlListener
from integration.agents import WAIT_S, Director, StoreGate, abandon, events, eventually, wait_event, wait_output
from integration.conftest import Running

from helpers import unique

SHORT, LONG = timedelta(seconds=1), timedelta(seconds=300)


def settled(client: Client, room: str, ticket: int) -> Output:
    """Wait for the entry that ends a cycle's stream."""
    return wait_output(client, room, lambda output: output.ticket == ticket and output.kind is not Kind.CHUNK)


# Processes that are killed or suspended (rows 35 and 36). --------------------------------------------------------


class WorkerProcess:
    """A ``worker_main.py`` under way."""

    def __init__(self, url: str, agent: str, name: str, lease: timedelta) -> None:
        script = Path(__file__).with_name("worker_main.py")
        source = str(Path(greenroom.__file__).parents[1])
        self.child = subprocess.Popen(
            [sys.executable, str(script), url, agent, name, str(lease.total_seconds())],
            env={**os.environ, "PYTHONPATH": source},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._said = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            with self._said:
                self.lines.append(line.strip())
                self._said.notify_all()

    def wait_said(self, words: str) -> None:
        with self._said:
            assert self._said.wait_for(lambda: words in self.lines, WAIT_S), f"not said: {words}, but {self.lines}"

    def order(self, word: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(f"{word}\n")
        self.child.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self.child.send_signal(number)
        if number is signal.SIGSTOP:  # it is suspended when its parent is told so
            os.waitid(os.P_PID, self.child.pid, os.WSTOPPED | os.WNOWAIT)

    def wait(self) -> int:
        return self.child.wait(WAIT_S)

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        self._reader.join()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


class Spawn:
    """Starts worker processes of the test's agent, and ends them with the test."""

    def __init__(self, url: str, agent: str) -> None:
        self._place = (url, agent)
        self._started: list[WorkerProcess] = []

    def __call__(self, name: str, lease: timedelta) -> WorkerProcess:
        worker = WorkerProcess(*self._place, name, lease)
        self._started.append(worker)
        worker.wait_said("started")
        return worker

    def close(self) -> None:
        for worker in self._started:
            worker.close()


@pytest.fixture
def spawn(redis_url: str, agent: str) -> Iterator[Spawn]:
    spawn = Spawn(redis_url, agent)
    yield spawn
    spawn.close()


def began(client: Client, room: str, pid: int, attempt: int) -> Output:
    """Wait until a process has begun a cycle."""
    return wait_output(client, room, lambda output: output.body == ["began", pid, attempt])


def test_rooms_of_a_killed_process_run_elsewhere_with_the_attempt_counted(
    running: Running, director: Director, client: Client, spawn: Spawn, agent: str, redis: redis_py.Redis
) -> None:
    """row 35"""
    rooms = [f"room-{number}" for number in range(8)]
    worker = spawn("doomed", SHORT)
    for room in rooms:
        client.send(room, "wait")
        client.send(room, "after")
    for room in rooms:
        began(client, room, worker.child.pid, 1)
    running(director.agent(), lease=SHORT)
    worker.signal(signal.SIGKILL)
    for room in rooms:
        run = director.run(room)
        assert run.attempt == 2
        run.finish("replayed")
    for room in rooms:
        wait_output(client, room, lambda output: output.body == "after")
        kinds = [output.kind for output in client.outputs(room)]
        assert kinds == [Kind.CHUNK, Kind.FAILED, Kind.REPLY, Kind.REPLY]
    assert len(events(redis, agent, "room.adopted")) == len(rooms)


def test_a_restart_under_the_same_name_takes_the_rooms_back_at_once(client: Client, spawn: Spawn) -> None:
    """row 35"""
    rooms = [f"room-{number}" for number in range(8)]
    worker = spawn("phoenix", LONG)
    for room in rooms:
        client.send(room, "wait")
    for room in rooms:
        began(client, room, worker.child.pid, 1)
    worker.signal(signal.SIGKILL)
    worker.wait()
    again = spawn("phoenix", LONG)  # before the lease is over, by far
    for room in rooms:
        began(client, room, again.child.pid, 2)
        status = client.status(room)
        assert (status.owner, status.attempt) == ("phoenix", 2)


def test_a_worker_that_was_suspended_past_its_lease_cannot_send_and_gives_way(
    running: Running, director: Director, client: Client, spawn: Spawn, redis: redis_py.Redis, agent: str
) -> None:
    """row 36"""
    worker = spawn("sleeper", SHORT)
    client.send("42", "wait chatter")
    ticket = began(client, "42", worker.child.pid, 1).ticket
    wait_output(client, "42", lambda output: output.body == 3)
    worker.signal(signal.SIGSTOP)
    running(director.agent(), lease=SHORT)
    successor = director.run("42")
    assert successor.attempt == 2
    worker.signal(signal.SIGCONT)
    worker.wait_said(f"ended 42 {ticket}")
    successor.finish("by the successor")
    wait_output(client, "42", lambda output: output.kind is Kind.REPLY)
    outputs = list(client.outputs("42"))
    end = next(index for index, output in enumerate(outputs) if output.kind is Kind.FAILED)
    assert {output.ticket for output in outputs[: end + 1]} == {ticket}
    assert [(output.ticket, output.body) for output in outputs[end + 1 :]] == [(successor.ticket, "by the successor")]
    wait_event(redis, agent, "worker.lapsed", worker="sleeper")
    assert worker.child.poll() is None, "it gives way, and lives on"
    other = [client.ask(f"other-{number}", number, timeout=WAIT_S) for number in range(20)]
    assert other == list(range(20))


def test_a_worker_that_was_suspended_past_its_lease_cannot_commit(
    running: Running, director: Director, client: Client, spawn: Spawn
) -> None:
    """row 36"""
    worker = spawn("sleeper", SHORT)
    client.send("42", "wait go")
    ticket = began(client, "42", worker.child.pid, 1).ticket
    worker.signal(signal.SIGSTOP)
    running(director.agent(), lease=SHORT)
    successor = director.run("42")
    worker.order("go")
    worker.signal(signal.SIGCONT)
    worker.wait_said(f"ended 42 {ticket}")
    worker.order("end")
    worker.wait()
    successor.finish("by the successor")
    wait_output(client, "42", lambda output: output.kind is Kind.REPLY)
    assert [output.body for output in client.outputs("42") if output.kind is Kind.REPLY] == ["by the successor"]


def test_a_worker_that_was_suspended_past_its_lease_ends_a_handler_that_does_nothing(
    running: Running, director: Director, client: Client, spawn: Spawn
) -> None:
    """row 36: it notices by itself, not only when Redis refuses something."""
    worker = spawn("sleeper", SHORT)
    client.send("42", "wait")
    ticket = began(client, "42", worker.child.pid, 1).ticket
    worker.signal(signal.SIGSTOP)
    running(director.agent(), lease=SHORT)
    director.run("42")
    worker.signal(signal.SIGCONT)
    worker.wait_said(f"ended 42 {ticket}")
    assert worker.child.poll() is None


def test_nothing_that_carries_a_lost_ticket_is_accepted(
    running: Running, director: Director, client: Client, redis_url: str, keys: Keys
) -> None:
    """row 36, row 6"""
    agent_class = director.agent()
    first = running(agent_class, lease=SHORT)
    client.send("42", "wait")
    lost = director.run("42").ticket
    abandon(first)
    running(agent_class, lease=SHORT)
    successor = director.run("42")

    async def try_all() -> list[Any]:
        redis = connect(redis_url)
        store = Store(redis, keys)
        terms = Terms()
        answers = [
            await store.emit("42", lost, 1, b"\xc0"),
            await store.commit("42", lost, state=b"+\x80", reply=b"\xc0", take_next=True, terms=terms),
            await store.settle("42", lost, "release", take_next=True, terms=terms),
            await store.settle("42", lost, "fail", take_next=True, terms=terms),
            await store.shield("42", lost, up=True),
        ]
        steps = [(await store.step("42", lost, "s", act))[0] for act in ("begin", "again", "done")]
        await store.close()
        await redis.aclose()
        return [*[answer.word for answer in answers if isinstance(answer, Answer)], *steps]

    words = asyncio.run(try_all())
    assert len(words) == 8
    assert set(words) <= {"fenced", "settled"}
    assert client.status("42").ticket == successor.ticket
    successor.finish("unharmed")
    assert settled(client, "42", successor.ticket).body == "unharmed"


# Crashes while recovering (rows 32 and 34). -----------------------------------------------------------------------


def test_a_worker_that_crashes_while_recovering_twice_loses_nothing(
    running: Running, director: Director, client: Client
) -> None:
    """row 34"""
    agent_class = director.agent(max_attempts=5)
    for room in ("a", "b"):
        client.send(room, "wait")
        client.send(room, "second")
    system = running(agent_class, name="unlucky", lease=LONG)
    for attempt in (1, 2, 3):
        for room in ("a", "b"):
            assert director.run(room).attempt == attempt
        abandon(system)
        system = running(agent_class, name="unlucky", lease=LONG)
    for room in ("a", "b"):
        run = director.run(room)
        assert run.attempt == 4
        run.finish("at last")
    for room in ("a", "b"):
        wait_output(client, room, lambda output: output.body == "second")
        assert [o.body for o in client.outputs(room) if o.kind is Kind.REPLY] == ["at last", "second"]


@pytest.mark.parametrize("call", ["claim", "commit"])
@pytest.mark.parametrize("applied", [False, True])
def test_a_room_that_crashes_in_the_middle_of_a_request_twice_recovers(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str, call: str, applied: bool
) -> None:
    """row 34, row 32"""
    system = running(director.agent(max_attempts=5))
    client.ask("42", "up")
    gate = StoreGate.of(system)
    holds = [(gate.after if applied else gate.before)(call) for _ in range(2)]
    sent = [client.send("42", number) for number in range(3)]
    for hold in holds:
        hold.wait()
        hold.release(RuntimeError("the room's actor fails"))
    wait_output(client, "42", lambda output: output.message == sent[-1] and output.kind is Kind.REPLY)
    committed = [output.message for output in client.outputs("42") if output.kind is Kind.REPLY]
    assert committed[1:] == sent
    assert not list(client.dead_letters())


def test_a_crashed_room_waits_out_its_back_off_and_other_rooms_notice_nothing(
    running: Running, director: Director, client: Client
) -> None:
    """row 32"""
    running(director.agent(retry=Backoff(first=timedelta(hours=1), most=timedelta(hours=1)), max_attempts=3))
    client.send("other", "wait")
    other = director.run("other")
    client.send("42", "fail")
    eventually(lambda: client.status("42").phase is Phase.BACKOFF, "the failure is on record")
    status = client.status("42")
    assert status.retry_at is not None
    assert status.claimed_at is None
    assert (status.attempt, status.last_error) == (1, "RuntimeError: fail")
    assert client.ask("third", "x") == "x"
    other.finish("undisturbed")
    assert settled(client, "other", other.ticket).body == "undisturbed"
    assert director.count("42") == 1


def test_rooms_in_back_off_hold_no_slot(running: Running, director: Director, client: Client) -> None:
    """row 32"""
    running(director.agent(retry=Backoff(first=timedelta(hours=1), most=timedelta(hours=1))), max_rooms=1)
    for number in range(3):
        client.send(f"broken-{number}", "fail")
        eventually(lambda n=number: client.status(f"broken-{n}").phase is Phase.BACKOFF, "it has failed")  # type: ignore[misc]
    assert client.ask("42", "x", timeout=WAIT_S) == "x"


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


def test_a_superseded_process_ends_with_its_error(client: Client, spawn: Spawn) -> None:
    """row 37"""
    older = spawn("twin", SHORT)
    spawn("twin", SHORT)
    older.wait_said("failed Superseded")
    assert older.wait() == 3
    assert client.ask("42", "x") == "x"


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
    listener = next(child.ref for child in system._root._actor_weakref()._children if child.spec.name == "control")  # type: ignore[union-attr]
    assert listener is not None
    listener.stop(block=False)
    with pytest.raises(BudgetSpent, match="a bug in the listener"):
        system.wait(WAIT_S)
    run.wait_cancelled()
    system.stop()
    monkeypatch.undo()
    running(director.agent(), lease=LONG)
    director.run("42").finish("elsewhere")
    wait_output(client, "42", lambda output: output.body == "elsewhere")
