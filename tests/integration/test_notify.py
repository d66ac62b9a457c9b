"""``greenroom run`` as systemd sees it (``Type=notify``): when it is ready, that it lives, and when it ends."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pytest

from greenroom import Client
from greenroom.supervisors.notify import Notifier
from greenroom.supervisors.orders import Order, Orders
from greenroom.supervisors.process import ExitCode
from greenroom.supervisors.processes import DUMP_LOOKS, KILL_LOOKS, Processes, _Said
from integration.agents import eventually, wait_output
from integration.command import Process, begun

from helpers import Receiver, lasting_server

APP = """
import asyncio, gc, os, pathlib, time
from greenroom import Agent
from greenroom.actors.loop import LoopThread

def hang():
    pathlib.Path(f"hangs-{os.getpid()}").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)

class Echo(Agent):
    max_attempts = 9

    async def respond(self, message, cycle):
        if message.body == "wait":
            await cycle.send("begun")
            await asyncio.Event().wait()
        if message.body == "hang" and message.attempt == 1:
            # What no agent can do by itself: the library's own loop stands still.
            [control] = [each for each in gc.get_objects() if isinstance(each, LoopThread) and each.name == "greenroom-control"]
            control.post(hang)
            await asyncio.Event().wait()
        if message.body == "environment":
            return sorted(set(os.environ) & {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
        return message.body
"""
QUICK_US, SLOW_US, LONG_US = "200000", "2000000", "600000000"


class Starting(Protocol):
    def __call__(self, *arguments: str, watchdog_us: str = QUICK_US) -> Process: ...


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    receiver = Receiver(str(tmp_path / "notify"))
    yield receiver
    receiver.close()


@pytest.fixture
def starting(tmp_path: Path, agent: str, redis_url: str, receiver: Receiver) -> Iterator[Starting]:
    """Starts ``greenroom run app:Echo --name w …`` as systemd does, with a watchdog; by default on the run's Redis."""
    (tmp_path / "app.py").write_text(APP)
    started: list[Process] = []

    def start(*arguments: str, watchdog_us: str = QUICK_US) -> Process:
        environment = {"NOTIFY_SOCKET": receiver.address, "WATCHDOG_USEC": watchdog_us}
        redis = () if "--redis" in arguments else ("--redis", redis_url)
        process = Process(tmp_path, "app:Echo", "--agent", agent, "--name", "w", *redis, *arguments, environment=environment)
        started.append(process)
        return process

    yield start
    (tmp_path / "go").touch()
    for process in started:
        process.kill()
        for path in tmp_path.glob("hangs-*"):
            with suppress(ProcessLookupError):
                os.kill(int(path.name.removeprefix("hangs-")), signal.SIGKILL)


# One worker. ----------------------------------------------------------------------------------------------


def test_a_worker_is_ready_when_it_has_joined_and_says_when_it_ends(
    starting: Starting, receiver: Receiver, client: Client
) -> None:
    process = starting()
    assert receiver.wait("=") == "READY=1"
    assert client.overview().workers == ("w",)
    client.send("42", "wait")
    begun(client, "42")
    receiver.wait("STATUS=rooms at work: 1")
    receiver.wait("WATCHDOG=1")
    process.signal(signal.SIGTERM)
    receiver.wait("STOPPING=1")
    receiver.wait("WATCHDOG=1")  # also while it lets the cycle finish
    client.interrupt("42")
    assert process.exit_code() == 0
    assert receiver.lines.count("READY=1") == 1


def test_what_the_agent_starts_is_told_nothing_of_the_watchdog(starting: Starting, client: Client) -> None:
    starting()
    assert client.ask("42", "environment") == []


def test_a_worker_that_cannot_start_is_never_ready_and_says_why(starting: Starting, receiver: Receiver) -> None:
    process = starting("--redis", "redis://127.0.0.1:1")
    assert process.exit_code() == 3
    assert "Redis cannot be reached" in receiver.wait("STATUS=")
    assert "READY=1" not in receiver.lines


def test_a_control_loop_that_hangs_is_seen_by_its_silence(
    starting: Starting, receiver: Receiver, client: Client, tmp_path: Path
) -> None:
    starting()
    receiver.wait("WATCHDOG=1")
    client.send("42", "hang")
    eventually(lambda: list(tmp_path.glob("hangs-*")), "the loop hangs")
    receiver.said()
    assert receiver.is_silent(1.0)  # ten times as long as it would take to say something
    (tmp_path / "go").touch()
    receiver.wait("WATCHDOG=1")


def test_an_outage_of_redis_is_told_and_is_no_reason_to_end_the_process(
    starting: Starting, receiver: Receiver, redis_dir: Path
) -> None:
    """row 40"""
    with lasting_server(redis_dir) as server:
        process = starting("--redis", server.url)
        receiver.wait("STATUS=rooms at work: 0")
        server.kill()
        receiver.wait("STATUS=waits for Redis")
        for _ in range(5):
            receiver.wait("WATCHDOG=1")
        server.start()
        receiver.wait("STATUS=rooms at work: 0")
        assert process.stop() == 0


# A parent and its workers. ------------------------------------------------------------------------------------


def test_a_parent_is_ready_when_all_its_workers_are_and_it_alone_is_heard(
    starting: Starting, receiver: Receiver, client: Client
) -> None:
    process = starting("--processes", "2", watchdog_us=LONG_US)
    receiver.wait("WATCHDOG=1")
    receiver.wait("READY=1")
    assert client.overview().workers == ("w-1", "w-2")
    assert client.ask("42", "environment") == []
    process.signal(signal.SIGTERM)
    receiver.wait("STOPPING=1")
    assert process.exit_code() == 0
    assert receiver.lines.count("READY=1") == 1
    assert "STATUS=2 of 2 workers ready" in receiver.lines
    assert not [line for line in receiver.lines if "rooms at work" in line]


def test_a_worker_that_hangs_is_ended_and_started_again_by_its_parent(
    starting: Starting, receiver: Receiver, client: Client
) -> None:
    process = starting("--processes", "1", watchdog_us=SLOW_US)
    receiver.wait("READY=1")
    client.send("42", "hang")
    assert " worker=w-1 " in process.wait_line("event=process.hangs")
    assert " worker=w-1 " in process.wait_line("event=process.killed")
    output = wait_output(client, "42", lambda output: output.body == "hang")
    assert output.final
    receiver.wait("STATUS=1 of 1 workers ready")
    receiver.wait("WATCHDOG=1")
    assert process.stop() == 0


# The parent alone. ----------------------------------------------------------------------------------------------


class _NoProcess:
    pid = 0


class Parent:
    """A parent of one child that is no process; what it would kill, and what it tells."""

    def __init__(self, orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
        self._told, ours = socket.socketpair()
        self.notifier = Notifier(ours, watchdog_s=1.0)
        self.processes = Processes([], {"a": ()}, orders, environment={}, notifier=self.notifier)
        [self.child] = self.processes._children
        self.killed: list[Any] = []
        monkeypatch.setattr(self.processes, "_kill_child", lambda child, process: self.killed.append(process))
        self.child.process = _NoProcess()  # type: ignore[assignment]  # it is compared, and its id is logged
        self.orders, self.child.lifeline = socket.socketpair()

    def hear(self, line: bytes, process: object = None) -> None:
        self.processes._heard(_Said(self.child, process or self.child.process, line))  # type: ignore[arg-type]

    def look(self, times: int) -> None:
        for _ in range(times):
            self.processes._look()

    def told(self) -> list[str]:
        return self._told.recv(65536).decode().splitlines()

    def close(self) -> None:
        with self.notifier, self._told, self.orders:
            self.child.let_go()


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Parent]:
    with Orders() as orders:
        parent = Parent(orders, monkeypatch)
        yield parent
        parent.close()


def test_a_child_without_a_word_is_to_show_what_it_does_and_is_then_ended(parent: Parent) -> None:
    parent.hear(b"READY=1\n")
    parent.look(KILL_LOOKS - 1)
    assert parent.orders.recv(10) == Order.DUMP.value
    assert parent.killed == []
    parent.look(1)
    assert parent.killed == [parent.child.process]
    parent.look(5)
    assert len(parent.killed) == 1  # its end is on its way


def test_a_child_that_says_that_it_lives_is_left_alone(parent: Parent) -> None:
    parent.hear(b"READY=1\n")
    for _ in range(10):
        parent.look(DUMP_LOOKS - 1)
        parent.hear(b"WATCHDOG=1\n")
    assert parent.killed == []


def test_a_child_that_still_starts_may_take_its_time(parent: Parent) -> None:
    parent.look(20)
    assert parent.killed == []


def test_a_word_of_the_process_before_does_not_count(parent: Parent) -> None:
    before = object()
    parent.hear(b"READY=1\n", before)
    assert not parent.child.ready


def test_children_that_drain_are_not_watched(parent: Parent) -> None:
    parent.hear(b"READY=1\n")
    parent.processes._end(ExitCode.OK)
    parent.look(20)
    assert parent.killed == []


def test_the_parent_is_well_whatever_becomes_of_its_children(parent: Parent) -> None:
    parent.hear(b"READY=1\n")
    parent.told()
    parent.look(10)
    assert parent.told() == ["WATCHDOG=1"] * 10


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract sockets")
def test_an_abstract_socket_is_told_too(tmp_path: Path, agent: str, redis_url: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    receiver = Receiver(f"@greenroom-{agent}")
    process = Process(
        tmp_path, "app:Echo", "--agent", agent, "--redis", redis_url, environment={"NOTIFY_SOCKET": receiver.address}
    )
    try:
        receiver.wait("READY=1")
        assert process.stop() == 0
    finally:
        process.kill()
        receiver.close()
