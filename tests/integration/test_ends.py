"""However a program is ended, it says nothing that Python says of what was left undone, and it does end."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from greenroom import Client
from integration.agents import Director
from integration.command import SOURCES, WAIT_S, all_of
from integration.conftest import Running
from integration.interrupting import Presses, complaints_of

from started import Started

CROSSINGS = ("sync_client.py", "crossing.py", "actors/loop.py")


class Ending:
    """A script that says a line when it is ready to be ended."""

    def __init__(self, *words: str, path: str = SOURCES, stderr: int = subprocess.PIPE) -> None:
        self._process = Started(
            [sys.executable, "-P", *words],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def ended(self, number: signal.Signals | None = None) -> tuple[int, str, str]:
        """Its exit code, and what it says after its first line on stdout, and on stderr."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", self._process.communicate()
        if number is not None:
            self._process.send_signal(number)
        try:
            out, err = self._process.communicate(timeout=WAIT_S)
        finally:
            self._process.kill()
        return self._process.returncode, out, err


def test_ctrl_c_at_any_point_of_a_call_leaves_no_complaint_and_a_client_that_closes(
    running: Running, director: Director, redis_url: str, agent: str
) -> None:
    running(director.agent())

    def use(presses: Presses) -> None:
        with Client(agent, redis=redis_url) as client, presses:
            client.status("42")
            events = client.events()  # which is closed behind this
            next(events)

    assert complaints_of(use, *CROSSINGS) == []
    assert not [thread for thread in threading.enumerate() if thread.name == "greenroom-client"]


UNCLOSED = """
import sys, threading
from greenroom import Client

client = Client({agent!r}, redis={url!r})
{use}
print("ready", flush=True)
{end}
"""
USES = {
    "a call": 'client.status("42")',
    "a follow": 'client.send("42", "hi"); found = client.outputs("42", follow=True); next(found)',
    "events": 'client.send("42", "hi"); found = client.events(follow=True); next(found)',
    "a stream": 'found = client.ask("42", "hi", stream=True); next(found)',
    "a thread": 'threading.Thread(target=client.ask, args=("held", "hi"), daemon=True).start(); client.ask("42", "hi")',
}
ENDS = {"end": ("", 0), "exit": ("sys.exit(3)", 3)}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("use", USES)
def test_a_program_may_end_without_closing_its_client(
    running: Running, director: Director, client: Client, redis_url: str, agent: str, use: str, end: str
) -> None:
    async def respond(*_: object) -> str:
        return "done"

    running(director.agent(respond=staticmethod(respond)))
    client.stop("held")
    last, code = ENDS[end]
    script = UNCLOSED.format(agent=agent, url=redis_url, use=USES[use], end=last)
    assert Ending("-c", script).ended() == (code, "", "")


NOT_STOPPED = """
from greenroom import ActorSystem, Agent, Client, Relay

class Echo(Agent):
    isolation = {isolation!r}

    async def respond(self, message, cycle):
        return message.body

if __name__ == "__main__":
    relay = Relay({agent!r}, lambda room, output: None, redis={url!r}).start()
    system = ActorSystem(Echo, agent={agent!r}, redis={url!r}).start()
    client = Client({agent!r}, redis={url!r})
    client.ask("42", "hi")
    print("ready", flush=True)
    {end}
"""
NOT_STOPPED_ENDS = {"end": ("pass", 0), "exit": ("raise SystemExit(3)", 3)}


@pytest.mark.parametrize("end", NOT_STOPPED_ENDS)
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_program_may_end_without_stopping_what_it_has_started(
    redis_url: str, agent: str, tmp_path: Path, isolation: str, end: str
) -> None:
    """stderr is at its end only when the child processes, which have it too, are gone."""
    last, code = NOT_STOPPED_ENDS[end]
    script = tmp_path / "program.py"
    script.write_text(NOT_STOPPED.format(agent=agent, url=redis_url, isolation=isolation, end=last))
    exited, out, err = Ending(str(script)).ended()
    assert (exited, out) == (code, "")
    assert [line for line in err.splitlines() if "event=redis.check" not in line] == []


# The command line. -------------------------------------------------------------------------------------


def test_ctrl_c_while_a_command_is_imported_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text('import time\nprint("ready", flush=True)\ntime.sleep(600)\n')
    command = Ending("-m", "greenroom", "--help", path=f"{tmp_path}{os.pathsep}{SOURCES}")
    assert command.ended(signal.SIGINT) == (130, "", "")


def test_ctrl_c_ends_a_command_where_a_keyboard_interrupt_would_be_lost() -> None:
    """Python only complains of what a finalizer raises."""
    script = """
import signal, weakref
from greenroom.ending import end_on_ctrl_c

class Found: pass

end_on_ctrl_c()
print("ready", flush=True)
found = Found()
gone = weakref.ref(found, lambda _: signal.raise_signal(signal.SIGINT))
del found
print("goes on", flush=True)
"""
    assert Ending("-c", script).ended() == (130, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_process_ends_lets_it_end_at_once_with_its_code(number: signal.Signals) -> None:
    script = """
import atexit, time
from greenroom.supervisors.process import Exit

leave = Exit()
atexit.register(lambda: (print("ready", flush=True), time.sleep(3600)))
leave(4)
"""
    assert Ending("-c", script).ended(number) == (4, "", "")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP)]
)
def test_a_progress_bar_that_is_ended_gives_the_cursor_back(number: signal.Signals, code: int) -> None:
    script = """
import os, signal
from greenroom.asking import progress
from greenroom.ending import end_on_ctrl_c

end_on_ctrl_c()
with progress("sends", 10) as advance:
    advance()
    os.write(1, b"ready\\n")  # the bar has taken sys.stdout
    while True:
        signal.pause()
"""
    terminal, theirs = pty.openpty()
    bar = Ending("-c", script, stderr=theirs)
    os.close(theirs)
    try:
        exited, out, _ = bar.ended(number)
        shown = all_of(terminal)
    finally:
        os.close(terminal)
    assert (exited, out) == (code, "")
    assert shown.count(b"\x1b[?25l") == 1
    assert shown.endswith(b"\x1b[?25h")
