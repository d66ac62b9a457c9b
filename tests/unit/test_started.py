"""What tests start does not outlive them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from started import MARK, Started, children, end_started, how_many

TESTS = Path(__file__).parents[1]
LIMIT_S = 30.0
SLEEP = "import time; time.sleep(3600)"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def gone(pid: int) -> bool:
    """Whether it has ended, at once or soon; a zombie of a parent that is none of ours has."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
    return False


@needs_proc
def test_a_test_that_ends_ends_what_it_has_started_and_their_children_in_sessions_of_their_own() -> None:
    others = Started[bytes]([sys.executable, "-c", SLEEP])
    before = how_many()
    process = Started[str]([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    with process.stdout as said:
        child = int(said.readline())
    assert set(children(process.pid)) == {child}
    end_started(before)
    assert others.poll() is None, "it was started before"
    assert process.returncode == -signal.SIGKILL
    assert gone(child)


@needs_proc
def test_a_run_that_is_killed_ends_what_it_has_started_also_through_others_and_servers(redis_dir: Path) -> None:
    program = f"""
import os, pathlib, signal, subprocess, sys
from greenroom.protocol.server import RedisServer
from started import keep, keep_in
keep()
keep_in(pathlib.Path({str(redis_dir)!r}))
parent = subprocess.Popen([sys.executable, "-c", {PARENT!r}], stdout=subprocess.PIPE, text=True)
server = RedisServer({str(redis_dir)!r})
server.start()
print(server.pid, parent.pid, parent.stdout.readline(), end="", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 3
    assert all(map(gone, pids))


@needs_proc
def test_this_run_has_a_keeper() -> None:
    assert os.environ.get(MARK)


def test_tests_start_processes_in_one_way() -> None:
    """Those that are waited for (``subprocess.run``) end with their test in any case."""
    own = re.compile(r"^\s.*\b(subprocess\.Popen|create_subprocess_exec|create_subprocess_shell)\(", re.MULTILINE)
    # In these it stands in programs that tests start.
    spared = {"started.py", "test_started.py", "isolated_agents.py", "test_processes.py"}
    assert [path.name for path in TESTS.rglob("*.py") if path.name not in spared and own.search(path.read_text())] == []
