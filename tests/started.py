"""Processes that tests start: none outlives its test, nor this run, however either ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, AnyStr

MARK = "GREENROOM_TESTS"
# What the run has started, also through others, has its mark in the environment; but a redis-server writes its title there, and
# works in a folder of the run. They are looked for until there is none: one that is killed may just have started another.
KEEPER = """
import os, pathlib, signal, sys
mark = sys.argv[1].encode()
folders = [os.path.join(line, "") for line in sys.stdin.read().splitlines()]

def is_ours(process):
    if mark in (process / "environ").read_bytes().split(b"\\0"):
        return True
    if (process / "comm").read_text().strip() not in ("redis-server", "valkey-server"):
        return False
    return any(os.path.join(os.readlink(process / "cwd"), "").startswith(folder) for folder in folders)

found = True
while found:
    found = False
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if is_ours(process):
                os.kill(int(process.name), signal.SIGKILL)
                found = True
        except OSError:
            pass
"""

_started: list[subprocess.Popen[Any]] = []
_keepers: list[subprocess.Popen[bytes]] = []  # told by the end of their stdin, which only this process has


class Started(subprocess.Popen[AnyStr]):
    """A process that ``end_started`` ends, with those that it has started."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _started.append(self)


def children(pid: int) -> dict[int, str]:
    """The states of a process's children, by their ids; none where there is no /proc."""
    states = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid:
                states[int(stat.parent.name)] = state
    return states


def how_many() -> int:
    """Have been started, for ``end_started``."""
    return len(_started)


def end_started(before: int = 0) -> None:
    """Kill those that live of all that were started, but the first ``before`` of them; and their children."""
    while len(_started) > before:
        process = _started.pop()
        if process.poll() is None:
            ours = children(process.pid)  # theirs are known while it is there to be asked about
            process.kill()
            process.wait()
            for pid in ours:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def keep() -> None:
    """From now on the end of this process, however it ends, is that of all that it has started. (On Linux.)

    A redis-server is known by its folder: see ``keep_in``.
    """
    if sys.platform != "linux":
        return
    mark = f"{MARK}={uuid.uuid4().hex}"
    command = [sys.executable, "-S", "-c", KEEPER, mark]
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    _keepers.append(subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=environment))
    os.environ[MARK] = mark.partition("=")[2]


def keep_in(folder: Path) -> None:
    """The redis-servers whose data are in this folder, which is of this run alone, are ended too."""
    for keeper in _keepers:
        assert keeper.stdin is not None
        keeper.stdin.write(f"{folder.resolve()}\n".encode())
        keeper.stdin.flush()
