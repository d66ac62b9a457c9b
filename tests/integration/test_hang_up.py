"""A terminal that goes, or is said to go, is no reason for a worker or a relay to leave anything undone."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from greenroom import Client, Kind
from integration.agents import Director, eventually
from integration.command import SOURCES, WAIT_S, Process, begun
from integration.conftest import Running
from integration.test_top import take_terminal

from started import Started

APP = """
import asyncio, pathlib
from greenroom import Agent

class Prints(Agent):
    async def respond(self, message, cycle):
        if message.body != "wait":
            return message.body
        await cycle.send("begun")
        while not pathlib.Path("go").exists():
            await asyncio.sleep(0.01)
        while True:
            try:
                print("to nobody", flush=True)
                return "done"
            except OSError:  # until it is known here that the terminal is gone
                await asyncio.sleep(0.01)

async def hang(room, output):
    print("given", flush=True)
    await asyncio.Event().wait()
"""


@contextmanager
def terminal(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The first program of a terminal, and the end of it that a window, or an ssh, has. What is in it ends with the block."""
    ours, theirs = pty.openpty()
    first = Started[bytes](
        words,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": SOURCES},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(theirs)
    try:
        yield first, ours
    finally:
        if first.returncode is None:  # nobody has waited for it, so the group is its own
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()


def said(client: Client) -> list[object]:
    return [output.body for output in client.outputs("42") if output.kind is Kind.REPLY]


@pytest.mark.parametrize("processes", [(), ("--processes", "2")], ids=["one", "several"])
@pytest.mark.parametrize("shell", ["", "; true"], ids=["by itself", "under a shell"])
def test_a_terminal_that_goes_lets_cycles_finish_also_those_that_print(
    shell: str, processes: tuple[str, ...], redis_url: str, agent: str, client: Client, tmp_path: Path
) -> None:
    """By itself it is told by the kernel, under a shell when that ends. What it says then is said to nobody."""
    (tmp_path / "app.py").write_text(APP)
    worker = [sys.executable, "-P", "-m", "greenroom", "run", "app:Prints", "--agent", agent, "--redis", redis_url, *processes]
    with terminal(tmp_path, "sh", "-c", shlex.join(worker) + shell if shell else f"exec {shlex.join(worker)}") as (_, window):
        client.send("42", "wait")
        begun(client, "42")
        os.close(window)
        (tmp_path / "go").touch()
        eventually(lambda: client.overview().workers == (), "the workers have left")
        assert said(client) == ["done"]
        assert client.status("42").attempt == 0


def test_a_terminal_that_goes_is_a_drain_that_ends_with_0(redis_url: str, agent: str, client: Client, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    words = ("run", "app:Prints", "--agent", agent, "--redis", redis_url, "--grace", "0")
    with terminal(tmp_path, sys.executable, "-P", "-m", "greenroom", *words) as (worker, window):
        client.send("42", "wait")
        begun(client, "42")
        os.close(window)
        eventually(lambda: client.overview().workers == (), "the worker has left")
        status = client.status("42")
        assert (status.phase, status.waiting, status.attempt, status.owner) == ("queued", 1, 0, None)
        assert worker.wait(WAIT_S) == 0


@pytest.fixture
def worker(redis_url: str, agent: str, tmp_path: Path) -> Iterator[Process]:
    (tmp_path / "app.py").write_text(APP)
    process = Process(tmp_path, "app:Prints", "--agent", agent, "--redis", redis_url)
    process.wait_line()
    yield process
    process.kill()


def test_however_often_it_is_said_it_does_not_force_the_end_nor_does_a_service_manager_that_ends_the_session(
    worker: Process, client: Client, tmp_path: Path
) -> None:
    client.send("42", "wait")
    begun(client, "42")
    for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
        worker.signal(number)
    worker.wait_line("process.stopping")
    (tmp_path / "go").touch()
    assert worker.exit_code() == 0
    assert said(client) == ["done"]
    assert worker.output.count("to nobody") == 1, "a terminal that is there is still printed to"


def test_a_second_signal_after_it_forces_the_end(worker: Process, client: Client) -> None:
    client.send("42", "wait")
    begun(client, "42")
    worker.signal(signal.SIGHUP)
    worker.wait_line("process.stopping")
    worker.signal(signal.SIGTERM)
    worker.signal(signal.SIGINT)
    assert worker.exit_code() == 1


@pytest.mark.parametrize("processes", [(), ("--processes", "1")], ids=["one", "several"])
def test_under_nohup_it_goes_on(processes: tuple[str, ...], redis_url: str, agent: str, client: Client, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    words = ("app:Prints", "--agent", agent, "--redis", redis_url, *processes)
    process = Process(tmp_path, *words, before_exec=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    try:
        process.wait_line()
        process.signal(signal.SIGHUP)
        for number in range(20):
            assert client.ask("42", number, timeout=WAIT_S) == number
        assert "process.stopping" not in process.output
        assert process.stop() == 0
    finally:
        process.kill()


def test_a_relay_finishes_too(
    running: Running, director: Director, redis_url: str, agent: str, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP)
    running(director.agent())
    process = Process(tmp_path, "app:hang", "--agent", agent, "--redis", redis_url, "--grace", "0", command="relay")
    try:
        process.wait_line("relay.joined")
        client.send("42", "hello")
        process.wait_line("given")
        process.signal(signal.SIGHUP)
        assert process.exit_code() == 0
        assert "process.stopping" in process.output
    finally:
        process.kill()
