"""An ActorSystem inside a program of its own: what its host learns, and what it leaves alone."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest

from greenroom import ActorSystem, Client, InvalidRequest, RedisUnavailable, Relay, Superseded
from greenroom.protocol.server import RedisServer
from greenroom.protocol.store import Beat
from greenroom.supervisors.worker import Worker
from integration.agents import WAIT_S, Director, blocked, eventually, run, wait_for, wait_output
from integration.conftest import Running

SHORT = timedelta(seconds=1)
SOON = timedelta(seconds=0.5)


class Host:
    """What ``on_end`` was called with, and where."""

    def __init__(self) -> None:
        self.calls: list[BaseException | None] = []
        self.threads: list[str] = []
        self.called = threading.Event()

    def __call__(self, error: BaseException | None) -> None:
        self.calls.append(error)
        self.threads.append(threading.current_thread().name)
        self.called.set()

    def wait(self) -> None:
        wait_for(self.called, "on_end is called")


# What the host learns. --------------------------------------------------------------------------------


def test_on_end_is_called_once_with_none_when_the_system_is_stopped(running: Running, director: Director) -> None:
    host = Host()
    system = running(director.agent(), on_end=host)
    assert host.calls == []
    system.stop()
    assert (host.calls, host.threads) == ([None], ["greenroom-on-end"])
    system.stop()
    assert host.calls == [None]


def test_on_end_is_called_once_with_the_error_when_the_system_ends_by_itself(running: Running, director: Director) -> None:
    host = Host()
    older = running(director.agent(), name="twin", lease=SHORT, on_end=host)
    running(director.agent(), name="twin")
    host.wait()
    older.stop()
    assert len(host.calls) == 1
    assert isinstance(host.calls[0], Superseded)
    with pytest.raises(Superseded):
        older.wait(0)


def test_on_end_may_stop_the_system(running: Running, director: Director) -> None:
    stopped = threading.Event()

    def on_end(error: BaseException | None) -> None:
        older.stop()
        stopped.set()

    older = running(director.agent(), name="twin", lease=SHORT, on_end=on_end)
    running(director.agent(), name="twin")
    wait_for(stopped, "on_end has stopped the system")
    assert not older.ready


@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit(3)], ids=lambda error: type(error).__name__)
def test_what_on_end_raises_is_logged_and_harms_nothing(
    running: Running, director: Director, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def on_end(_: BaseException | None) -> None:
        raise error

    system = running(director.agent(), on_end=on_end)
    system.stop()
    assert system.wait(0)
    assert [record.levelname for record in caplog.records if "on_end.failed" in record.message] == ["ERROR"]


def test_an_on_end_that_hangs_does_not_hold_up_the_stop(running: Running, director: Director) -> None:
    go = threading.Event()
    system = running(director.agent(), on_end=lambda _: go.wait())
    system.stop()
    go.set()


def test_on_end_is_not_called_for_a_system_that_has_not_started(director: Director, agent: str) -> None:
    host = Host()
    system = ActorSystem(director.agent(), agent=agent, redis="redis://127.0.0.1:1", on_end=host)
    with pytest.raises(RedisUnavailable):
        system.start()
    system.stop()
    assert host.calls == []


@pytest.mark.parametrize(
    "options", [{"on_end": "call me"}, {"redis_patience": 5}, {"redis_patience": timedelta(0)}, {"lease": timedelta(0)}]
)
def test_options_that_make_no_sense_are_refused(director: Director, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=f"^{next(iter(options))}: want"):
        ActorSystem(director.agent(), agent="a", **options)


# Redis is gone. ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["killed", "hangs"])
def test_a_redis_that_is_gone_for_longer_than_the_patience_ends_the_system(
    running: Running, director: Director, server: RedisServer, agent: str, how: str
) -> None:
    host = Host()
    system = running(director.agent(), redis=server.url, lease=SHORT, redis_patience=SOON, on_end=host)
    with Client(agent, redis=server.url) as client:
        client.send("42", "wait")
        run = director.run("42")
        if how == "killed":
            server.kill()
        else:
            os.kill(server.pid, signal.SIGSTOP)
        host.wait()
        with pytest.raises(RedisUnavailable, match=r"unreachable for more than 0\.5 s"):
            system.wait(0)
        assert [type(error) for error in host.calls] == [RedisUnavailable]
        run.wait_cancelled()
        system.stop()
        if how == "hangs":
            os.kill(server.pid, signal.SIGCONT)


def test_an_outage_within_the_patience_is_survived(
    running: Running, director: Director, server: RedisServer, agent: str
) -> None:
    host = Host()
    system = running(director.agent(), redis=server.url, lease=SHORT, redis_patience=timedelta(minutes=5), on_end=host)
    server.kill()
    eventually(lambda: not system.ready, "it has noticed")
    server.start()
    with Client(agent, redis=server.url, timeout=WAIT_S) as client:
        assert client.ask("42", "hello") == "hello"
    assert host.calls == []


def test_a_process_that_was_suspended_has_not_lost_its_patience(
    running: Running, director: Director, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it wakes, the deadline of the beat in flight is past, but Redis' answer was only not read yet."""
    beat, beats = Worker.beat, threading.Semaphore(0)

    async def suspended_beat(worker: Worker) -> Beat:
        asyncio.get_running_loop().call_soon(threading.Event().wait, 1.5)
        try:
            return await beat(worker)
        finally:
            beats.release()

    system = running(director.agent(), lease=SHORT, redis_patience=timedelta(seconds=1))
    monkeypatch.setattr(Worker, "beat", suspended_beat)
    for _ in range(2):
        assert beats.acquire(timeout=WAIT_S)
    assert not system.wait(0)


# Readiness. -------------------------------------------------------------------------------------------


def test_it_is_ready_from_its_start_to_its_stop(director: Director, redis_url: str, agent: str) -> None:
    system = ActorSystem(director.agent(), agent=agent, redis=redis_url)
    seen = [system.ready]
    with system:
        seen.append(system.ready)
    seen.append(system.ready)
    assert seen == [False, True, False]


def test_it_is_not_ready_while_it_drains(running: Running, director: Director, client: Client) -> None:
    system = running(director.agent())
    client.send("42", "wait")
    run = director.run("42")
    stopping = threading.Thread(target=system.stop)
    stopping.start()
    eventually(lambda: not system.ready, "it is not ready")
    run.finish("done")
    stopping.join(WAIT_S)
    wait_output(client, "42", lambda output: output.body == "done")


def test_it_is_not_ready_while_redis_is_away_and_again_when_it_is_back(
    running: Running, director: Director, server: RedisServer
) -> None:
    """row 40"""
    system = running(director.agent(), redis=server.url)
    server.kill()
    eventually(lambda: not system.ready, "it is not ready")
    server.start()
    eventually(lambda: system.ready, "it is ready again")


def test_it_is_not_ready_when_redis_hangs_for_longer_than_the_lease(
    running: Running, director: Director, server: RedisServer
) -> None:
    """The connection stands, but nobody answers."""
    system = running(director.agent(), redis=server.url, lease=SHORT)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        eventually(lambda: not system.ready, "it is not ready")
        assert system._store.pipeline.connected
    finally:
        os.kill(server.pid, signal.SIGCONT)
    eventually(lambda: system.ready, "it is ready again")


def test_a_superseded_system_is_not_ready(running: Running, director: Director) -> None:
    older = running(director.agent(), name="twin", lease=SHORT)
    running(director.agent(), name="twin")
    with pytest.raises(Superseded):
        older.wait(WAIT_S)
    assert not older.ready


# What it is doing. ------------------------------------------------------------------------------------


def test_a_dump_shows_rooms_tasks_and_threads_also_when_the_user_loop_hangs(
    running: Running, director: Director, client: Client
) -> None:
    system = running(director.agent())
    message = client.send("42", "wait")
    director.run("42")
    ticket = client.status("42").ticket
    with blocked(system._user):
        text = system.dump()
    assert "rooms at work: 1\n  42 running for 0." in text
    assert f"ticket {ticket} message {message} attempt 1" in text
    assert f"  task greenroom-cycle-{ticket}\n" in text
    assert "await orders.get()" in text  # where the handler waits
    assert "go.wait(WAIT_S)" in text  # what blocks its loop
    assert "greenroom-control" in text


def test_a_dump_does_not_wait_for_a_control_loop_that_hangs(
    running: Running, director: Director, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("greenroom.supervisors.dump.PATIENCE_S", 0.1)
    system = running(director.agent())
    with blocked(system._control):
        text = system.dump()
    assert "no rooms: the control loop has not answered" in text
    assert "go.wait(WAIT_S)" in text


def test_a_dump_is_possible_before_the_start_and_after_the_end(director: Director, redis_url: str, agent: str) -> None:
    system = ActorSystem(director.agent(), agent=agent, redis=redis_url)
    assert "thread greenroom-user has not started" in system.dump()
    with system:
        pass
    assert "no rooms" in system.dump()


# What it leaves alone. --------------------------------------------------------------------------------


def test_the_hosts_signals_logging_and_loops_stay_as_they_are(
    director: Director, redis_url: str, agent: str, client: Client
) -> None:
    def settings() -> tuple[object, ...]:
        root, own = logging.getLogger(), logging.getLogger("greenroom")
        return (
            [signal.getsignal(number) for number in sorted(signal.valid_signals())],
            (root.level, list(root.handlers), own.level, list(own.handlers), own.propagate),
            (sys.excepthook, threading.excepthook, sys.unraisablehook, asyncio._get_running_loop()),
        )

    before = settings()
    with ActorSystem(director.agent(), agent=agent, redis=redis_url):
        assert client.ask("42", "hello") == "hello"
        assert settings() == before
    assert settings() == before


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
class HeldSystem(ActorSystem):
    begun, go = threading.Event(), threading.Event()

    def start(self) -> Self:
        super().start()
        self.begun.set()
        wait_for(self.go, "the start may end")
        return self


class HeldRelay(Relay):
    begun, go = threading.Event(), threading.Event()

    def start(self) -> Self:
        super().start()
        self.begun.set()
        wait_for(self.go, "the start may end")
        return self


@pytest.mark.parametrize("kind", [HeldSystem, HeldRelay])
def test_an_async_with_that_is_cancelled_as_it_is_entered_leaves_nothing_running(
    kind: type[HeldSystem | HeldRelay], director: Director, redis_url: str, agent: str
) -> None:
    held: HeldSystem | HeldRelay = (
        HeldSystem(director.agent(), agent=agent, redis=redis_url)
        if kind is HeldSystem
        else HeldRelay(agent, lambda room, output: None, redis=redis_url)
    )

    async def enter() -> None:
        async with held:
            pytest.fail("entered")

    async def cancelled() -> None:
        entering = asyncio.create_task(enter())
        await asyncio.to_thread(wait_for, kind.begun, "the start has begun")
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert held.wait(0)
        kind.go.set()

    run(cancelled)


def test_a_hundred_starts_and_stops_leave_no_file_no_thread_and_no_task(director: Director, redis_url: str, agent: str) -> None:
    def left() -> tuple[int, int, int]:
        gc.collect()
        tasks = sum(isinstance(item, asyncio.Task) for item in gc.get_objects())
        return len(os.listdir("/proc/self/fd")), threading.active_count(), tasks

    def round_trip() -> None:
        host = Host()
        with ActorSystem(director.agent(), agent=agent, redis=redis_url, redis_patience=SHORT, on_end=host):
            pass
        assert host.calls == [None]

    round_trip()
    before = left()
    for _ in range(100):
        round_trip()
    eventually(lambda: left() <= before, "nothing is left")
