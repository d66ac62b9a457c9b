"""What the README promises, run as it is printed there."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import pages
from greenroom import ActorSystem, Client
from greenroom.protocol.server import RedisServer, find_cli
from integration.agents import Director, eventually
from integration.command import Process, wrapped
from pages import block

from helpers import unique
from started import Started

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
ANYTHING = ""


def blocks(language: str) -> list[str]:
    """The README's code blocks of that language."""
    return [each.text for each in pages.blocks("README.md", language)]


def sh_lines() -> list[str]:
    return [line for text in blocks("sh") for line in text.splitlines()]


def cli_lines() -> list[str]:
    return [line for line in sh_lines() if line.startswith("redis-cli")]


@pytest.fixture
def server(redis_dir: Path) -> Iterator[RedisServer]:
    """A server of the test's own: the README's agent is called support, as many are."""
    with RedisServer(redis_dir) as server:
        yield server


@pytest.fixture
def support(tmp_path: Path) -> Path:
    """A folder of a reader's own, with support.py as printed."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "support.py").write_text(block("README.md", "# support.py"))
    return folder


def test_the_first_agent_answers_when_it_is_embedded_as_printed(server: RedisServer, support: Path) -> None:
    [program] = [text for text in blocks("python") if "from support import" in text]
    (support / "program.py").write_text(program.replace("redis://127.0.0.1:6379", server.url))
    words = [sys.executable, "program.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(words, cwd=support, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "Where is my parcel? That was question 1. \n"


def test_the_careful_example_streams_through_its_shield(server: RedisServer) -> None:
    names: dict[str, Any] = {}
    [source] = [text for text in blocks("python") if "class Careful" in text]
    exec(compile(source, "README.md", "exec"), names)  # noqa: S102  # the README's own code
    with ActorSystem(names["Careful"], agent="support", redis=server.url), Client("support", redis=server.url) as client:
        assert client.ask("42", "?") == "Let me see. Your card was charged once."


def test_what_is_installed_is_what_there_is() -> None:
    """That it can be installed is tested with the built wheel."""
    [line] = [line for line in sh_lines() if line.startswith("pip install")]
    [package] = shlex.split(line, comments=True)[2:]
    name, extra = package.strip("]").split("[")
    project = tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
    assert extra in project["optional-dependencies"]
    assert "greenroom" in project["scripts"]


def test_each_line_that_a_reader_types_is_of_a_kind_that_is_run_here() -> None:
    kinds = (
        "redis-cli ",
        "greenroom ",
        "export ",
        "./scripts/",
        "pip install ",
        "python3 -m venv ",
        ". ~/rooms/bin/activate ",
        "#",
    )
    assert [line for line in sh_lines() if not line.startswith(kinds)] == []
    scripts = [line.split()[0] for line in sh_lines() if line.startswith("./scripts/")]
    assert scripts == ["./scripts/demo", "./scripts/test"]  # two commands, and test_demo and this very run are of them
    assert all(os.access(ROOT / script, os.X_OK) for script in scripts)


def test_it_can_be_told_in_one_screen_what_it_is_and_how_it_is_tried() -> None:
    screen = README.read_text().splitlines()[:45]
    assert all(
        any(words in line for line in screen) for words in ("## Two commands", "## An agent of your own", "What it is not")
    )
    assert len(README.read_text().splitlines()) < 200


def _redis_cli(folder: Path, url: str) -> dict[str, str]:
    """An environment in which plain ``redis-cli`` talks to that server, as it does to a local one on the usual port."""
    cli = find_cli()
    assert cli is not None
    return wrapped(folder, "redis-cli", str(cli), "-u", url)


def test_each_redis_cli_line_answers_as_the_readme_says(server: RedisServer, tmp_path: Path) -> None:
    """Row 44. Row 19: the last lines are signals."""
    director, name = Director(), unique("worker")
    env = _redis_cli(tmp_path, server.url)

    def run(line: str) -> str:
        done = subprocess.run(["sh", "-c", line], env=env, capture_output=True, timeout=30, check=True)  # noqa: S607
        return done.stdout.decode(errors="replace")

    agent = director.agent(max_attempts=1)
    with ActorSystem(agent, agent="support", redis=server.url, name=name), Client("support", redis=server.url) as client:
        client.send("42", "wait")
        director.run("42")
        client.stop("held", reason="because", by="ann")
        client.send("held", "later")
        client.send("dead", "fail: out of luck")
        eventually(lambda: client.overview().dead == 1, "the message dies")
        ready = client.status("42")
        expected = {
            "ZRANGE": f"42\n{ready.ticket}",
            "HGETALL": "phase\nprocessing",
            "SMEMBERS 'greenroom:{support}:held'": "held",
            "SMEMBERS 'greenroom:{support}:workers'": name,
            "HMGET": ANYTHING,
            "XPENDING": f"{name}\n1",
            "HGET ": name,
            "XLEN": "1",
            "XREVRANGE 'greenroom:{support}:dead'": "out of luck",
            "XREVRANGE 'greenroom:{support}:events'": "message.dead",
        }
        lines = cli_lines()
        reads = [line for line in lines if "control" not in line]
        for line in reads:
            answer = run(line)
            [wanted] = [text for start, text in expected.items() if line.startswith(f"redis-cli {start}")]
            assert wanted in answer, line
        assert "because" in run(reads[3].replace(":42", ":held"))

        stop, look, play, stop_all, play_all = [line for line in lines if "control" in line]
        run(stop)
        eventually(lambda: client.status("42").phase == "held", "the room is stopped")
        hold = client.status("42").hold
        assert hold is not None
        assert (hold.by, hold.reason) == ("ops", "wrong answers")
        assert "applied" in run(look)
        run(play)
        again = director.run("42")
        run(stop_all)
        again.wait_cancelled()
        eventually(lambda: client.status("42").phase == "held", "the agent is stopped")
        run(play_all)
        director.run("42").finish("done")
        eventually(lambda: client.status("42").waiting == 0, "the message is committed")


# The commands. ------------------------------------------------------------------------------------------


def command_lines() -> list[str]:
    """The README's lines that a user types, but for those of redis-cli."""
    return [line for line in sh_lines() if line.startswith(("greenroom ", "export "))]


@pytest.fixture
def folder(support: Path) -> Iterator[Path]:
    """The reader's folder, where the README's own worker runs."""
    run = next(line for line in command_lines() if line.startswith("greenroom run"))
    with ExitStack() as stack:
        worker = Process(support, *shlex.split(run, comments=True)[2:])
        stack.callback(worker.kill)
        try:
            worker.wait_line()
            yield support
        finally:
            code = worker.stop()  # and with it its Redis
    assert code == 0


def _follow(line: str, folder: Path, env: Mapping[str, str]) -> str:
    """What a command that never ends by itself has said once it has shown two replies; it is ended by Ctrl-C."""
    said: list[str] = []
    with Started(["sh", "-c", line], cwd=folder, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            while sum("\treply\t" in row for row in said) < 2:
                said.append(process.stdout.readline())
                assert said[-1], f"{line} has ended: {said}"
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
    return "".join(said)


def test_each_greenroom_line_does_what_the_readme_says(folder: Path, tmp_path: Path) -> None:
    env = wrapped(tmp_path, "greenroom", sys.executable, "-P", "-m", "greenroom") | {"PYTHONPATH": str(ROOT / "src")}
    for name in ("GREENROOM_AGENT", "GREENROOM_EMBEDDED", "GREENROOM_REDIS_URL"):
        env.pop(name, None)  # the README says how they are set
    expected = {
        "send 42": r"\d+\n",
        "ask 42": r"Where is my parcel\? That was question 1\. \n",
        "stop 42": r"(?s).*\n42\tstop\tapplied\t.*",
        "status 42": r"(?s).*hold: stop by .*: wrong answers\n.*",  # and why, if it is quick
        "play 42": r"(?s).*\n42\tplay\tapplied\t.*",
        "top": r"(?s)support plays.*",
        "tail 42": r'(?s).*\tchunk\t.*"parcel\? ".*\treply\t.*\treply\t.*',
    }
    typed, exports = set[str](), ""
    for line in command_lines():
        if line.startswith("export "):
            exports += f"{line}\n"
        elif not line.startswith("greenroom run"):
            [(verb, pattern)] = [(verb, text) for verb, text in expected.items() if f"{line} ".startswith(f"greenroom {verb} ")]
            if "--follow" in line:
                said = _follow(f"{exports}exec {line}", folder, env)
            else:
                words = ["sh", "-c", exports + line]
                done = subprocess.run(words, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
                assert done.returncode == 0, line
                said = done.stdout
            assert re.fullmatch(pattern, said), (line, said)
            typed.add(verb)
    assert typed == set(expected)
