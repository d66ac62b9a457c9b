"""A Redis that loads its data, as after a restart: whoever has time waits and goes on, all others are told what it does."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import redis as redis_py

from greenroom import Client, Kind, Outcome, RedisUnavailable
from greenroom.cli import execute
from greenroom.protocol.checks import Severity
from greenroom.protocol.server import RedisServer
from greenroom.supervisors import system as system_module
from integration.agents import WAIT_S, Director, eventually, wait_output
from integration.command import Process, Shell
from integration.conftest import Running

# It looks after its connections after each of these keys, and takes a hundred seconds for all of them if it is let.
KEYS, VALUE, DELAY_US = 20_000, "x" * 1024, 5_000
SLOWLY = ["--key-load-delay", str(DELAY_US), "--loading-process-events-interval-bytes", "1024"]
SAYS = "Redis is loading the dataset in memory"

APP = """
from greenroom import Agent

class Echo(Agent):
    async def respond(self, message, cycle):
        return message.body

async def show(room, output):
    print(f"given {room}", flush=True)
"""


class SlowServer:
    """A redis-server that loads its data for as long as it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = RedisServer(folder, extra=["--rdbcompression", "no"])
        self._server.start()
        self.url, self.port = self._server.url, self._server.port
        self._starting = ThreadPoolExecutor(1)
        with self.admin() as redis:
            version = str(redis.info("server")["redis_version"])
            if int(version.partition(".")[0]) < 7:
                self.close()
                pytest.skip(f"Redis {version} cannot be told how often it answers while it loads, nor to load faster")
            redis.mset({f"filler:{number}": VALUE for number in range(KEYS)})
            redis.bgrewriteaof()
            eventually(lambda: bool(list(folder.glob("*/*.2.base.rdb"))), "they are where what is loaded first is")

    def admin(self) -> redis_py.Redis:
        return redis_py.Redis(port=self.port, protocol=2)

    def load(self) -> None:
        """Restart it; return when it says that it loads its data."""
        self._server.stop()
        self._server = RedisServer(self.folder, extra=SLOWLY)
        self._started = self._starting.submit(self._server.start)
        eventually(self._says_that_it_loads, "it loads its data")

    def _says_that_it_loads(self) -> bool:
        with self.admin() as redis:
            try:
                redis.ping()
            except redis_py.exceptions.BusyLoadingError:
                return True
            except redis_py.exceptions.ConnectionError:
                return False
        raise AssertionError("it has loaded its data already")

    def loaded(self) -> None:
        """Let it load the rest at once."""
        with self.admin() as redis:
            redis.config_set("key-load-delay", 0)
        self._started.result(WAIT_S)

    def close(self) -> None:
        self._server.kill()
        self._starting.shutdown()


@pytest.fixture
def slow(redis_dir: Path) -> Iterator[SlowServer]:
    server = SlowServer(redis_dir)
    yield server
    server.close()


@pytest.fixture
def redis_url(slow: SlowServer) -> str:
    return slow.url


@pytest.fixture
def client(redis_url: str, agent: str) -> Iterator[Client]:
    with Client(agent, redis=redis_url, timeout=2 * WAIT_S) as client:
        yield client


@pytest.fixture
def starting(tmp_path: Path, agent: str, redis_url: str) -> Iterator[Callable[..., Process]]:
    """Starts commands in a folder with app.py; none outlives the test."""
    (tmp_path / "app.py").write_text(APP)
    started: list[Process] = []

    def start(*words: str, command: str = "run") -> Process:
        started.append(Process(tmp_path, *words, "--agent", agent, "--redis", redis_url, command=command))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def test_a_worker_and_a_relay_that_are_started_meanwhile_wait_and_go_on(
    slow: SlowServer, starting: Callable[..., Process], client: Client
) -> None:
    slow.load()
    worker = starting("app:Echo", "--processes", "1")
    relay = starting("app:show", command="relay")
    for process in (worker, relay):
        process.wait_line("redis.loading")
    slow.loaded()
    relay.wait_line("relay.joined")
    worker.wait_line("worker.started")
    assert client.ask("42", "hello") == "hello"
    relay.wait_line("given 42")
    assert "no append-only file" not in worker.output
    assert (worker.stop(), relay.stop()) == (0, 0)


def test_a_worker_that_waits_for_it_ends_when_it_is_told_to(slow: SlowServer, starting: Callable[..., Process]) -> None:
    slow.load()
    worker = starting("app:Echo")
    worker.wait_line("redis.loading")
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert "Traceback" not in worker.output


def test_a_system_that_is_started_meanwhile_waits_for_its_time_and_says_what_it_waited_for(
    slow: SlowServer, running: Running, director: Director, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.load()
    monkeypatch.setattr(system_module, "START_PATIENCE_S", 3.0)
    with pytest.raises(RedisUnavailable, match=SAYS):
        running(director.agent())
    monkeypatch.setattr(system_module, "START_PATIENCE_S", 2 * WAIT_S)
    with ThreadPoolExecutor(1) as starting:
        started = starting.submit(running, director.agent())
        slow.loaded()
        started.result()
    client.send("42", "hello")
    wait_output(client, "42", lambda output: output.kind is Kind.REPLY)


def test_a_worker_and_its_clients_go_on_over_a_restart_that_loads_for_long(
    slow: SlowServer, running: Running, director: Director, client: Client, agent: str
) -> None:
    """row 40"""
    system = running(director.agent(), redis_patience=timedelta(seconds=4 * WAIT_S))
    for room in ("a", "b"):
        client.send(room, "wait")
    a, b = director.run("a"), director.run("b")
    a.send(1)
    wait_output(client, "a", lambda output: output.body == 1)
    slow.load()
    eventually(lambda: not system.ready, "it is not ready")
    with Client(agent, redis=slow.url, timeout=3) as hasty, pytest.raises(RedisUnavailable, match=SAYS):
        hasty.send("c", "too late")
    with ThreadPoolExecutor(2) as calls:
        stopped, asked = calls.submit(client.stop, "b"), calls.submit(client.ask, "d", "hello", timeout=2 * WAIT_S)
        a.begin(lambda cycle: cycle.send(2))
        a.finish("done")
        slow.loaded()
        assert [receipt.outcome for receipt in stopped.result()] == [Outcome.APPLIED]
        b.wait_cancelled()
        assert asked.result() == "hello"
    wait_output(client, "a", lambda output: output.kind is Kind.REPLY)
    assert [(output.seq, output.body) for output in client.outputs("a")] == [(1, 1), (2, 2), (3, "done")]
    eventually(lambda: system.ready, "it is ready again")
    assert client.status("c").waiting == 0


def test_each_command_says_it_in_one_line(slow: SlowServer, shell: Shell) -> None:
    slow.load()
    for words, code in ((["check", "--ready"], 1), (["status"], 3), (["send", "42", "hello"], 3)):
        assert SAYS in shell.refused(*words, code=code)
    slow.loaded()
    shell("status")


def test_the_doctor_says_how_far_it_is_and_nothing_that_is_not_so(
    slow: SlowServer, agent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    slow.load()
    assert execute(["doctor", agent, "--redis", slow.url, "--json"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    loading, *others = map(json.loads, out.splitlines())
    assert (loading["check"], loading["severity"]) == ("loading", Severity.ERROR)
    assert "% in memory" in loading["says"]
    assert {row["check"]: row["severity"] for row in others if row["severity"] != Severity.OK} == {
        "persistence": Severity.UNKNOWN
    }


def test_an_embedded_server_is_found_meanwhile_and_its_start_waits_for_as_long_as_it_takes(slow: SlowServer) -> None:
    slow.load()
    found = RedisServer(slow.folder)
    assert found.find()
    assert found.url == slow.url
    started = RedisServer(slow.folder)
    assert not started._ready(slow.port)
    assert started._deadline > time.monotonic(), "what it says puts the deadline off"
    slow.loaded()
    started.start()
    assert started.pid == found.pid
