"""Fixtures of all tests. One redis-server serves the whole run: each test takes an agent of its own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from greenroom.protocol.server import RedisServer

from helpers import unique
from started import end_started, how_many, keep, keep_in

keep()

# The same examples in each run: who changes nothing there is not refused for a new one; `--hypothesis-profile explore` tries
# many others. No time limit: a busy machine stands still for longer than any.
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", settings.get_profile("same"), derandomize=False, max_examples=5000)
settings.load_profile("same")

# A shell starts background jobs with SIGINT ignored, nohup with SIGHUP, and children inherit that: the tests that press Ctrl-C
# or close a terminal need them as they are in the foreground, wherever they run.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


@pytest.fixture(scope="session", autouse=True)
def nothing_outlives_this_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The keeper also knows where the servers of this run are."""
    keep_in(tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True)
def nothing_outlives_its_test() -> Iterator[None]:
    """What a test has started is ended with it, also when it fails; not what the fixtures of its module had started before."""
    before = how_many()
    yield
    end_started(before)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A running redis-server with an append-only file, for every test that does not stop or kill its server."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of the run's redis-server."""
    return redis_server.url


@pytest.fixture
def redis_dir(tmp_path: Path) -> Path:
    """An empty folder for a redis-server of the test's own."""
    return tmp_path / "redis"


@pytest.fixture
def agent() -> str:
    """An agent name of this test's own."""
    return unique("agent")
