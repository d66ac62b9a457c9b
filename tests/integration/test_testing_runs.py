"""Test runs of a user who has ``greenroom.testing``: what they need, and what is left when they end, whichever way."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis as redis_py

from integration.agents import eventually
from integration.command import pytest_in, python_in

AGENT = """
import asyncio

from greenroom import Agent


class Echo(Agent):
    async def respond(self, message, cycle):
        if message.body == "hang":
            await asyncio.Event().wait()
        return message.body
"""

TESTS = """
import os
import pathlib
import sys

import pytest
from echo import Echo
from greenroom.testing import running


@pytest.mark.parametrize("number", range(4))
def test_it_answers(number):
    with running(Echo) as stage:
        pathlib.Path(f"url-{os.getpid()}").write_text(stage.url)
        assert stage.ask("42", "hello") == "hello"
        assert stage.ask("42", "fail") == FAIL
        assert "pytest_asyncio" not in sys.modules
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's project: an agent, and tests of it."""
    (tmp_path / "echo.py").write_text(AGENT)
    (tmp_path / "test_echo.py").write_text(TESTS.replace("FAIL", "'fail'"))
    return tmp_path


def is_gone(url: str) -> bool:
    try:
        with redis_py.Redis.from_url(url) as redis:
            redis.ping()
    except redis_py.ConnectionError:
        return True
    return False


def servers(folder: Path) -> list[str]:
    return [path.read_text() for path in folder.glob("url-*")]


def test_one_redis_serves_a_whole_run_and_ends_with_it(folder: Path) -> None:
    done = pytest_in(folder)
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    [url] = servers(folder)
    assert is_gone(url)


def test_each_process_of_pytest_xdist_has_a_redis_of_its_own_and_all_end(folder: Path) -> None:
    done = pytest_in(folder, "-n", "2", "-p", "xdist")
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    urls = servers(folder)
    assert len(set(urls)) == 2
    eventually(lambda: all(map(is_gone, urls)), "the servers have ended")


def test_tests_that_fail_leave_nothing_behind_either(folder: Path) -> None:
    (folder / "test_echo.py").write_text(TESTS.replace("FAIL", "'?'"))
    done = pytest_in(folder)
    assert "4 failed" in done.stdout, done.stdout + done.stderr
    [url] = servers(folder)
    assert is_gone(url)


def test_a_run_that_is_killed_takes_its_redis_with_it(folder: Path) -> None:
    program = """
import os, sys
from echo import Echo
from greenroom.testing import embedded_redis, running
with running(Echo) as stage, embedded_redis() as server:
    server.kill()
    server.start()
    stage.send("42", "hang")
    stage.wait_begun("42")
    print(stage.url, server.url, flush=True)
    os.kill(os.getpid(), 9)
"""
    done = python_in(folder, "-c", program)
    assert done.returncode == -9, done.stderr
    urls = done.stdout.split()
    assert len(urls) == 2
    eventually(lambda: all(map(is_gone, urls)), "the servers have ended")


def test_a_fork_that_ends_does_not_end_the_redis_of_all(folder: Path) -> None:
    program = """
import os, pathlib, redis, sys
from echo import Echo
from greenroom.testing import running
with running(Echo) as stage:
    url = stage.url
    with redis.Redis.from_url(url, decode_responses=True) as client:
        folder = pathlib.Path(client.config_get("dir")["dir"])
if not os.fork():
    sys.exit()
assert os.wait()[1] == 0
with running(Echo) as stage:
    assert stage.url == url
    assert folder.is_dir()
    assert stage.ask("42", "hello") == "hello"
print(stage.url, folder)
"""
    done = python_in(folder, "-c", program)
    assert done.returncode == 0, done.stderr
    url, served = done.stdout.split()
    assert is_gone(url)
    assert not Path(served).exists()


def test_a_shared_redis_that_a_test_has_killed_is_started_again(folder: Path) -> None:
    program = """
import os, redis
from echo import Echo
from greenroom.testing import running
with running(Echo) as stage:
    with redis.Redis.from_url(stage.url) as client:
        os.kill(client.info("server")["process_id"], 9)
with running(Echo) as stage:
    assert stage.ask("42", "hello") == "hello"
"""
    done = python_in(folder, "-c", program)
    assert done.returncode == 0, done.stderr


def test_without_pytest_the_kit_works_as_well(folder: Path) -> None:
    program = """
import sys
sys.modules["pytest"] = None  # as if it were not installed
from echo import Echo
from greenroom.testing import running
with running(Echo) as stage:
    print(stage.ask("42", "hello"))
"""
    done = python_in(folder, "-c", program)
    assert (done.stdout, done.returncode) == ("hello\n", 0), done.stderr


def test_whoever_merely_has_greenroom_installed_loads_nothing_of_it_in_a_pytest_run(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n\n\ndef test_other():\n    assert not [name for name in sys.modules if name.startswith('greenroom')]\n"
    )
    done = pytest_in(tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_plugin_gives_the_redis_on_which_agents_run(folder: Path) -> None:
    (folder / "conftest.py").write_text('pytest_plugins = ["greenroom.testing.plugin"]\n')
    (folder / "test_echo.py").write_text(
        "from echo import Echo\nfrom greenroom import ActorSystem, Client\nfrom greenroom.testing import running\n\n\n"
        "def test_it(greenroom_redis):\n"
        "    with running(Echo) as stage:\n"
        "        assert stage.url == greenroom_redis\n"
        "    with ActorSystem(Echo, agent='echo', redis=greenroom_redis), Client('echo', redis=greenroom_redis) as client:\n"
        "        assert client.ask('42', 'hello') == 'hello'\n"
    )
    done = pytest_in(folder)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
