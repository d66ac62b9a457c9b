"""Agents that run in child processes, and what tests see of processes.

A child imports this module by itself, so a test says what is to be done by the message's body, ``"deed"`` or
``["deed", argument]``; other bodies are answered with themselves. A deed that goes on for ever first sends
``["begun", pid, …]``.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from greenroom import Agent, Client, Cycle, Interruption, Message, ThreadCycle
from integration.agents import AT_ONCE, LOOK_S, eventually, wait_output

FOR_EVER_S = 3600.0
SHORT = timedelta(milliseconds=300)  # for what does not end when it is told to
LONG = timedelta(seconds=20)  # for what does, on a busy machine too
MARKER = "GREENROOM_TEST_MARKER"  # names a file for agents that are made in one way without it, in another with it


class Isolated(Agent):
    """A coroutine that does as it is told."""

    isolation = "process"
    max_processes = 1
    abort_timeout = LONG
    max_attempts = 1
    retry = AT_ONCE

    def __init__(self) -> None:
        self.cycles = 0

    async def respond(self, message: Message, cycle: Cycle) -> Any:
        self.cycles += 1
        deed, argument = message.body if isinstance(message.body, list) else (message.body, None)
        end_badly(deed)
        answers: dict[str, Callable[[], Any]] = {
            "pid": os.getpid,
            "cycles": lambda: self.cycles,
            "where": lambda: [os.getcwd(), threading.current_thread() is threading.main_thread()],
            "end a fork": end_a_fork,
        }
        if deed in answers:
            return answers[deed]()
        await hang(deed, argument, cycle)
        return await self.work(deed, argument, cycle)

    async def work(self, deed: str, argument: Any, cycle: Cycle) -> Any:
        match deed:
            case "remember":
                cycle.state["known"] = [*cycle.state.get("known", []), argument]
                return cycle.state["known"]
            case "step and fail":
                await cycle.step("count", count_in, argument)
                raise RuntimeError("after the step")
            case "flood":
                for number in range(argument):
                    await cycle.stream(number)
                return "flooded"
            case "leave a thread":
                threading.Thread(target=go_on_sending, args=(cycle,), daemon=True).start()
                return os.getpid()
            case "see it try":
                await asyncio.to_thread(wait_tries, 20)
                return os.getpid()
            case "wait for a file":
                await cycle.send(["begun", os.getpid()])
                await asyncio.to_thread(wait_for_file, argument)
                return "went"
        return deed

    def on_interrupt(self, interruption: Interruption, state: Any) -> Any:
        body = interruption.message.body
        end_badly(body[1] if isinstance(body, list) else "")
        if body == ["sleep", "and hang in the hook"]:
            time.sleep(FOR_EVER_S)
        state["known"] = ["interrupted"]
        return ["closing", os.getpid(), interruption.code, list(interruption.sent)]


class Hasty(Isolated):
    abort_timeout = SHORT


class Pair(Hasty):
    max_processes = 2


class Retried(Isolated):
    max_attempts = 2


class HastyHook(Isolated):
    hook_timeout = SHORT


class Overdue(Hasty):
    max_cycle = SHORT


class Function(Agent):
    """Some of it in a thread of the child's."""

    isolation = "process"
    max_processes = 1
    abort_timeout = LONG
    max_attempts = 1

    def respond(self, message: Message, cycle: ThreadCycle) -> Any:
        if message.body == "step":
            with cycle.shield():
                return [cycle.step("sum", sum, [1, 2]), os.getpid()]
        if message.body in ("sleep", "swallow"):
            cycle.stream(["begun", os.getpid()])  # as in hang()
        if message.body == "sleep":
            while not cycle.cancelled:
                time.sleep(LOOK_S)
        if message.body == "swallow":
            go_on_sending(cycle)
        cycle.state["asked"] = cycle.state.get("asked", 0) + 1
        return [message.body, cycle.state["asked"]]


class HastyFunction(Function):
    abort_timeout = SHORT


class Generator(Agent):
    isolation = "process"
    max_processes = 1

    def respond(self, message: Message, cycle: ThreadCycle) -> Iterator[Any]:
        yield "one"
        yield os.getpid()


class AsyncGenerator(Agent):
    isolation = "process"
    max_processes = 1

    async def respond(self, message: Message, cycle: Cycle) -> AsyncIterator[Any]:
        yield "one"
        await asyncio.sleep(0)
        yield os.getpid()


class Unmakeable(Isolated):
    def __init__(self) -> None:
        raise LookupError("no model there")


class SlowToMake(Isolated):
    def __init__(self) -> None:
        time.sleep(FOR_EVER_S)


class FitOnce(Isolated):
    """The first is made; those after it are not, while the marker is there."""

    def __init__(self) -> None:
        super().__init__()
        if Path(os.environ[MARKER]).exists():
            raise LookupError("the model has gone")
        Path(os.environ[MARKER]).touch()


class QuickOnce(Isolated):
    """The first is made; those after it hang, while the marker is there."""

    max_cycle = LONG

    def __init__(self) -> None:
        super().__init__()
        if Path(os.environ[MARKER]).exists():
            time.sleep(FOR_EVER_S)
        Path(os.environ[MARKER]).touch()


# Deeds. -----------------------------------------------------------------------------------------------

_LIVES = "import time; print(flush=True); time.sleep(3600)"
_STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {_LIVES}"
_started: list[subprocess.Popen[bytes]] = []  # let go of, they would be complained about
tries: list[None] = []  # what go_on_sending has tried


def start_process(program: str) -> int:
    """Start a process that lives until it is killed, and answer its id once it is up."""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    _started.append(process)
    return process.pid


def end_badly(deed: str) -> None:
    if deed == "exit":
        os._exit(3)
    if number := {"kill": signal.SIGKILL, "crash": signal.SIGSEGV}.get(deed):
        os.kill(os.getpid(), number)
        time.sleep(FOR_EVER_S)  # until it comes
    if deed == "fail":
        raise RuntimeError("told to fail")
    if deed == "no text":
        raise OSError(os.fsdecode(b"caf\xe9"))
    if deed == "leave":
        raise GeneratorExit


def end_a_fork() -> int:
    """The signal that has ended a fork which was sent SIGTERM."""
    up, upper = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(upper, b"!")
        time.sleep(FOR_EVER_S)
        os._exit(1)
    os.read(up, 1)
    os.kill(pid, signal.SIGTERM)
    return os.WTERMSIG(os.waitpid(pid, 0)[1])


def wait_for_file(path: str) -> None:
    while not Path(path).exists():
        time.sleep(LOOK_S)


def wait_tries(more: int) -> None:
    wanted = len(tries) + more
    while len(tries) < wanted:
        time.sleep(LOOK_S)


async def hang(deed: str, argument: Any, cycle: Cycle) -> None:  # noqa: C901  # one case a deed
    """Those that cannot be cancelled stream what they say: they do not wait for it, so from then on they hang for certain."""
    pid = os.getpid()
    match deed:
        case "sleep":
            await cycle.send(["begun", pid])
            await asyncio.sleep(FOR_EVER_S)
        case "print and sleep":
            print(argument)  # noqa: T201  # not flushed: that is the point
            await cycle.send(["begun", pid])
            await asyncio.sleep(FOR_EVER_S)
        case "shield and sleep":
            async with cycle.shield():
                await cycle.send(["begun", pid])
                await asyncio.to_thread(wait_for_file, argument)
            await asyncio.sleep(FOR_EVER_S)
        case "loop":
            await cycle.stream(["begun", pid])
            while True:
                pass
        case "hold the GIL":
            await cycle.stream(["begun", pid])
            re.match("(a+)+$", "a" * 64 + "b")
        case "swallow":
            await cycle.stream(["begun", pid])
            while True:
                cycle._link.ended = ""
                with suppress(BaseException):
                    await cycle.send("evil")
        case "start a process":
            await cycle.send(["begun", pid, start_process(_LIVES)])
            await asyncio.sleep(FOR_EVER_S)
        case "start a stubborn process":
            await cycle.send(["begun", pid, start_process(_STUBBORN)])
            await asyncio.sleep(FOR_EVER_S)
        case "start a process and exit":
            await cycle.send(["begun", pid, start_process(_STUBBORN)])
            os._exit(3)
        case "talk nonsense":
            cycle._link._child.send(*argument)  # type: ignore[attr-defined]  # in a child it is a ChildLink
            await asyncio.sleep(FOR_EVER_S)


def count_in(path: str) -> int:
    """How often it was called with this file, this time included."""
    with Path(path).open("a") as file:
        file.write("x")
    return len(Path(path).read_text())


def go_on_sending(cycle: Any) -> None:
    while True:
        cycle._link.ended = ""
        with suppress(BaseException):
            sent = cycle.send("evil")
            if asyncio.iscoroutine(sent):
                asyncio.run(sent)
        tries.append(None)


# What tests see. --------------------------------------------------------------------------------------


def lives(pid: int) -> bool:
    """Whether the process runs; one that nobody has waited for yet does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def wait_gone(*pids: int) -> None:
    eventually(lambda: not any(map(lives, pids)), f"the processes {pids} have ended")


def wait_begun(client: Client, room: str) -> list[int]:
    """Wait until a deed of the room that goes on for ever has begun: the ids of its process, and of what that has started."""
    output = wait_output(client, room, lambda output: isinstance(output.body, list) and output.body[0] == "begun")
    return [int(pid) for pid in output.body[1:]]
