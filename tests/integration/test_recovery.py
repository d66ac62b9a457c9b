"""Workers that crash, are killed or suspended: nothing is lost, and who has lost a room cannot touch it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

import greenroom
from greenroom import (
    Backoff,
    Client,
    Kind,
    Output,
    Phase,
)
from greenroom.protocol.connect import connect
from greenroom.protocol.keys import Keys
from greenroom.protocol.store import Answer, Store, Terms
from integration.agents import WAIT_S, Director, StoreGate, abandon, events, eventually, settled, wait_event, wait_output
from integration.conftest import Running

from started import Started

SHORT, LONG = timedelta(seconds=1), timedelta(seconds=300)


# Processes that are killed or suspended (rows 35 and 36). --------------------------------------------------------


class WorkerProcess:
    """A ``worker_main.py`` under way."""

    def __init__(self, url: str, agent: str, name: str, lease: timedelta) -> None:
        script = Path(__file__).with_name("worker_main.py")
        source = str(Path(greenroom.__file__).parents[1])
        self.child = Started(
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
    assert set(words) == {"fenced"}
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


def test_a_superseded_process_ends_with_its_error(client: Client, spawn: Spawn) -> None:
    """row 37"""
    older = spawn("twin", SHORT)
    spawn("twin", SHORT)
    older.wait_said("failed Superseded")
    assert older.wait() == 3
    assert client.ask("42", "x") == "x"
