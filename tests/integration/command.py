"""Commands: those that run for long as processes, which tests signal and read; the others in the process of the test."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from greenroom import Client
from greenroom.cli import execute
from integration.agents import wait_output

from started import Started

WAIT_S = 60.0
SOURCES = str(Path(__file__).parents[2] / "src")


class Process:
    """One ``greenroom run``, or another command, in a folder that has app.py."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        command: str = "run",
        environment: Mapping[str, str] | None = None,
        before_exec: Callable[[], object] | None = None,
    ) -> None:
        self._process = Started(
            # -P: only greenroom itself may put the current directory on the path, as when it is started as a script
            [sys.executable, "-P", "-m", "greenroom", command, *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": SOURCES, "GREENROOM_LOG_FORMAT": "logfmt", **(environment or {})},
            stdin=subprocess.DEVNULL,
            preexec_fn=before_exec,
            start_new_session=True,  # so that a test can signal its whole group, as a terminal does
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: list[str] = []
        self._said = threading.Condition()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with self._said:
                    self._lines.append(line)
                    self._said.notify_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        with self._said:
            return "".join(self._lines)

    def wait_line(self, words: str = "worker.started") -> str:
        """The first line that has these words, once it is said."""

        def found() -> str | None:
            return next((line for line in self._lines if words in line), None)

        with self._said:
            assert self._said.wait_for(lambda: found() is not None, WAIT_S), f"not said: {words}: {self._lines}"
            line = found()
        assert line is not None
        return line

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def exit_code(self) -> int:
        """Wait for its end, and for all that it has said."""
        code = self._process.wait(WAIT_S)
        self._reading.join(WAIT_S)
        return code

    def wait_count(self, words: str, count: int) -> list[str]:
        """The lines that have these words, once there are so many."""

        def found() -> list[str]:
            return [line for line in self._lines if words in line]

        with self._said:
            assert self._said.wait_for(lambda: len(found()) >= count, WAIT_S), f"not said {count} times: {words}: {self._lines}"
            return found()

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.exit_code()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def wrapped(folder: Path, name: str, *words: str, drop: int = 0) -> dict[str, str]:
    """An environment in which the command of that name runs these words, without its own first ``drop`` arguments."""
    wrapper = folder / name
    wrapper.write_text(f'#!/bin/sh\n{"shift; " * drop}exec {shlex.join(words)} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def begun(client: Client, room: str) -> None:
    """Wait until the room's handler has said that it runs."""
    wait_output(client, room, lambda output: output.body == "begun")


def all_of(terminal: int) -> bytes:
    """What was written to a terminal whose other end nobody has any more."""
    found = b""
    try:
        while data := os.read(terminal, 65536):
            found += data
    except OSError:  # as Linux tells the end
        pass
    return found


def embedded_url(process: Process) -> str:
    found = re.search(r"redis-cli -u (\S+)", process.wait_line("redis-cli"))
    assert found
    return found.group(1)


class Shell:
    """Runs commands in this process, with the test's agent and Redis in the environment."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """What the command says on stdout and stderr; it must exit with ``code``."""
        self._capsys.readouterr()
        exited = execute(arguments)
        out, err = self._capsys.readouterr()
        assert exited == code, (out, err)
        return out, err

    def json(self, *arguments: str) -> list[Any]:
        """The values that the command prints with --json."""
        out, err = self(*arguments, "--json")
        assert err == ""
        return [json.loads(line) for line in out.splitlines()]

    def refused(self, *arguments: str, code: int) -> str:
        """The one line on stderr of a command that fails with ``code``."""
        out, err = self(*arguments, code=code)
        assert out == ""
        assert err.startswith("greenroom: ")
        assert err.count("\n") == 1
        return err


def python_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the folder, as a user would who has greenroom installed; each warning is an error there."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # those are of this run
    command = [sys.executable, "-W", "error", *words]
    env["PYTHONPATH"] = SOURCES
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, encoding="utf-8", timeout=100, check=False)


def pytest_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of the folder, without pytest-asyncio."""
    return python_in(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", *words)
