"""``greenroom run --processes N``: a parent that keeps N workers running, and what ends them all."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import pytest
from redis import Redis

from greenroom import Backoff, Client, Kind
from greenroom.protocol.server import RedisServer
from greenroom.supervisors import processes
from greenroom.supervisors.orders import Order, Orders
from greenroom.supervisors.process import ExitCode
from greenroom.supervisors.processes import Processes, ends_all
from greenroom.supervisors.restart import RestartPolicy
from integration.agents import eventually
from integration.command import Process, begun, embedded_url

from started import children

APP = """
import asyncio, os, pathlib, subprocess, sys
from greenroom import Agent, Backoff

pathlib.Path(f"imported-{os.getpid()}").touch()

class Echo(Agent):
    retry = Backoff(Backoff().first * 0, Backoff().first * 0)

    async def respond(self, message, cycle):
        if message.body == "wait":
            await cycle.send("begun")
            await asyncio.Event().wait()
        if message.body == "die once" and message.attempt == 1:
            os._exit(9)
        if message.body == "leave an orphan" and message.attempt == 1:
            subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
            os._exit(9)
        return message.body

class FailsToStart(Echo):
    def __init__(self):
        raise RuntimeError("no model")
"""
CHILD_LINE = re.compile(r"(?:w-(?P<label>\d+): |(?!.* event=process\.(?!failed)).* worker=w-(?P<field>\d+) )")


class Starting(Protocol):
    def __call__(self, app: str, *arguments: str, **environment: str) -> Process: ...


@pytest.fixture
def starting(tmp_path: Path, agent: str) -> Iterator[Starting]:
    """Starts ``greenroom run APP --agent … --name w`` in a folder with app.py; none outlives the test, nor its children."""
    (tmp_path / "app.py").write_text(APP)
    started: list[Process] = []

    def start(app: str, *arguments: str, **environment: str) -> Process:
        started.append(Process(tmp_path, app, "--agent", agent, "--name", "w", *arguments, environment=environment))
        return started[-1]

    yield start
    for process in started:
        pids = worker_pids(process)
        process.kill()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def pair(starting: Starting, redis_url: str) -> Process:
    """Two workers of app:Echo on the run's Redis, both ready."""
    process = starting("app:Echo", "--processes", "2", "--redis", redis_url)
    process.wait_count("worker.started", 2)
    return process


def worker_pids(process: Process) -> list[int]:
    """The process ids of all workers that were ever started."""
    return [int(pid) for pid in re.findall(r"process\.started .*worker=\S+ pid=(\d+)", process.output)]


def ended(pid: int) -> bool:
    """Whether there is no such process any more, not even as a zombie of a parent that lives."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


# They work, and are restarted. ------------------------------------------------------------------------


def test_each_worker_is_a_process_of_its_own_and_the_parent_runs_no_code_of_the_agent(
    pair: Process, client: Client, tmp_path: Path
) -> None:
    assert client.overview().workers == ("w-1", "w-2")
    assert client.ask("42", "hello") == "hello"
    imported = {int(path.name.removeprefix("imported-")) for path in tmp_path.glob("imported-*")}
    assert imported == set(worker_pids(pair))
    assert len(imported) == 2
    assert pair.pid not in imported
    assert pair.stop() == 0
    assert client.overview().workers == ()


def test_a_killed_worker_is_started_again_under_its_name_and_replays_what_it_had(pair: Process, client: Client) -> None:
    assert client.ask("42", "die once", timeout=30) == "die once"
    replies = [output for output in client.outputs("42") if output.kind is Kind.REPLY]
    assert len(replies) == 1
    assert "was ended" not in pair.output
    assert re.search(r"process\.ended .*worker=w-\d code=9", pair.wait_line("code=9"))
    pair.wait_count("worker.started", 3)
    assert client.overview().workers == ("w-1", "w-2")
    assert pair.stop() == 0


@needs_proc
def test_no_zombies_are_left(pair: Process) -> None:
    for number in range(3):
        pid = worker_pids(pair)[-1]
        os.kill(pid, signal.SIGKILL)
        pair.wait_count("worker.started", number + 3)
        assert ended(pid)
    states = children(pair.pid).values()
    assert len(states) == 2
    assert "Z" not in states
    assert pair.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="makes the parent one that inherits orphans")
def test_orphans_of_a_crashed_worker_do_not_become_zombies_of_a_parent_that_inherits_them(
    tmp_path: Path, redis_url: str, agent: str, client: Client
) -> None:
    """As the first process of a container does."""
    inherits = 36  # PR_SET_CHILD_SUBREAPER
    (tmp_path / "app.py").write_text(APP)
    arguments = ("app:Echo", "--agent", agent, "--name", "w", "--processes", "1", "--redis", redis_url)
    libc = ctypes.CDLL(None)
    process = Process(tmp_path, *arguments, before_exec=lambda: libc.prctl(inherits, 1, 0, 0, 0))
    try:
        assert client.ask("42", "leave an orphan", timeout=30) == "leave an orphan"
        worker = worker_pids(process)[-1]
        eventually(lambda: set(children(process.pid)) == {worker}, "the orphan is gone, and no zombie")
        assert process.stop() == 0
    finally:
        process.kill()


def test_a_parent_whose_standard_input_is_closed_has_workers_all_the_same(
    tmp_path: Path, redis_url: str, agent: str, client: Client
) -> None:
    (tmp_path / "app.py").write_text(APP)
    arguments = ("app:Echo", "--agent", agent, "--name", "w", "--processes", "1", "--redis", redis_url)
    process = Process(tmp_path, *arguments, before_exec=lambda: os.close(0))
    try:
        assert client.ask("42", "hello", timeout=30) == "hello"
        assert process.stop() == 0
        assert len(worker_pids(process)) == 1
    finally:
        process.kill()


def test_every_line_of_a_worker_says_which_it_is(starting: Starting, redis_url: str) -> None:
    process = starting("app:FailsToStart", "--processes", "2", "--redis", redis_url)
    assert process.exit_code() == 5
    workers: list[str] = []
    others: list[str] = []
    for line in process.output.splitlines():
        match = CHILD_LINE.match(line)
        (workers if match else others).append(match["label"] or match["field"] if match else line)
    assert set(workers) == {"1", "2"}
    assert all("event=process." in line or line.startswith("greenroom: ") for line in others), others
    assert re.search(r" event=process.failed agent=\S+ worker=w-1 exception=\"Traceback", process.output)
    assert re.search(r"^w-1: greenroom: RuntimeError: no model$", process.output, re.MULTILINE)


@needs_proc
def test_a_password_is_not_on_the_workers_command_lines(starting: Starting, redis_dir: Path) -> None:
    with RedisServer(redis_dir) as server, Redis.from_url(server.url) as admin:
        admin.config_set("requirepass", "se-cret")
        process = starting("app:Echo", "--processes", "1", "--redis", f"redis://:se-cret@127.0.0.1:{server.port}")
        process.wait_line()
        (pid,) = worker_pids(process)
        assert "se-cret" not in Path(f"/proc/{pid}/cmdline").read_text()
        assert process.stop() == 0
        assert "se-cret" not in process.output


def test_an_embedded_server_is_the_parents_and_ends_with_it(starting: Starting, agent: str, redis_dir: Path) -> None:
    process = starting("app:Echo", "--processes", "2", "--embedded", str(redis_dir))
    process.wait_count("worker.started", 2)
    assert process.output.count("redis-cli") == 1
    with Client(agent, redis=embedded_url(process)) as client:
        assert client.ask("42", "die once", timeout=30) == "die once"
    assert process.stop() == 0
    assert not RedisServer(redis_dir).find()


def test_a_dump_shows_every_worker_and_disturbs_none(pair: Process, client: Client) -> None:
    wait_in_each(client)
    pair.signal(signal.SIGUSR1)
    pair.wait_count("end of the dump of worker", 2)
    for number, pid in enumerate(worker_pids(pair), start=1):
        assert f"greenroom: worker w-{number}: pid {pid} up " in pair.output
        assert f"w-{number}: dump of worker w-{number}, agent {client.agent}, pid {pid}\n" in pair.output
    rooms = re.findall(r"^w-\d:   ([a-d]) running for \d+\.\d s ticket \d+", pair.output, re.MULTILINE)
    assert sorted(rooms) == ["a", "b", "c", "d"]
    assert client.ask("42", "hello") == "hello"
    assert all(client.status(room).attempt == 1 for room in "abcd")


# They are told to end. --------------------------------------------------------------------------------


def wait_in_each(client: Client) -> None:
    """Have handlers wait in the rooms a to d, whoever runs them."""
    for room in "abcd":
        client.send(room, "wait")
        begun(client, room)


def all_given_back(client: Client) -> bool:
    statuses = [client.status(room) for room in "abcd"]
    return all((status.phase, status.waiting, status.attempt) == ("queued", 1, 0) for status in statuses)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains_all(number: signal.Signals, starting: Starting, redis_url: str, client: Client) -> None:
    process = starting("app:Echo", "--processes", "2", "--redis", redis_url, "--grace", "0")
    process.wait_count("worker.started", 2)
    wait_in_each(client)
    process.signal(number)
    assert process.exit_code() == 0
    assert all_given_back(client)
    assert process.output.count("worker.stopped") == 2


def test_a_signal_to_all_processes_at_once_still_drains(starting: Starting, redis_url: str, client: Client) -> None:
    """As service managers end a service: each worker is told twice, by the manager and by the parent."""
    process = starting("app:Echo", "--processes", "2", "--redis", redis_url, "--grace", "0")
    process.wait_count("worker.started", 2)
    wait_in_each(client)
    for pid in (process.pid, *worker_pids(process)):
        with suppress(ProcessLookupError):  # it has ended: its parent was faster
            os.kill(pid, signal.SIGTERM)
    assert process.exit_code() == 0
    assert "forced" not in process.output
    assert all_given_back(client)


def test_ctrl_c_in_a_terminal_reaches_the_workers_through_the_parent_alone(pair: Process) -> None:
    os.killpg(pair.pid, signal.SIGINT)
    assert pair.exit_code() == 0
    assert pair.output.count("event=process.stopping") == 3
    assert "forced" not in pair.output


def test_a_second_signal_forces_all(starting: Starting, redis_url: str, client: Client) -> None:
    process = starting("app:Echo", "--processes", "2", "--redis", redis_url, "--grace", "3600")
    process.wait_count("worker.started", 2)
    wait_in_each(client)
    process.signal(signal.SIGTERM)
    process.wait_count("process.stopping", 3)
    process.signal(signal.SIGINT)
    assert process.exit_code() == 1
    assert "greenroom: forced to end by a second signal" in process.output
    assert all(ended(pid) for pid in worker_pids(process))


def test_a_signal_while_the_app_is_imported_ends_all(starting: Starting, redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import threading\nprint('importing', flush=True)\nthreading.Event().wait()\n")
    process = starting("slow:Echo", "--processes", "2", "--redis", redis_url)
    process.wait_count("importing", 2)
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 0
    assert "Traceback" not in process.output


def test_a_signal_before_the_workers_can_hear_it_ends_all(starting: Starting, redis_url: str) -> None:
    process = starting("app:Echo", "--processes", "2", "--redis", redis_url)
    process.wait_count("process.started", 2)  # they have not even loaded Python
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 0, process.output


def test_an_import_that_swallows_every_interruption_does_not_hold_up_the_end(
    starting: Starting, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "stubborn.py").write_text(
        "import threading\n"
        "while True:\n    try:\n        print('importing', flush=True)\n        threading.Event().wait()\n"
        "    except BaseException:\n        pass\n"
    )
    process = starting("stubborn:Echo", "--processes", "1", "--redis", redis_url)
    process.wait_line("importing")
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 0


def test_workers_end_by_themselves_when_their_parent_is_killed(starting: Starting, redis_url: str, client: Client) -> None:
    process = starting("app:Echo", "--processes", "2", "--redis", redis_url, "--grace", "0")
    process.wait_count("worker.started", 2)
    wait_in_each(client)
    process.kill()
    eventually(lambda: all(map(ended, worker_pids(process))), "the workers have ended")
    assert all_given_back(client)
    assert client.overview().workers == ()


# What ends all. ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("code", [-9, 0, 1, 2, 3, 4, 5, 6, 9])
def test_which_exit_codes_end_all(code: int, first: bool) -> None:
    always, only_first = {4, 6}, {2, 3}
    expected = code if code in always or (first and code in only_first) else None
    assert ends_all(code, first=first) == expected


def test_an_app_that_is_none_ends_all_with_2_at_once(starting: Starting, redis_url: str) -> None:
    process = starting("nowhere:Echo", "--processes", "2", "--redis", redis_url)
    assert process.exit_code() == 2
    assert len(worker_pids(process)) == 2
    assert re.search(r"^w-\d: greenroom: no module named nowhere", process.output, re.MULTILINE)
    assert re.search(r"^greenroom: w-\d ended with exit code 2: all workers end$", process.output, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--name", "no name"], "worker name 'no name-1': white space"),
        (["--agent", "a{b}"], "braces"),
        (["--redis", "nonsense"], "not a Redis URL"),
        (["--processes", "0"], "--processes"),
        (["--grace", "1e300"], "--grace"),
        (["--lease", "0.5"], "--lease"),
        (["--recovery-rate", "0"], "--recovery-rate"),
        (["--embedded", "dir", "--redis", "redis://127.0.0.1"], "not both"),
    ],
)
def test_wrong_usage_is_said_once_and_starts_nobody(arguments: list[str], words: str, starting: Starting) -> None:
    process = starting("app:Echo", "--processes", "2", *arguments)
    assert process.exit_code() == 2
    assert process.output.startswith("greenroom: ")
    assert process.output.count("\n") == 1
    assert words in process.output


def test_no_redis_at_the_start_ends_all_with_3(starting: Starting) -> None:
    process = starting("app:Echo", "--processes", "2", "--redis", "redis://127.0.0.1:1")
    assert process.exit_code() == 3
    assert len(worker_pids(process)) == 2


def test_a_newer_parent_with_the_same_name_ends_the_older_one_with_4(
    pair: Process, starting: Starting, redis_url: str, client: Client
) -> None:
    newer = starting("app:Echo", "--processes", "2", "--redis", redis_url)
    newer.wait_count("worker.started", 2)
    assert pair.exit_code() == 4, pair.output
    assert client.ask("42", "hello") == "hello"
    assert client.overview().workers == ("w-1", "w-2")
    assert newer.stop() == 0


def test_an_emptied_redis_ends_all_with_6(starting: Starting, redis_dir: Path) -> None:
    with RedisServer(redis_dir) as server:
        process = starting("app:Echo", "--processes", "2", "--redis", server.url, "--lease", "1")
        process.wait_count("worker.started", 2)
        with Redis.from_url(server.url) as admin:
            admin.flushall()
        assert process.exit_code() == 6, process.output
        assert "Redis has lost this agent's data" in process.output


def test_an_emptied_redis_ends_a_single_worker_with_6(starting: Starting, redis_dir: Path) -> None:
    with RedisServer(redis_dir) as server:
        process = starting("app:Echo", "--redis", server.url, "--lease", "1")
        process.wait_line()
        with Redis.from_url(server.url) as admin:
            admin.flushall()
        assert process.exit_code() == 6, process.output


# With children that do as they are told. --------------------------------------------------------------

SCRIPT = """
import os, pathlib, sys, time
name = sys.argv[sys.argv.index("--name") + 1]
lifeline = int(sys.argv[sys.argv.index("--lifeline") + 1])
folder = pathlib.Path(os.environ["FOLDER"])
start = len(list(folder.glob(f"{name}-*"))) + 1
hear = lambda: os.read(lifeline, 1)
written = folder / f"new-{name}-{start}"
written.write_text(str(os.getpid()))
written.rename(folder / f"{name}-{start}")
"""
QUICK = Backoff(timedelta(0), timedelta(0))
SLOW = Backoff(timedelta(hours=1), timedelta(hours=1))
MINUTE = timedelta(seconds=60)
FIVE = RestartPolicy(5, MINUTE, QUICK)


class Family:
    """A parent in this process, whose children run ``script`` with ``name``, ``start``, ``hear`` and ``folder`` at hand."""

    def __init__(self, folder: Path, orders: Orders, script: str, *names: str, policy: RestartPolicy) -> None:
        self._folder = folder
        self._orders = orders
        command = [sys.executable, "-S", "-c", SCRIPT + script]
        self.parent = Processes(
            command, dict.fromkeys(names, ()), orders, environment={**os.environ, "FOLDER": str(folder)}, policy=policy
        )

    def starts(self, name: str) -> int:
        return len(list(self._folder.glob(f"{name}-*")))

    def pid(self, name: str) -> int:
        return int((self._folder / name).read_text())

    def run(self, *orders: Order, once: Callable[[], object] = lambda: False) -> ExitCode:
        """Run it, and give it the orders when ``once`` becomes true."""

        def give() -> None:
            eventually(once, "it is time for the orders")
            for order in orders:
                self._orders.events.put(order)

        giving = threading.Thread(target=give)
        if orders:
            giving.start()
        code = self.parent.run()
        if orders:
            giving.join()
        return code

    def exists(self, *names: str) -> Callable[[], bool]:
        return lambda: all((self._folder / name).exists() for name in names)


class MakeFamily(Protocol):
    def __call__(self, script: str, *names: str, policy: RestartPolicy = ...) -> Family: ...


@pytest.fixture
def family(tmp_path: Path) -> Iterator[MakeFamily]:
    with Orders() as orders:

        def make(script: str, *names: str, policy: RestartPolicy = FIVE) -> Family:
            return Family(tmp_path, orders, script, *names, policy=policy)

        yield make


def test_a_spent_budget_ends_all_with_5_and_the_others_drain(family: MakeFamily, tmp_path: Path) -> None:
    script = "sys.exit(7 if name == 'bad' else (folder / f'said-{hear()}').touch())"
    two = family(script, "bad", "good", policy=RestartPolicy(2, MINUTE, QUICK))
    assert two.run() is ExitCode.BUDGET
    assert (two.starts("bad"), two.starts("good")) == (3, 1)
    assert (tmp_path / "said-b's'").exists()


def test_each_worker_has_a_budget_of_its_own(family: MakeFamily) -> None:
    three = family("start <= 2 and sys.exit(7); hear()", "a", "b", "c", policy=RestartPolicy(2, MINUTE, QUICK))
    assert three.run(Order.STOP, once=three.exists("a-3", "b-3", "c-3")) is ExitCode.OK


def test_no_restart_at_all_is_a_budget_too(family: MakeFamily) -> None:
    one = family("sys.exit(7)", "a", policy=RestartPolicy(0, MINUTE, QUICK))
    assert one.run() is ExitCode.BUDGET
    assert one.starts("a") == 1


def test_a_worker_that_ends_unasked_is_started_again(family: MakeFamily) -> None:
    one = family("start == 1 and sys.exit(0); hear()", "a")
    assert one.run(Order.STOP, once=one.exists("a-2")) is ExitCode.OK


def test_an_outage_of_redis_while_a_worker_starts_again_is_no_crash(
    family: MakeFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "REDIS_RETRY_S", 0.0)
    one = family("start == 1 and sys.exit(7); start < 9 and sys.exit(3); hear()", "a", policy=RestartPolicy(1, MINUTE, QUICK))
    assert one.run(Order.STOP, once=one.exists("a-9")) is ExitCode.OK


@pytest.mark.parametrize("code", [4, 6])
def test_some_codes_end_all_also_after_restarts(family: MakeFamily, code: int) -> None:
    two = family(f"name == 'a' and sys.exit({code} if start == 2 else 7); hear()", "a", "b")
    assert two.run() == code


def test_a_worker_that_crashes_while_all_drain_makes_it_1(family: MakeFamily) -> None:
    two = family("hear(); sys.exit(9 if name == 'a' else 0)", "a", "b")
    assert two.run(Order.STOP, once=two.exists("a-1", "b-1")) is ExitCode.FAILED


def test_nobody_waits_for_a_restart_when_all_end(family: MakeFamily) -> None:
    two = family("name == 'a' and sys.exit(9); hear()", "a", "b", policy=RestartPolicy(5, MINUTE, SLOW))
    gone = two.exists("a-1", "b-1")
    assert two.run(Order.STOP, once=lambda: gone() and ended(two.pid("a-1"))) is ExitCode.OK


def test_a_worker_that_hangs_is_killed_when_all_are_forced(family: MakeFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "FORCE_S", 0.1)
    one = family("time.sleep(3600)", "a")
    assert one.run(Order.STOP, Order.FORCE, once=one.exists("a-1")) is ExitCode.FAILED


def test_a_third_signal_kills_at_once(family: MakeFamily) -> None:
    one = family("time.sleep(3600)", "a")
    assert one.run(Order.STOP, Order.FORCE, Order.FORCE, once=one.exists("a-1")) is ExitCode.FAILED


def test_a_worker_that_hears_nothing_does_not_block_its_parent(family: MakeFamily) -> None:
    one = family("time.sleep(3600)", "a")
    dumps = [Order.DUMP] * 70_000  # more than a pipe holds
    assert one.run(*dumps, Order.STOP, Order.FORCE, Order.FORCE, once=one.exists("a-1")) is ExitCode.FAILED


def test_a_program_that_cannot_be_started_spends_the_budget(family: MakeFamily) -> None:
    one = family("", "a", policy=RestartPolicy(2, MINUTE, QUICK))
    one.parent._command = ("/nowhere/python",)
    assert one.run() is ExitCode.BUDGET


def test_an_error_in_the_parent_lets_the_workers_drain(
    family: MakeFamily, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = family("(folder / f'said-{hear()}').touch()", "a")

    def broken(event: object) -> None:
        eventually(one.exists("a-1"), "the worker runs")
        raise ZeroDivisionError

    monkeypatch.setattr(one.parent, "_take", broken)
    with pytest.raises(ZeroDivisionError):
        one.run(Order.DUMP, once=lambda: True)
    eventually((tmp_path / "said-b''").exists, "the worker sees the end of its lifeline")
    os.waitpid(one.pid("a-1"), 0)
    one.parent._children[0].process.returncode = 0  # type: ignore[union-attr]


@needs_proc
def test_restarts_leave_no_file_open_and_no_signal_handler(family: MakeFamily) -> None:
    def left() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    def five_starts(name: str) -> None:
        one = family("start < 5 and sys.exit(7); hear()", name)
        assert one.run(Order.STOP, once=one.exists(f"{name}-5")) is ExitCode.OK

    handler = signal.getsignal(signal.SIGCHLD)
    five_starts("a")
    before = left()
    five_starts("b")
    eventually(lambda: left() <= before, "nothing is left")
    assert signal.getsignal(signal.SIGCHLD) == handler
