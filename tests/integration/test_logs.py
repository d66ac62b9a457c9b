"""The log of a process and of a system in a program: formats, whose lines they are, and what is never in them."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
import structlog

from greenroom import ActorSystem, Client, EventKind
from greenroom.cli import execute
from greenroom.protocol.server import RedisServer
from integration.agents import WAIT_S, Director, eventually, wait_event
from integration.command import SOURCES, Process
from integration.conftest import Running

from started import Started

SECRET = "hunter2-in-the-message"
PASSWORD = "pw-alpha/pw-beta#pw-gamma"
NO_TIME = timedelta(0)

APP = '''
import asyncio, logging, os, threading
from greenroom import Agent, Backoff

AT_ONCE = Backoff(first=Backoff().first * 0, most=Backoff().first * 0)

class Fails(Agent):
    """Whatever it is told is in the words of its errors."""

    max_attempts = 2
    retry = AT_ONCE

    async def respond(self, message, cycle):
        if message.body.startswith("wait"):
            await cycle.send("begun")
            await asyncio.Event().wait()
        if message.body.startswith("group"):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.fail(message.body))
        if message.body.startswith("exit"):
            raise SystemExit(message.body)
        if message.body.startswith("ok"):
            logging.getLogger("app").warning("the app's own line")
            return message.body
        await self.fail(message.body)

    async def fail(self, body):
        try:
            {}[body]
        except KeyError:
            raise ValueError(f"no {body}")

    async def on_interrupt(self, interruption, state):
        raise ValueError(interruption.message.body)

class InThread(Agent):
    max_attempts = 1

    def respond(self, message, cycle):
        raise ValueError(message.body)

class Isolated(Fails):
    isolation = "process"

    async def respond(self, message, cycle):
        if message.body.startswith("die"):
            os._exit(3)
        return await super().respond(message, cycle)
'''

Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path, agent: str) -> Iterator[Start]:
    """Starts ``greenroom run app:Fails``, without the tests' choice of a log format."""
    (tmp_path / "app.py").write_text(APP)
    started: list[Process] = []

    def start(*arguments: str, app: str = "app:Fails", **environment: str) -> Process:
        words = (app, "--agent", agent, *arguments)
        started.append(Process(tmp_path, *words, environment={"GREENROOM_LOG_FORMAT": "", **environment}))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def rows(process: Process) -> list[dict[str, Any]]:
    """The records that a process has written; all that it has written are such."""
    return [json.loads(line) for line in process.output.splitlines()]


def of_event(found: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [row for row in found if row["event"] == event]


# Formats. ---------------------------------------------------------------------------------------------


def test_a_program_gets_json_by_default(start: Start, redis_url: str, client: Client) -> None:
    process = start("--redis", redis_url, "--name", "w1")
    assert client.ask("42", "ok") == "ok"
    message = client.send("43", "fail")
    process.wait_line('"attempt": 2')
    assert process.stop() == 0
    found = rows(process)
    assert [row["event"] for row in found] == [
        "worker.started",
        "the app's own line",
        "cycle.failed",
        "cycle.failed",
        "process.stopping",
        "worker.stopped",
    ]
    for row in found:
        assert list(row)[:3] == ["timestamp", "level", "event"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", row["timestamp"])
        if row.get("logger") != "app":
            assert (row["agent"], row["worker"]) == (client.agent, "w1")
    for attempt, row in enumerate(of_event(found, "cycle.failed"), start=1):
        assert (row["room"], row["message"], row["attempt"], row["error"]) == ("43", message, attempt, "ValueError")
        assert row["ticket"] > message


@pytest.mark.parametrize("choice", ["option", "environment"])
def test_the_format_is_a_choice(choice: str, start: Start, redis_url: str) -> None:
    words, environment = [], {}
    if choice == "option":
        words = ["--log-format", "logfmt"]
    else:
        environment = {"GREENROOM_LOG_FORMAT": "logfmt"}
    process = start("--redis", redis_url, "--name", "w1", *words, **environment)
    assert re.match(r"timestamp=\S+Z level=info event=worker\.started agent=\S+ worker=w1 ", process.wait_line())
    assert process.stop() == 0


def test_what_is_no_format_is_exit_code_2(start: Start, redis_url: str) -> None:
    process = start("--redis", redis_url, "--log-format", "xml")
    assert process.exit_code() == 2
    assert "--log-format" in process.output


@pytest.mark.parametrize(("environment", "colours"), [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)])
def test_a_terminal_gets_the_console_format(
    environment: dict[str, str], colours: bool, redis_url: str, agent: str, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP)
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    leader, follower = pty.openpty()
    process = Started(
        [sys.executable, "-P", "-m", "greenroom", "run", "app:Fails", "--agent", agent, "--redis", redis_url],
        cwd=tmp_path,
        env={**inherited, "PYTHONPATH": SOURCES, **environment},
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    said = b""
    while b"\n" not in said:
        said += os.read(leader, 65536)
    process.send_signal(signal.SIGTERM)
    try:
        while more := os.read(leader, 65536):
            said += more
    except OSError:  # the terminal's other end is closed
        pass
    assert process.wait(WAIT_S) == 0
    os.close(leader)
    assert b"worker.started" in said
    assert (b"\x1b[" in said) is colours
    assert b'"event"' not in said


def test_the_records_of_several_workers_are_whole_and_say_whose_they_are(start: Start, redis_url: str, client: Client) -> None:
    process = start("--redis", redis_url, "--name", "w", "--processes", "2")
    process.wait_count("worker.started", 2)
    for number in range(10):
        client.send(f"room-{number}", "fail")
    process.wait_count("cycle.failed", 20)
    assert process.stop() == 0
    found = rows(process)
    assert all(row["agent"] == client.agent for row in found)
    assert {row["worker"] for row in of_event(found, "cycle.failed")} <= {"w-1", "w-2"}
    assert {row["worker"] for row in of_event(found, "worker.started")} == {"w-1", "w-2"}
    assert [row.get("worker") for row in of_event(found, "process.stopping") if "workers" in row] == [None]


# What is never in them. -------------------------------------------------------------------------------


def provoke(client: Client, process: Process, redis: redis_py.Redis) -> None:
    """Have the agent raise errors with the secret in them, in each way."""
    for word in ("fail", "group", "exit"):
        client.send(word, f"{word} {SECRET}")
        process.wait_count(word if word != "fail" else '"room": "fail"', 2)
    client.send("hook", f"wait {SECRET}")
    eventually(lambda: any(output.body == "begun" for output in client.outputs("hook")), "it waits")
    client.interrupt("hook")
    wait_event(redis, client.agent, "cycle.interrupted")
    process.wait_line("hook.failed")


def test_what_a_message_says_is_not_in_the_log_of_the_errors_it_leads_to(
    start: Start, redis_url: str, client: Client, redis: redis_py.Redis
) -> None:
    process = start("--redis", redis_url)
    provoke(client, process, redis)
    assert process.stop() == 0
    assert SECRET not in process.output
    found = rows(process)
    assert {row["error"] for row in of_event(found, "cycle.failed")} == {"ValueError", "ExceptionGroup", "SystemExit"}
    [hook] = of_event(found, "hook.failed")
    assert (hook["room"], hook["hook"], hook["attempt"]) == ("hook", "on_interrupt", 1)
    assert {"message", "ticket", "cid"} <= set(hook)
    assert "app.py:" in hook["stack"]
    assert any(SECRET in letter.error for letter in client.dead_letters()), "Redis has it for who may see it"


def test_a_room_that_is_stopped_for_its_failures_says_what_of_in_redis_and_not_in_the_log(
    start: Start, redis_url: str, client: Client
) -> None:
    process = start("--redis", redis_url, app="app:InThread")
    for _ in range(21):
        client.send("42", SECRET)
    stopped = json.loads(process.wait_line("room.stopped"))
    hold = eventually(lambda: client.status("42").hold, "it is stopped")
    assert SECRET in hold.reason
    assert stopped["cid"] == hold.cid
    assert process.stop() == 0
    assert SECRET not in process.output
    assert {row["worker"] for row in of_event(rows(process), "cycle.failed")} == {stopped["worker"]}


def test_who_asks_for_debug_is_shown_it(start: Start, redis_url: str, client: Client) -> None:
    process = start("--redis", redis_url, "--log-level", "debug")
    client.send("42", f"fail {SECRET}")
    row = json.loads(process.wait_line("cycle.failed"))
    assert f"ValueError: no fail {SECRET}" in row["exception"]
    assert process.stop() == 0


@pytest.mark.parametrize("level", ["info", "debug"])
def test_what_is_logged_in_a_child_process_is_logged_by_its_worker(
    level: str, start: Start, redis_url: str, client: Client
) -> None:
    process = start("--redis", redis_url, "--name", "w1", "--log-level", level, app="app:Isolated")
    message = client.send("42", f"fail {SECRET}")
    process.wait_count("cycle.failed", 2)
    client.send("43", "die")
    process.wait_count("cycle.failed", 4)
    assert process.stop() == 0
    found = of_event(rows(process), "cycle.failed")
    assert all((row["agent"], row["worker"]) == (client.agent, "w1") for row in found)
    for attempt, row in enumerate(found[:2], start=1):
        assert (row["room"], row["message"], row["attempt"]) == ("42", message, attempt)
        assert (row["error"], row["level"]) == ("ValueError", "warning")
        assert "app.py" in row["stack" if level == "info" else "exception"]
    assert [(row["room"], row["attempt"], row["error"]) for row in found[2:]] == [
        ("43", attempt, "its process ended with exit code 3") for attempt in (1, 2)
    ]
    assert (SECRET in process.output) is (level == "debug")


# The password. ----------------------------------------------------------------------------------------


@pytest.fixture
def locked(redis_dir: Path) -> Iterator[RedisServer]:
    """A server with a password."""
    with RedisServer(redis_dir) as server, redis_py.Redis.from_url(server.url) as admin:
        admin.config_set("requirepass", PASSWORD)
        yield server


@pytest.mark.parametrize("escaped", [True, False])
@pytest.mark.parametrize("processes", [[], ["--processes", "2"]])
def test_a_password_in_the_variable_is_nowhere_to_be_seen(
    escaped: bool, processes: list[str], start: Start, locked: RedisServer, agent: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not in the log, errors, dumps or process list, and neither is one that should have been escaped in the URL."""
    shown = PASSWORD.replace("/", "%2F").replace("#", "%23") if escaped else PASSWORD
    url = f"redis://:{shown}@127.0.0.1:{locked.port}"
    process = start("--log-level", "debug", "--name", "w", *processes, GREENROOM_REDIS_URL=url)
    if escaped:
        count = 2 if processes else 1
        process.wait_count("worker.started", count)
        if sys.platform == "linux":
            assert len(command_lines(process.pid)) == (3 if processes else 1)
            assert not any(part in words for words in command_lines(process.pid) for part in parts(PASSWORD, shown))
        process.signal(signal.SIGUSR1)
        process.wait_count("end of the dump", count)
        with redis_py.Redis(port=locked.port, password=PASSWORD) as admin:
            admin.config_set("requirepass", f"{PASSWORD}2")
            admin.client_kill_filter(_type="normal", skipme=True)
        process.wait_line("redis.lost" if processes else "lost")
        process.signal(signal.SIGTERM)
        process.exit_code()
    else:
        assert process.exit_code() == 2
    for arguments in (["status"], ["send", "42", "hello"], ["tail", "42"]):
        assert execute([*arguments, "--agent", agent, "--redis", url]) in (2, 3)
    said = process.output + "".join(capfd.readouterr())
    assert not any(part in said for part in parts(PASSWORD, shown))


def parts(*passwords: str) -> set[str]:
    return {part for password in passwords for part in re.split(r"[/#]|%2F|%23", password)} | set(passwords)


def command_lines(pid: int) -> list[str]:
    """Those of a process and of its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    own = Path(f"/proc/{pid}/cmdline").read_text()
    return [own, *(line for child in children for line in command_lines(int(child)))]


def test_a_password_on_the_command_line_is_warned_of(start: Start, locked: RedisServer) -> None:
    escaped = PASSWORD.replace("/", "%2F").replace("#", "%23")
    process = start("--redis", f"redis://:{escaped}@127.0.0.1:{locked.port}")
    warning = json.loads(process.wait_line("process.password_shown"))
    assert (warning["level"], warning["instead"]) == ("warning", "GREENROOM_REDIS_URL")
    assert json.loads(process.wait_line())["redis"] == f"redis://:***@127.0.0.1:{locked.port}"
    assert process.stop() == 0
    assert not any(part in process.output for part in parts(PASSWORD, escaped))


# In a program. ----------------------------------------------------------------------------------------


@pytest.fixture
def written() -> Iterator[Callable[[logging.Formatter], io.StringIO]]:
    """Adds a handler of the host's to the root logger, with this formatter; answers what is written there."""
    root, handlers, level = logging.getLogger(), list[logging.Handler](), logging.getLogger().level

    def add(formatter: logging.Formatter) -> io.StringIO:
        stream = io.StringIO()
        handlers.append(logging.StreamHandler(stream))
        handlers[-1].setFormatter(formatter)
        root.addHandler(handlers[-1])
        root.setLevel(logging.INFO)
        return stream

    yield add
    for handler in handlers:
        root.removeHandler(handler)
    root.setLevel(level)


def test_a_hosts_structlog_writes_the_fields_of_greenroom_as_json(
    running: Running, director: Director, client: Client, written: Callable[[logging.Formatter], io.StringIO]
) -> None:
    stream = written(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), structlog.stdlib.add_log_level],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(default=str),
            ],
        )
    )
    system = running(director.agent(max_attempts=1), name="w1")
    client.send("42", "fail")
    eventually(lambda: "cycle.failed" in stream.getvalue(), "it is logged")
    system.stop(NO_TIME)
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {"worker.started", "cycle.failed", "worker.stopped"} <= {row["greenroom"]["event"] for row in found}
    for row in found:
        assert (row["greenroom"]["agent"], row["greenroom"]["worker"]) == (client.agent, "w1")
        assert row["level"] in ("info", "warning")


def test_a_hosts_plain_handler_gets_lines_and_greenroom_adds_and_configures_nothing(
    running: Running, director: Director, client: Client, written: Callable[[logging.Formatter], io.StringIO]
) -> None:
    stream = written(logging.Formatter("%(levelname)s %(message)s"))
    before = {name: list(logging.getLogger(name).handlers) for name in ("", "greenroom")}
    system = running(director.agent(), name="w1")
    client.ask("42", "hello")
    system.stop(NO_TIME)
    assert {name: list(logging.getLogger(name).handlers) for name in before} == before
    assert logging.getLogger("greenroom").propagate
    assert logging.getLogger("greenroom").level == logging.NOTSET
    assert not structlog.is_configured()
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith(f"INFO event=worker.started agent={client.agent} worker=w1 incarnation=")
    assert lines[-1] == f"INFO event=worker.stopped agent={client.agent} worker=w1"


def test_the_hosts_level_counts(
    running: Running, director: Director, written: Callable[[logging.Formatter], io.StringIO]
) -> None:
    stream = written(logging.Formatter("%(message)s"))
    logger = logging.getLogger("greenroom")
    logger.setLevel(logging.ERROR)
    try:
        running(director.agent()).stop(NO_TIME)
    finally:
        logger.setLevel(logging.NOTSET)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("threaded", [False, True])
def test_systems_of_one_program_each_have_their_names_in_their_lines(
    threaded: bool, director: Director, redis_url: str, agent: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in those that come from the threads of plain functions and of listeners, or of the host."""
    kind = director.agent(threaded=threaded, max_attempts=1)
    caplog.set_level(logging.INFO)
    systems = [ActorSystem(kind, agent=f"{agent}-{name}", redis=redis_url, name=name) for name in ("w1", "w2")]
    for system in systems:
        system.on(EventKind.MESSAGE_DEAD, hostile)
        with system, Client(f"{agent}-{system.name}", redis=redis_url) as client:
            client.send("42", "fail")
            eventually(lambda: "event=listener.failed" in caplog.text.split("worker.started")[-1], "both are logged")
    found: list[dict[str, Any]] = [record.greenroom for record in caplog.records if record.name == "greenroom"]  # type: ignore[attr-defined]
    assert {row["event"] for row in found} >= {"worker.started", "cycle.failed", "listener.failed", "worker.stopped"}
    assert all(row["agent"] == f"{agent}-{row['worker']}" for row in found)
    for event in ("worker.started", "cycle.failed", "listener.failed", "worker.stopped"):
        assert [row["worker"] for row in of_event(found, event)] == ["w1", "w2"]
    assert all(row["room"] == "42" for row in of_event(found, "listener.failed"))


def hostile(event: object) -> None:
    raise RuntimeError(str(event))
