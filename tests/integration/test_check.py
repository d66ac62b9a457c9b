"""``greenroom check``: what a probe is answered, and what it costs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from greenroom import ActorSystem, Agent, Client, InvalidRequest
from greenroom.cli import execute
from greenroom.commands.check import run
from greenroom.protocol.probe import ask_worker, socket_path
from greenroom.protocol.server import RedisServer
from integration.agents import WAIT_S, Director, abandon, blocked, eventually
from integration.command import Process
from integration.conftest import Running

from helpers import lasting_server, unique

APP = "from greenroom import Agent\n\nclass Echo(Agent):\n    async def respond(self, message, cycle): return message.body\n"
HEALTHY, UNHEALTHY, MISCONFIGURED = 0, 1, 2

Check = Callable[..., int]


@pytest.fixture
def probes() -> Iterator[Path]:
    """Not in the test's own directory: a socket's path must be short, and those are long."""
    with tempfile.TemporaryDirectory(prefix="greenroom-") as folder:
        yield Path(folder) / "probes"


@pytest.fixture
def check(agent: str, redis_url: str, probes: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Answers the exit code of a check of the test's agent."""
    monkeypatch.setenv("GREENROOM_AGENT", agent)
    monkeypatch.setenv("GREENROOM_REDIS_URL", redis_url)
    monkeypatch.setenv("GREENROOM_PROBES", str(probes))
    return lambda *words: run(words)


# Liveness. ------------------------------------------------------------------------------------------


def test_a_worker_lives_from_its_start_to_its_end(running: Running, director: Director, check: Check, probes: Path) -> None:
    """row 40"""
    assert check("--live") == MISCONFIGURED  # nobody has made the directory
    system = running(director.agent(), name="worker", probes=probes)
    for words in (["--live"], ["--live", "--worker", "worker"]):
        assert check(*words) == HEALTHY
    for words in (["--live", "--worker", "other"], ["--live", "--agent", unique("other")]):
        assert check(*words) == UNHEALTHY
    system.stop(timedelta(0))
    assert check("--live") == UNHEALTHY
    assert list(probes.iterdir()) == []


def test_a_worker_lives_but_is_not_ready_while_redis_is_away(
    redis_dir: Path, director: Director, check: Check, agent: str, probes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """row 40"""
    server = lasting_server(redis_dir)
    server.start()
    monkeypatch.setenv("GREENROOM_REDIS_URL", server.url)
    try:
        with ActorSystem(director.agent(), agent=agent, redis=server.url, name="worker", probes=probes) as system:
            assert (check("--ready", "--worker", "worker"), check("--live")) == (HEALTHY, HEALTHY)
            url = ("--redis", server.url)
            assert check("--ready", *url) == HEALTHY
            server.kill()
            eventually(lambda: not system.ready, "the worker has noticed")
            assert (check("--ready"), check("--ready", *url), check("--live")) == (UNHEALTHY, UNHEALTHY, HEALTHY)
            server.start()
            eventually(lambda: check("--ready") == HEALTHY, "the worker is back")
            os.kill(server.pid, signal.SIGSTOP)
            try:
                eventually(lambda: check("--ready", *url, "--timeout", "0.2") == UNHEALTHY, "Redis has stopped")
                eventually(lambda: check("--ready") == UNHEALTHY, "the lease has run out")
                assert check("--live") == HEALTHY
            finally:
                os.kill(server.pid, signal.SIGCONT)
            eventually(lambda: check("--ready") == HEALTHY, "the worker is back")
    finally:
        server.stop()


def test_a_control_loop_that_hangs_is_not_live_and_a_user_loop_that_hangs_is(
    running: Running, director: Director, check: Check, probes: Path
) -> None:
    """row 29: an agent that blocks its loop is no reason to kill the rooms of others"""
    system = running(director.agent(), probes=probes)
    with blocked(system._user):
        assert check("--live") == HEALTHY
    with blocked(system._control):
        assert check("--live", "--timeout", "0.2") == UNHEALTHY
    assert check("--live") == HEALTHY


def test_a_newer_worker_of_the_same_name_answers_and_the_end_of_the_older_leaves_it_that(
    running: Running, director: Director, check: Check, probes: Path
) -> None:
    """row 37"""
    older = running(director.agent(), name="same", probes=probes)
    newer = running(director.agent(), name="same", probes=probes)
    older.stop(timedelta(0))
    assert check("--live", "--worker", "same") == HEALTHY
    newer.stop(timedelta(0))
    assert check("--live", "--worker", "same") == UNHEALTHY


def test_workers_of_two_agents_share_a_directory(
    running: Running, director: Director, check: Check, agent: str, probes: Path
) -> None:
    running(director.agent(), probes=probes)
    other = running(director.agent(), agent=unique("other"), name="../../other", probes=probes)
    with blocked(other._control):
        assert check("--live") == HEALTHY
        assert check("--live", "--agent", other._keys.agent, "--timeout", "0.2") == UNHEALTHY
    assert len(list(probes.iterdir())) == 2


@pytest.fixture
def process(agent: str, redis_url: str, tmp_path: Path, probes: Path) -> Iterator[Callable[..., Process]]:
    """Starts ``greenroom run`` with that directory; none outlives the test."""
    (tmp_path / "app.py").write_text(APP)
    started: list[Process] = []

    def start(*words: str) -> Process:
        command = ("app:Echo", "--agent", agent, "--redis", redis_url, "--name", "w", "--probes", str(probes), *words)
        started.append(Process(tmp_path, *command))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def test_a_process_that_is_suspended_or_was_killed_is_not_live(process: Callable[..., Process], check: Check) -> None:
    """row 35"""
    worker = process()
    worker.wait_line()
    assert check("--live", "--worker", "w") == HEALTHY
    worker.signal(signal.SIGSTOP)
    eventually(lambda: check("--live", "--timeout", "0.2") == UNHEALTHY, "it has stopped")
    worker.signal(signal.SIGCONT)
    assert check("--live") == HEALTHY
    worker.kill()
    assert check("--live") == UNHEALTHY
    again = process()
    again.wait_line()
    assert check("--live", "--worker", "w") == HEALTHY
    assert again.stop() == 0


def test_each_of_several_processes_answers(process: Callable[..., Process], check: Check, probes: Path) -> None:
    parent = process("--processes", "2")
    parent.wait_count("worker.started", 2)
    for words in ([], ["--worker", "w-1"], ["--worker", "w-2"]):
        assert check("--live", *words) == HEALTHY
    assert parent.stop() == 0
    assert list(probes.iterdir()) == []


def test_what_is_left_of_a_worker_that_was_killed_does_not_count(
    running: Running, director: Director, check: Check, agent: str, probes: Path
) -> None:
    running(director.agent(), probes=probes)
    abandoned = ActorSystem(director.agent(), agent=agent, redis=os.environ["GREENROOM_REDIS_URL"], name="gone", probes=probes)
    abandoned.start()
    path = socket_path(probes, agent, "gone")
    abandoned._control.run(lambda: close_listener(abandoned)).result()
    abandon(abandoned)
    assert path.exists()
    assert ask_worker(path, 1) is None
    assert check("--live", "--worker", "gone") == UNHEALTHY
    assert check("--live") == HEALTHY


async def close_listener(system: ActorSystem) -> None:
    """As a process that is killed: nobody listens any more, and the file stays."""
    assert system._probes is not None
    server = system._probes._server
    assert server is not None
    path = system._probes._path
    kept = path.with_suffix(".kept")
    path.rename(kept)  # Python 3.13 removes the file of a server that is closed
    server.close()
    kept.rename(path)


@pytest.mark.parametrize("folder", ["/dev/null/probes", "x" * 120], ids=["no directory", "too long"])
def test_a_directory_that_cannot_hold_a_socket_is_refused_at_the_start(
    folder: str, director: Director, redis_url: str, agent: str, tmp_path: Path
) -> None:
    """row 45"""
    system = ActorSystem(director.agent(), agent=agent, redis=redis_url, probes=tmp_path / folder)
    with pytest.raises(InvalidRequest, match="probes"):
        system.start()


# Readiness. -----------------------------------------------------------------------------------------


@pytest.fixture
def afar(check: Check, monkeypatch: pytest.MonkeyPatch) -> Check:
    """The same from where no worker runs."""
    monkeypatch.delenv("GREENROOM_PROBES")
    return check


def test_a_worker_that_ends_is_live_and_not_ready(
    running: Running, director: Director, check: Check, client: Client, probes: Path
) -> None:
    """row 38: while its cycles finish"""
    system = running(director.agent(), probes=probes)
    client.send("42", "wait")
    run = director.run("42")
    ending = threading.Thread(target=system.stop)
    ending.start()
    try:
        eventually(lambda: check("--ready") == UNHEALTHY, "it is not ready any more")
        assert check("--live") == HEALTHY
    finally:
        run.finish("done")
        ending.join(WAIT_S)
    assert check("--live") == UNHEALTHY


def test_from_afar_ready_is_who_has_a_lease(
    running: Running, director: Director, afar: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    """row 40"""
    check = afar
    assert check("--ready") == UNHEALTHY
    assert "no worker" in capsys.readouterr().err
    first = running(director.agent(), name="first")
    running(director.agent(), name="second")
    assert check("--ready") == HEALTHY
    assert capsys.readouterr().out == "ready: first second\n"
    assert (check("--ready", "--worker", "first"), check("--ready", "--worker", "third")) == (HEALTHY, UNHEALTHY)
    first.stop(timedelta(0))
    assert (check("--ready", "--worker", "first"), check("--ready")) == (UNHEALTHY, HEALTHY)


def test_from_afar_a_worker_whose_lease_has_run_out_is_not_ready(
    redis_url: str, agent: str, director: Director, afar: Check
) -> None:
    """row 36"""
    check = afar
    system = ActorSystem(director.agent(), agent=agent, redis=redis_url, name="gone", lease=timedelta(seconds=1)).start()
    assert check("--ready", "--worker", "gone") == HEALTHY
    abandon(system)
    eventually(lambda: check("--ready", "--worker", "gone") == UNHEALTHY, "the lease has run out")
    assert check("--ready") == UNHEALTHY


def test_the_embedded_server_of_a_directory_is_asked(redis_dir: Path, check: Check, director: Director, agent: str) -> None:
    assert check("--ready", "--embedded", str(redis_dir)) == UNHEALTHY
    with RedisServer(redis_dir) as server, ActorSystem(director.agent(), agent=agent, redis=server.url):
        assert check("--ready", "--embedded", str(redis_dir)) == HEALTHY
        assert check("--ready", "--embedded", str(redis_dir), "--redis", server.url) == MISCONFIGURED


# The command. ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--live", "--ready"],
        ["--lively"],
        ["--live", "extra"],
        ["--ready", "--agent", "a b"],
        ["--ready", "--agent", ""],
        ["--ready", "--worker", ""],
        ["--ready", "--timeout", "0"],
        ["--ready", "--timeout", "nan"],
        ["--ready", "--timeout", "soon"],
        ["--ready", "--redis", "http://example.org"],
        ["--ready", "--redis", "redis://nobody:hunter2@127.0.0.1:{port}"],
        ["--live", "--probes", "/no/such/directory"],
        ["--live", "--probes", ""],
        ["--live", "--redis", "redis://127.0.0.1"],
        ["--live", "--embedded", "."],
    ],
)
def test_a_misconfigured_check_is_one_line_and_exit_code_2(
    words: list[str], check: Check, redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """row 45"""
    assert check(*(word.format(port=redis_server.port) for word in words)) == MISCONFIGURED
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("greenroom: ")
    assert "hunter2" not in err


def test_a_redis_that_cannot_be_reached_is_not_ready_rather_than_misconfigured(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check("--ready", "--redis", "redis://127.0.0.1:1") == UNHEALTHY
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_is_one_among_the_others(
    running: Running, director: Director, check: Check, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    running(director.agent())
    assert (execute(["check", "--ready", "--redis", redis_url]), execute(["check", "--live"]), execute(["check"])) == (0, 2, 2)
    capsys.readouterr()
    assert execute(["check", "--help"]) == 0
    assert "usage: greenroom check" in capsys.readouterr().out
    execute(["--help"])
    assert "check" in capsys.readouterr().out


def imported(*words: str) -> set[str]:
    """The modules that the program imports, and its exit code has to be 0."""
    command = [sys.executable, "-X", "importtime", "-m", "greenroom", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return set(re.findall(r"\| +([\w.]+)$", done.stderr, re.MULTILINE))


def test_a_probe_imports_nothing_that_it_does_not_need(
    running: Running, director: Director, check: Check, probes: Path, redis_url: str
) -> None:
    """It is started every few seconds: asking a worker takes about 40 ms, of which Python itself takes the half."""
    running(director.agent(), probes=probes)
    near = imported("check", "--live") | imported("check", "--ready")
    far = imported("check", "--ready", "--redis", redis_url)
    for unneeded in ("typer", "pydantic", "pykka", "msgpack", "greenroom.public", "greenroom.supervisors"):
        assert unneeded not in near | far
    for unneeded in ("redis", "asyncio", "ssl", "structlog", "rich"):
        assert unneeded not in near


def test_the_package_has_all_its_names_though_they_are_loaded_late() -> None:
    program = (
        "import greenroom, sys; assert 'redis' not in sys.modules; from greenroom import *; "
        "assert Agent is greenroom.Agent and set(greenroom.__all__) <= set(dir(greenroom)); "
        "assert isinstance(__version__, str); assert greenroom.protocol.client.AsyncClient is AsyncClient; "
        "assert not hasattr(greenroom, 'NoSuchName')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert Agent.__module__ == "greenroom.actors.agent"
