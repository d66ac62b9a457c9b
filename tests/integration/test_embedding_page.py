"""docs/embedding.md: its programs, each run as printed in a process of its own, and its tables."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pykka
import pytest

from greenroom import ActorSystem, Agent, BudgetSpent, Client, GreenroomError
from integration.agents import Director, eventually, wait_for
from integration.command import SOURCES, WAIT_S
from integration.conftest import Running
from pages import block, blocks, rows

from helpers import unique
from started import Started

PAGE = "docs/embedding.md"
THE_AGENT, THE_WAITING, THE_SERVER = (
    "# support.py",
    "import signal",
    "from greenroom import ActorSystem, AsyncClient, GreenroomError",
)

# Each of the other programs, by what only it says, and what it prints.
PRINTED = {
    'name="plain"': r"You said hello\.\n",
    'AsyncClient("support"': r"You said hello\.\n",
    "class Orders": r"order 4711 is on its way\n",
    "class Chat": r"You said hello\.\nYou said never mind\.\naborted by interrupt\n",
    "multiprocessing": r"You said hello\.\n",
    "class Desk": r"You said hello\.\n",
    "class Billing": r"You said hello\. Bill 7\.\n",
    "class AsJson": r'(?s).*\{"level": "WARNING", "event": "cycle\.failed", "agent": "broken", "worker": "web-1", .*',
    "generate_latest": r'(?s).*\ngreenroom_ready\{agent="support",worker="web-1"\} 1\.0\n.*',
}


def programs() -> list[str]:
    return [each.text for each in blocks(PAGE, "python") if each.first not in (THE_AGENT, THE_WAITING, THE_SERVER)]


@pytest.fixture
def folder(tmp_path: Path, redis_url: str, agent: str) -> Path:
    """A folder with the page's agent, on the test's Redis and under the test's name."""
    (tmp_path / "support.py").write_text(ours(block(PAGE, THE_AGENT), redis_url, agent))
    return tmp_path


def ours(program: str, redis_url: str, agent: str) -> str:
    """The program with its agents under the names of this test."""
    program = program.replace("redis://127.0.0.1:6379", redis_url)
    return re.sub(r'(agent=|Client\()"(\w+)"', rf'\1"{agent}-\2"', program)


def started(folder: Path, program: str, name: str = "program.py") -> subprocess.Popen[str]:
    (folder / name).write_text(program)
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return Started([sys.executable, name], cwd=folder, env=environment, **pipes)


def printed(process: subprocess.Popen[str]) -> str:
    """What a program has printed, which ends well and without a word on stderr that is no record."""
    try:
        out, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return out


def test_each_program_is_known_here() -> None:
    for program in programs():
        assert sum(words in program for words in PRINTED) == 1, program
    assert len(programs()) == len(PRINTED)


@pytest.mark.parametrize("words", PRINTED)
def test_each_program_prints_what_it_should(words: str, folder: Path, redis_url: str, agent: str) -> None:
    [program] = [each for each in programs() if words in each]
    out = printed(started(folder, ours(program, redis_url, agent)))
    assert re.fullmatch(PRINTED[words], out.replace(f"{agent}-", "")), out


def test_a_program_that_waits_ends_by_its_own_signal_and_says_why_it_has_ended_by_itself(
    folder: Path, redis_url: str, agent: str
) -> None:
    program = ours(block(PAGE, THE_WAITING), redis_url, agent)
    process = started(folder, program)
    with Client(f"{agent}-support", redis=redis_url) as client:
        eventually(lambda: [worker for worker in client.workers() if worker.alive], "it has joined")
        process.send_signal(signal.SIGTERM)
        assert printed(process) == ""
        first = started(folder, program)
        eventually(lambda: [worker for worker in client.workers() if worker.alive], "it has joined again")
        second = started(folder, program, "again.py")
        _, err = first.communicate(timeout=WAIT_S)
        assert first.returncode == 1
        assert "Superseded: a newer worker named plain has taken over" in err
        second.send_signal(signal.SIGTERM)
        assert printed(second) == ""


DRIVER = """
import asyncio
import web

async def main():
    inbox, sent, started = asyncio.Queue(), asyncio.Queue(), asyncio.Event()

    async def get(path):
        said = []
        async def send(event):
            said.append(event)
        await web.app({"type": "http", "path": path}, None, send)
        print(said[0]["status"], said[1]["body"].decode())

    await get("/ready")
    await inbox.put({"type": "lifespan.startup"})
    lifespan = asyncio.create_task(web.app({"type": "lifespan"}, inbox.get, sent.put))
    print((await sent.get())["type"])
    await get("/ready")
    await get("/42")
    await inbox.put({"type": "lifespan.shutdown"})
    await lifespan
    print((await sent.get())["type"])
    await get("/ready")
    await get("/42")

asyncio.run(main())
"""


def test_the_web_server_starts_answers_and_stops_it_with_its_lifespan(folder: Path, redis_url: str, agent: str) -> None:
    (folder / "web.py").write_text(ours(block(PAGE, THE_SERVER), redis_url, agent))
    assert printed(started(folder, DRIVER)).splitlines() == [
        "503 ",
        "lifespan.startup.complete",
        "200 ",
        "200 You said hello.",
        "lifespan.shutdown.complete",
        "503 ",
        "503 this client is closed",
    ]


# Tables, and what the text says. ------------------------------------------------------------------------------


def test_the_options_are_those_of_the_signature_in_its_order_with_their_defaults() -> None:
    said = {cells[0].strip("`"): cells[1] for cells in rows(PAGE, "Options")}
    parameters = inspect.signature(ActorSystem).parameters
    assert list(said) == list(parameters)
    assert said.pop("name") == "host and process id"
    for name, text in said.items():
        default = parameters[name].default
        if isinstance(default, timedelta):
            assert text == f"{default.total_seconds():g} s"
        else:
            assert text == (
                ""
                if default is inspect.Parameter.empty
                else f"`{default}`"
                if default is None or isinstance(default, str)
                else str(default)
            ), name


def test_the_errors_that_reach_the_host_are_greenrooms() -> None:
    import greenroom

    said = {
        word for cells in rows(PAGE, "What reaches the host") for cell in cells for word in re.findall(r"`([A-Z]\w+)`", cell)
    }
    assert said >= {
        "Superseded",
        "RedisEmptied",
        "BudgetSpent",
        "RedisUnavailable",
        "RedisRefused",
        "NewerVersion",
        "AgentError",
    }
    assert all(issubclass(getattr(greenroom, name), Exception) for name in said)


def test_code_runs_on_the_threads_that_the_table_names(running: Running, redis_url: str) -> None:
    there: dict[str, str] = {}
    told = threading.Event()

    def note(what: str) -> str:
        there[what] = threading.current_thread().name
        return what

    def hear(_: object) -> None:
        note("listener")
        told.set()

    def end(_: object) -> None:
        note("on_end")

    class OnTheLoop(Agent):
        async def respond(self, message: Any, cycle: Any) -> str:
            await cycle.step("look-up", note, "step")
            return note("coroutine")

    class InAThread(Agent):
        def respond(self, message: Any, cycle: Any) -> str:
            there["ticket"] = str(cycle.ticket)
            return note("function")

    for agent_class in (OnTheLoop, InAThread):
        agent = unique("agent")
        system = ActorSystem(agent_class, agent=agent, redis=redis_url, on_end=end)
        system.on("cycle.committed", hear)
        with system, Client(agent, redis=redis_url) as client:
            client.ask("1", "hello")
            wait_for(told, "the listener was told")
            threads = {thread.name for thread in threading.enumerate()}
    eventually(lambda: "on_end" in there, "the host is told of the end")
    ticket = there.pop("ticket")
    assert there == {
        "step": "greenroom-step-look-up",
        "coroutine": "greenroom-user",
        "function": f"greenroom-cycle-{ticket}",
        "listener": "greenroom-listeners",
        "on_end": "greenroom-on-end",
    }
    named = {cells[0].strip("`") for cells in rows(PAGE, "Which thread runs what")}
    assert {name.replace("look-up", "<name>").replace(ticket, "<ticket>") for name in there.values()} < named
    assert {"greenroom-control", "greenroom-user", "greenroom-client"} <= named & threads


def test_a_stop_of_all_pykka_actors_ends_a_system_and_reaches_the_host(running: Running, director: Director) -> None:
    system = running(director.agent())
    pykka.ActorRegistry.stop_all(timeout=WAIT_S)
    with pytest.raises(BudgetSpent, match="was stopped too often from outside"):
        system.wait(WAIT_S)
    assert not system.ready


def test_what_was_started_before_a_fork_says_so_in_the_new_process(folder: Path, redis_url: str, agent: str) -> None:
    program = f"""
import os
from greenroom import ActorSystem, Client, GreenroomError
from support import REDIS, Support

system = ActorSystem(Support, agent="{agent}", redis=REDIS).start()
used, fresh = Client("{agent}", redis=REDIS), Client("{agent}", redis=REDIS)
used.send("other", "before")
child = os.fork()
if child == 0:
    for call in (system.stop, lambda: used.send("other", "after")):
        try:
            call()
        except GreenroomError as error:
            print(error)
    used.close()
    print(system.ready, fresh.ask("42", "hello"), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(system.ready, used.ask("42", "hello"))
used.close()
system.stop()
"""
    assert printed(started(folder, program)).splitlines() == [
        "this ActorSystem was started before this process was forked: start one in each process",
        "this client was in use before this process was forked: make one in each process",
        "False You said hello.",
        "True You said hello.",
    ]


def test_a_system_that_cannot_start_leaves_nothing_behind() -> None:
    class Fails(Agent):
        def __init__(self) -> None:
            raise RuntimeError("no model")

        async def respond(self, message: Any, cycle: Any) -> None: ...

    before = threading.active_count()
    with pytest.raises(RuntimeError, match="no model"):
        ActorSystem(Fails, agent=unique("agent"), redis="redis://127.0.0.1:1").start()
    with pytest.raises(GreenroomError, match="cannot be reached"):
        ActorSystem(Director().agent(), agent=unique("agent"), redis="redis://127.0.0.1:1").start()
    eventually(lambda: threading.active_count() <= before, "its threads have ended")
