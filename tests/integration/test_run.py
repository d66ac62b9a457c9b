"""``greenroom run``: the supervisor process, its signals, and its exit codes."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
import redis as redis_py

from greenroom import Client, Kind
from greenroom.cli import execute
from greenroom.protocol.keys import Keys
from greenroom.protocol.server import RedisServer
from integration.agents import eventually, wait_event, wait_output
from integration.command import WAIT_S, Process, begun, embedded_url

APP = '''
import asyncio, threading
from greenroom import Agent, Backoff

NEVER = threading.Event()

class Echo(Agent):
    """Its handler ends when it is told to."""

    async def respond(self, message, cycle):
        if message.body == "wait":
            await cycle.send("begun")
            await asyncio.Event().wait()
        return message.body

class Hostile(Agent):
    """Its handlers never end, whatever they are told."""

    abort_timeout = Backoff().first * 0

class Swallows(Hostile):
    async def respond(self, message, cycle):
        await cycle.send("begun")
        while True:
            try:
                await asyncio.Event().wait()
            except BaseException:
                pass

class Blocks(Hostile):
    async def respond(self, message, cycle):
        await cycle.send("begun")
        NEVER.wait()

class InExecutor(Hostile):
    async def respond(self, message, cycle):
        await cycle.send("begun")
        await asyncio.to_thread(NEVER.wait)

class InThread(Hostile):
    def respond(self, message, cycle):
        cycle.send("begun")
        NEVER.wait()

class StartsThread(Hostile):
    async def respond(self, message, cycle):
        threading.Thread(target=NEVER.wait).start()
        await cycle.send("begun")
        await asyncio.Event().wait()

class Outer:
    class Inner(Echo):
        pass

class BadOption(Echo):
    max_attempts = 0

class NoRespond(Agent):
    pass

class NoCycle(Agent):
    def respond(self, message):
        return message.body

class FailsToStart(Echo):
    def __init__(self):
        raise RuntimeError("no model")

class SaysThatItStarts(Echo):
    def __init__(self):
        print("starting", flush=True)

class NeverStarts(SaysThatItStarts):
    def __init__(self):
        super().__init__()
        NEVER.wait()

thing = {"not": "an agent"}
'''


class Starting(Protocol):
    def __call__(self, app: str, *arguments: str, **environment: str) -> Process: ...


@pytest.fixture
def starting(tmp_path: Path, agent: str) -> Iterator[Starting]:
    """Starts ``greenroom run APP --agent …`` in a folder with app.py; none of them outlives the test."""
    (tmp_path / "app.py").write_text(APP)
    started: list[Process] = []

    def start(app: str, *arguments: str, **environment: str) -> Process:
        started.append(Process(tmp_path, app, "--agent", agent, *arguments, environment=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def run(starting: Starting, redis_url: str) -> Callable[..., Process]:
    """As ``starting``, on the run's Redis, and ready."""

    def start(app: str, *arguments: str) -> Process:
        process = starting(app, "--redis", redis_url, *arguments)
        process.wait_line()
        return process

    return start


# It works, and ends. --------------------------------------------------------------------------------


@pytest.mark.parametrize("app", ["app:Echo", "app:Outer.Inner", "app.py:Echo", "./app.py:Outer.Inner"])
def test_it_works_for_the_agent_that_a_module_or_a_file_has(app: str, run: Callable[..., Process], client: Client) -> None:
    process = run(app)
    assert client.ask("42", "hello") == "hello"
    assert process.stop() == 0


def test_redis_and_agent_may_stand_in_the_environment(starting: Starting, redis_url: str, client: Client) -> None:
    process = starting("app:Echo", "--name", "w1", GREENROOM_REDIS_URL=redis_url)
    assert "worker=w1" in process.wait_line()
    assert client.overview().workers == ("w1",)
    assert process.stop() == 0


def test_the_log_level_is_a_choice(starting: Starting, redis_url: str, client: Client) -> None:
    process = starting("app:Echo", "--redis", redis_url, "--log-level", "error")
    assert client.ask("42", "hello", timeout=WAIT_S) == "hello"
    assert process.stop() == 0
    assert process.output == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains_and_what_did_not_finish_is_given_back_with_its_attempt(
    number: signal.Signals, run: Callable[..., Process], client: Client
) -> None:
    process = run("app:Echo", "--grace", "0")
    message = client.send("42", "wait")
    begun(client, "42")
    assert (client.status("42").processing, client.status("42").attempt) == (message, 1)
    process.signal(number)
    assert process.exit_code() == 0
    status = client.status("42")
    assert (status.phase, status.waiting, status.attempt, status.owner) == ("queued", 1, 0, None)
    assert "Traceback" not in process.output


def test_a_cycle_may_finish_within_the_grace(starting: Starting, redis_url: str, client: Client, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import asyncio, pathlib\n"
        "from greenroom import Agent\n"
        "class Slow(Agent):\n"
        "    async def respond(self, message, cycle):\n"
        "        await cycle.send('begun')\n"
        "        while not pathlib.Path('go').exists():\n"
        "            await asyncio.sleep(0.01)\n"
        "        return 'done'\n"
    )
    process = starting("slow:Slow", "--redis", redis_url)
    client.send("42", "hello")
    begun(client, "42")
    process.signal(signal.SIGTERM)
    process.wait_line("process.stopping")
    (tmp_path / "go").touch()
    assert process.exit_code() == 0
    assert [output.body for output in client.outputs("42") if output.kind is Kind.REPLY] == ["done"]


@pytest.mark.parametrize("name", ["Swallows", "Blocks", "InExecutor", "InThread", "StartsThread"])
def test_hostile_handlers_do_not_hold_up_the_end(name: str, run: Callable[..., Process], client: Client) -> None:
    process = run(f"app:{name}", "--grace", "0")
    client.send("42", "hello")
    begun(client, "42")
    assert process.stop() == 0
    status = client.status("42")
    assert (status.phase, status.waiting, status.attempt, status.owner) == ("queued", 1, 0, None)


def test_a_second_signal_forces_the_end(run: Callable[..., Process], client: Client) -> None:
    process = run("app:Echo", "--grace", "3600")
    client.send("42", "wait")
    begun(client, "42")
    process.signal(signal.SIGTERM)
    process.wait_line("process.stopping")
    process.signal(signal.SIGINT)
    assert process.exit_code() == 1
    assert "greenroom: forced to end by a second signal" in process.output


def test_a_second_signal_ends_a_start_that_hangs(starting: Starting, redis_url: str) -> None:
    process = starting("app:NeverStarts", "--redis", redis_url)
    process.wait_line("starting")
    process.signal(signal.SIGTERM)
    process.signal(signal.SIGINT)
    assert process.exit_code() == 1


def test_a_newer_worker_of_the_same_name_ends_the_older_one(
    run: Callable[..., Process], client: Client, redis: redis_py.Redis
) -> None:
    older = run("app:Echo", "--name", "twin")
    client.send("42", "wait")
    begun(client, "42")
    newer = run("app:Echo", "--name", "twin")
    assert older.exit_code() == 4, older.output
    assert "greenroom: a newer worker named twin has taken over" in older.output
    assert client.ask("43", "hello") == "hello"
    client.interrupt("42")
    wait_event(redis, client.agent, "signal.applied", mode="interrupt")
    assert newer.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_app_is_imported_ends_it_at_once(
    number: signal.Signals, starting: Starting, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text("import threading\nprint('importing', flush=True)\nthreading.Event().wait()\n")
    process = starting("slow:Echo", "--redis", redis_url)
    process.wait_line("importing")
    process.signal(number)
    assert process.exit_code() == 0
    assert process.output == "importing\n"


def test_a_signal_that_an_import_swallows_is_not_forgotten(starting: Starting, redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "swallows.py").write_text(
        "import threading\nfrom app import Echo\n"
        "try:\n    print('importing', flush=True)\n    threading.Event().wait()\nexcept BaseException:\n    pass\n"
    )
    process = starting("swallows:Echo", "--redis", redis_url)
    process.wait_line("importing")
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 0
    assert "worker.stopped" in process.output


def test_a_dump_shows_what_a_worker_does_without_disturbing_it(run: Callable[..., Process], client: Client) -> None:
    process = run("app:Blocks", "--name", "w1")
    message = client.send("42", "hello")
    begun(client, "42")

    def dumped(count: int) -> bool:  # a signal that comes while a dump is being written asks for no other
        process.signal(signal.SIGUSR1)
        return process.output.count("end of the dump of worker w1") >= count

    for count in (1, 2):
        eventually(lambda count=count: dumped(count), f"dump number {count}")  # type: ignore[misc]
    assert re.search(rf"^  42 running for \d+\.\d s ticket \d+ message {message} attempt 1$", process.output, re.MULTILINE)
    assert "NEVER.wait()" in process.output  # what blocks the handlers' loop
    assert "tasks of greenroom-control" in process.output
    assert "thread MainThread" in process.output
    client.stop("42")
    process.wait_line("cycle.detached")
    assert process.stop() == 0


def test_a_dump_shows_what_an_import_hangs_in(starting: Starting, redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import threading\nprint('importing', flush=True)\nthreading.Event().wait()\n")
    process = starting("slow:Echo", "--redis", redis_url)
    process.wait_line("importing")
    process.signal(signal.SIGUSR1)
    process.wait_line('slow.py", line ')
    assert process.stop() == 0


def test_a_signal_that_another_thread_is_handed_is_heard(starting: Starting, redis_url: str, tmp_path: Path) -> None:
    """The kernel hands it to the main thread only if that one has no other to handle at that instant."""
    (tmp_path / "masked.py").write_text(
        "import signal, threading\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "from app import Echo\n"
    )
    process = starting("masked:Echo", "--redis", redis_url)
    process.wait_line()
    assert process.stop() == 0


def test_forks_of_the_agents_code_end_by_their_own_signals(
    starting: Starting, redis_url: str, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "forks.py").write_text(
        "import os, signal, threading\n"
        "from greenroom import Agent\n"
        "def fork():\n"
        "    pid = os.fork()\n"  # while no other thread runs: with threads, forks may hang by themselves
        "    while pid == 0:\n"
        "        threading.Event().wait(0.01)\n"
        "    return pid\n"
        "PIDS = {'SIGTERM': fork(), 'SIGUSR1': fork()}\n"
        "class Forks(Agent):\n"
        "    async def respond(self, message, cycle):\n"
        "        os.kill(PIDS[message.body], getattr(signal, message.body))\n"
        "        return os.waitstatus_to_exitcode(os.waitpid(PIDS[message.body], 0)[1])\n"
    )
    process = starting("forks:Forks", "--redis", redis_url)
    assert client.ask("42", "SIGTERM", timeout=WAIT_S) == -signal.SIGTERM
    assert client.ask("42", "SIGUSR1") == -signal.SIGUSR1
    assert process.stop() == 0


def test_the_lease_and_the_recovery_rate_are_choices(
    starting: Starting, redis_url: str, redis: redis_py.Redis, agent: str
) -> None:
    process = starting("app:Echo", "--redis", redis_url, "--name", "w1", "--lease", "600", "--recovery-rate", "0.5")
    process.wait_line()
    assert redis.ttl(f"{Keys(agent).root}:worker:w1") > 60
    assert process.stop() == 0


@pytest.mark.parametrize("more", [(), ("--processes", "1")], ids=["one", "several"])
def test_how_much_is_kept_is_a_choice(
    more: tuple[str, ...], starting: Starting, redis_url: str, redis: redis_py.Redis, agent: str
) -> None:
    process = starting("app:Echo", "--redis", redis_url, "--keep", "events=77", "--keep", "idle-rooms=30d", *more)
    process.wait_line()
    fields = ("keep_events", "keep_idle_rooms_s", "keep_dead")
    eventually(lambda: redis.hmget(Keys(agent).root, *fields) == ["77", "2592000", "100000"], "the worker has said so")
    assert process.stop() == 0


def test_the_agents_atexit_functions_run(run: Callable[..., Process], tmp_path: Path) -> None:
    (tmp_path / "polite.py").write_text("import atexit\nfrom app import Echo\natexit.register(print, 'at exit')\n")
    process = run("polite:Echo")
    assert process.stop() == 0
    assert process.output.splitlines()[-1] == "at exit"


# The embedded server. -------------------------------------------------------------------------------


def test_an_embedded_server_is_started_shared_and_ended_by_who_started_it(
    starting: Starting, agent: str, redis_dir: Path
) -> None:
    first = starting("app:Echo", "--embedded", str(redis_dir), "--name", "w1")
    first.wait_line()
    second = starting("app:Echo", "--embedded", str(redis_dir), "--name", "w2")
    second.wait_line()
    assert embedded_url(first) == embedded_url(second)
    assert second.stop() == 0
    with Client(agent, redis=embedded_url(first)) as client:
        assert client.ask("42", "hello") == "hello"
        assert client.overview().workers == ("w1",)
    assert first.stop() == 0
    assert execute(["status", "--agent", agent, "--embedded", str(redis_dir)]) == 3


def test_an_embedded_server_outlives_a_killed_worker_and_is_found_again(
    starting: Starting, agent: str, redis_dir: Path
) -> None:
    first = starting("app:Echo", "--embedded", str(redis_dir))
    first.wait_line()
    first.kill()
    found = RedisServer(redis_dir)
    assert found.find()
    try:
        assert execute(["send", "42", "hello", "--agent", agent, "--embedded", str(redis_dir)]) == 0
        second = starting("app:Echo", "--embedded", str(redis_dir))
        assert embedded_url(second) == found.url
        with Client(agent, redis=found.url) as client:
            wait_output(client, "42", lambda output: output.kind is Kind.REPLY)
        assert second.stop() == 0
        assert RedisServer(redis_dir).find()
    finally:
        os.kill(found.pid, signal.SIGKILL)


def test_an_embedded_server_that_dies_is_started_again_and_work_goes_on(
    starting: Starting, agent: str, redis_dir: Path
) -> None:
    process = starting("app:Echo", "--embedded", str(redis_dir))
    process.wait_line()
    with redis_py.Redis.from_url(embedded_url(process)) as plain:
        os.kill(plain.info("server")["process_id"], signal.SIGKILL)
    process.wait_line("started again")
    with Client(agent, redis=embedded_url(process)) as client:
        assert client.ask("42", "hello") == "hello"
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 0


def test_a_forced_end_does_not_leave_the_embedded_server_behind(starting: Starting, agent: str, redis_dir: Path) -> None:
    process = starting("app:Echo", "--embedded", str(redis_dir), "--grace", "3600")
    process.wait_line()
    with Client(agent, redis=embedded_url(process)) as client:
        client.send("42", "wait")
        begun(client, "42")
    process.signal(signal.SIGINT)
    process.wait_line("process.stopping")
    process.signal(signal.SIGINT)
    assert process.exit_code() == 1
    assert not RedisServer(redis_dir).find()


# It refuses to start. -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("app", "words"),
    [
        ("app", "'app': want module:Class or path/to/file.py:Class"),
        ("app:", "want module:Class"),
        (":Echo", "want module:Class"),
        ("./app:Echo", "want module:Class"),
        (".app:Echo", "want module:Class"),
        ("app:Echo()", "want module:Class"),
        ("nowhere:Echo", "no module named nowhere"),
        ("nowhere.deeper:Echo", "no module named nowhere"),
        ("app.deeper:Echo", "no module named app.deeper"),
        ("nowhere.py:Echo", "no file nowhere.py"),
        ("app:Nothing", "app has no Nothing"),
        ("app:Outer.Nothing", "app has no Outer.Nothing"),
        ("app:thing", "app:thing is of type dict: want a subclass of greenroom.Agent"),
        ("app:Outer", "is no subclass of greenroom.Agent"),
        ("app:NoRespond", "NoRespond has no respond method"),
        ("app:BadOption", "BadOption.max_attempts: want a whole number"),
        ("app:NoCycle", "NoCycle.respond: want respond(self, message, cycle): too many positional arguments"),
    ],
)
def test_an_app_that_is_none_is_one_line_and_exit_code_2(app: str, words: str, starting: Starting, redis_url: str) -> None:
    process = starting(app, "--redis", redis_url)
    assert process.exit_code() == 2
    assert process.output.startswith("greenroom: ")
    assert process.output.count("\n") == 1
    assert words in process.output


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        ("x = 1\nraise ValueError('one\\ntwo')", 2, "ValueError: one two"),
        ("import nowhere", 1, "ModuleNotFoundError: No module named 'nowhere'"),
        ("\n\ndef broken(:\n", 3, "SyntaxError"),
        ("import sys\nsys.exit('enough')", 2, "SystemExit: enough"),
        ("open('nowhere.txt')", 1, "FileNotFoundError"),
        ("def f():\n    1 / 0\n\nf()", 4, "ZeroDivisionError: division by zero"),
        ("import inner", 1, "RuntimeError: deep"),
    ],
)
@pytest.mark.parametrize("app", ["broken:Echo", "broken.py:Echo"])
def test_an_app_that_raises_is_one_line_with_its_place_and_then_its_traceback(
    app: str, source: str, line: int, words: str, starting: Starting, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(source)
    (tmp_path / "inner.py").write_text("raise RuntimeError('deep')")
    place = tmp_path / ("inner.py" if "inner" in source else "broken.py")
    process = starting(app, "--redis", redis_url)
    assert process.exit_code() == 2
    first, *rest = process.output.splitlines()
    assert first.startswith(f"greenroom: {place}:{line}: {words}")
    assert first.endswith(f"(while importing {app.partition(':')[0]})")
    assert "broken.py" in "".join(rest)
    assert "app_path.py" not in process.output
    assert "importlib" not in process.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--bogus"], "No such option"),
        (["--name", "no name"], "worker name 'no name': white space"),
        (["--max-rooms", "0"], "--max-rooms"),
        (["--grace", "-1"], "--grace"),
        (["--grace", "1e300"], "--grace"),
        (["--log-level", "loud"], "--log-level"),
        (["--redis", "nonsense"], "not a Redis URL"),
        (["--embedded", "dir"], "not both"),
        (["--agent", "a{b}"], "braces"),
        (["--keep", "events"], "--keep events: want"),
        (["--keep", "colour=1"], "idle_rooms"),
        (["--processes", "2", "--keep", "receipts=1s"], "--keep receipts: want"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], words: str, starting: Starting, redis_url: str) -> None:
    process = starting("app:Echo", "--redis", redis_url, *arguments)
    assert process.exit_code() == 2
    assert process.output.startswith("greenroom: ")
    assert process.output.count("\n") == 1
    assert words in process.output


def test_an_embedded_directory_that_cannot_be_one_is_exit_code_2(starting: Starting) -> None:
    process = starting("app:Echo", "--embedded", "app.py")
    assert process.exit_code() == 2
    assert "app.py: File exists" in process.output
    assert process.output.count("\n") == 1


def test_an_embedded_server_that_cannot_be_started_is_exit_code_3(starting: Starting, redis_dir: Path) -> None:
    process = starting("app:Echo", "--embedded", str(redis_dir), GREENROOM_REDIS_SERVER="/nowhere/redis-server")
    assert process.exit_code() == 3
    assert process.output.startswith("greenroom: /nowhere/redis-server")


def test_a_redis_that_cannot_be_reached_is_exit_code_3(starting: Starting) -> None:
    process = starting("app:Echo", "--redis", "redis://ann:secret@127.0.0.1:1")
    assert process.exit_code() == 3
    assert "greenroom: Redis cannot be reached" in process.output
    assert "secret" not in process.output
    assert "Traceback" not in process.output


def test_a_wrong_password_is_exit_code_3_and_is_not_shown(starting: Starting, redis_dir: Path) -> None:
    with RedisServer(redis_dir) as server, redis_py.Redis.from_url(server.url) as admin:
        admin.config_set("requirepass", "right")
        process = starting("app:Echo", "--redis", f"redis://:wrong-secret@127.0.0.1:{server.port}")
        assert process.exit_code() == 3
        assert "greenroom: Redis refuses access" in process.output
        assert "wrong-secret" not in process.output
        with_password = starting("app:Echo", "--redis", f"redis://:right@127.0.0.1:{server.port}")
        assert ":***@127.0.0.1" in with_password.wait_line()
        assert with_password.stop() == 0
        assert "right" not in with_password.output


def test_a_redis_that_may_drop_keys_is_exit_code_3(starting: Starting, redis_dir: Path) -> None:
    with RedisServer(redis_dir, extra=["--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru"]) as server:
        process = starting("app:Echo", "--redis", server.url)
        assert process.exit_code() == 3
        assert "maxmemory-policy allkeys-lru" in process.output


def test_an_agent_that_cannot_be_made_is_exit_code_1_and_shows_why(starting: Starting, redis_url: str) -> None:
    process = starting("app:FailsToStart", "--redis", redis_url)
    assert process.exit_code() == 1
    assert process.output.splitlines()[-1] == "greenroom: RuntimeError: no model"
    assert "Traceback" in process.output


def test_a_signal_while_it_starts_ends_it_in_good_order(starting: Starting, redis_dir: Path, agent: str) -> None:
    with RedisServer(redis_dir) as server:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            process = starting("app:SaysThatItStarts", "--redis", server.url)
            process.wait_line("starting")
            process.signal(signal.SIGTERM)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert process.exit_code() == 0
        assert "worker.stopped" in process.output
        with Client(agent, redis=server.url) as client:
            assert client.overview().workers == ()
