"""Programs whose agents run in child processes: where a child finds the class, what is refused, and what ends with a worker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from greenroom import ActorSystem, Agent, AgentError, Client, Kind
from greenroom.actors import isolation
from integration import isolated_agents as agents
from integration.agents import WAIT_S, Director, wait_output
from integration.command import Process
from integration.conftest import Running
from integration.isolated_agents import lives, wait_begun, wait_gone

from started import Started

ROOT = Path(__file__).parents[2]
PATHS = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]), "PYTHONUNBUFFERED": ""}
MAIN = ROOT / "tests" / "integration" / "isolated_main.py"

APP = """
import os
from greenroom import Agent

class Outer:
    class App(Agent):
        isolation = "process"
        max_processes = 1
        async def respond(self, message, cycle):
            return [os.getpid(), os.getppid(), __name__]
"""
UNGUARDED = """
import sys
from greenroom import ActorSystem, Agent

class App(Agent):
    isolation = "process"
    async def respond(self, message, cycle):
        return None

with ActorSystem(App, agent=sys.argv[2], redis=sys.argv[1]):
    print("started")
"""


@contextmanager
def program(*words: str) -> Iterator[subprocess.Popen[str]]:
    """isolated_main.py, once it has started; ended by the end of its stdin."""
    command, pipe = [sys.executable, *words], subprocess.PIPE
    with Started(command, env={**os.environ, **PATHS}, stdin=pipe, stdout=pipe, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "started\n"
        try:
            yield worker
        finally:
            if worker.poll() is None:
                worker.communicate("\n", timeout=WAIT_S)


# Where a child finds the class. -----------------------------------------------------------------------


@pytest.mark.parametrize("words", [[str(MAIN)], ["-m", "integration.isolated_main"]], ids=["script", "module"])
def test_a_class_of_the_main_program_is_found(words: list[str], client: Client, redis_url: str, agent: str) -> None:
    with program(*words, redis_url, agent) as worker:
        pid, parent = client.ask("1", "who")
    assert parent == worker.pid
    assert worker.returncode == 0
    assert not lives(pid)


def test_a_class_of_a_file_is_found_also_when_the_files_name_is_taken(
    client: Client, redis_url: str, agent: str, tmp_path: Path
) -> None:
    (tmp_path / "redis.py").write_text(APP)
    worker = Process(tmp_path, "redis.py:Outer.App", "--agent", agent, "--redis", redis_url)
    worker.wait_line()
    assert client.ask("1", "hello")[1:] == [worker.pid, "app_redis"]
    assert worker.stop() == 0, worker.output


def test_a_class_of_a_module_is_found_by_the_children_of_several_workers(
    client: Client, redis_url: str, agent: str, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP)
    parent = Process(tmp_path, "app:Outer.App", "--agent", agent, "--redis", redis_url, "--name", "w", "--processes", "2")
    lines = parent.wait_count("child.ready", 2)
    pids = [int(pid) for line in lines for pid in re.findall(r"child\.ready .*\bpid=(\d+)", line)]
    pid, worker, module = client.ask("1", "hello")
    assert (pid in pids, module) == (True, "app")
    assert worker != parent.pid
    assert parent.stop() == 0, parent.output
    wait_gone(*pids)


# What is refused. -------------------------------------------------------------------------------------


def test_a_class_that_a_child_cannot_find_is_refused_at_once(director: Director) -> None:
    class Local(agents.Isolated):
        pass

    steered = director.agent(isolation="process")
    for agent_class in (Local, steered):
        with pytest.raises(AgentError, match=f'{agent_class.__name__}: isolation = "process" wants a class at the top of'):
            ActorSystem(agent_class, agent="a")


def test_a_class_of_a_program_without_a_file_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    console = ModuleType("__main__")
    typed: Any = type("Typed", (agents.Isolated,), {"__module__": "__main__"})
    console.__dict__["Typed"] = typed
    monkeypatch.setitem(sys.modules, "__main__", console)
    with pytest.raises(AgentError, match='Typed: isolation = "process" wants a class from a file'):
        ActorSystem(typed, agent="a")


def test_a_program_without_its_guard_is_told_about_it_and_starts_no_flood_of_processes(
    redis_url: str, agent: str, tmp_path: Path
) -> None:
    (tmp_path / "unguarded.py").write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "unguarded.py"), redis_url, agent],
        env={**os.environ, **PATHS},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert 'put what starts it under `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("agent_class", "why"),
    [
        (agents.Unmakeable, "could not load the agent: LookupError: no model there"),
        (agents.SlowToMake, "was not ready within 0.5 s"),
    ],
)
def test_a_start_fails_loudly_when_no_child_gets_ready(
    agent_class: type[Agent], why: str, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "START_S", 0.5 if agent_class is agents.SlowToMake else WAIT_S)
    with pytest.raises(AgentError, match=f"^{agent_class.__name__}: a child process {why}$"):
        running(agent_class)


def test_a_start_fails_loudly_when_no_process_can_be_started(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(AgentError, match="a child process could not be started: no more processes"):
        running(agents.Isolated)


def test_greenroom_run_ends_with_one_line_and_exit_code_2_when_no_child_gets_ready(
    redis_url: str, agent: str, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text("from integration.isolated_agents import Unmakeable\n")
    worker = Process(tmp_path, "app:Unmakeable", "--agent", agent, "--redis", redis_url, environment=PATHS)
    assert worker.exit_code() == 2
    assert worker.output.splitlines()[-1].startswith("greenroom: Unmakeable: a child process could not load the agent: Lookup")


def test_a_child_that_cannot_be_started_later_is_a_failed_attempt_and_the_next_one_is_tried(
    running: Running, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(agents.MARKER, str(tmp_path / "marker"))
    running(agents.FitOnce)
    client.send("1", "exit")
    client.send("2", "hello")
    dead = [wait_output(client, room, lambda output: output.kind is Kind.DEAD).error for room in ("1", "2")]
    assert dead[0] == "its process ended with exit code 3"
    assert dead[1] == "a child process could not load the agent: LookupError: the model has gone"
    (tmp_path / "marker").unlink()
    assert client.ask("2", "hello") == "hello"


# The end of the worker. -------------------------------------------------------------------------------


def test_a_worker_that_is_killed_leaves_neither_children_nor_what_they_have_started(
    client: Client, redis_url: str, agent: str
) -> None:
    """A child that keeps all of Python's threads from running, and one whose own child ignores SIGTERM."""
    with program(str(MAIN), redis_url, agent) as worker:
        client.send("1", "hold the GIL")
        client.send("2", "start a stubborn process")
        pids = wait_begun(client, "1") + wait_begun(client, "2")
        assert all(map(lives, pids))
        worker.kill()
        wait_gone(*pids)


def test_what_is_printed_comes_out_of_the_worker_at_once(client: Client, redis_url: str, agent: str) -> None:
    with program(str(MAIN), redis_url, agent) as worker:
        client.send("1", ["print and sleep", "spoken"])
        assert worker.stdout is not None
        assert worker.stdout.readline() == "spoken\n"


def test_ctrl_c_lets_the_cycle_in_a_child_finish(client: Client, redis_url: str, agent: str, tmp_path: Path) -> None:
    """A terminal sends it to the whole group of the worker."""
    (tmp_path / "app.py").write_text("from integration.isolated_agents import Isolated\n")
    worker = Process(tmp_path, "app:Isolated", "--agent", agent, "--redis", redis_url, environment=PATHS)
    worker.wait_line()
    client.send("1", ["wait for a file", str(tmp_path / "go")])
    [pid] = wait_begun(client, "1")
    os.killpg(worker.pid, signal.SIGINT)
    worker.wait_line("process.stopping")
    (tmp_path / "go").touch()
    assert worker.exit_code() == 0, worker.output
    assert wait_output(client, "1", lambda output: output.kind is Kind.REPLY).body == "went"
    assert not lives(pid)
