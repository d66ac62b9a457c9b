"""No user code can hold up control: not on its loop, not in its threads, whatever it does there."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import pytest

from greenroom import Agent, Client, Cycle, Interruption, Kind, Message, Mode, Outcome, ThreadCycle
from integration.agents import AT_ONCE, WAIT_S, wait_output
from integration.conftest import Running

WELL_UNDER_A_SECOND = 0.8  # generous: the machine may be busy; the handlers below block for seconds
BLOCKS_S = 5.0
ROOMS = [f"room-{number}" for number in range(5)]


class Threads:
    """The names of the threads on which user code ran."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.reached = threading.Event()
        self.over = threading.Event()

    def note(self) -> None:
        self.names.add(threading.current_thread().name)

    def check(self) -> None:
        assert self.names
        assert "greenroom-control" not in self.names


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads()
    yield threads
    threads.over.set()
    threads.check()


def blocking(threads: Threads) -> type[Agent]:
    """An async agent that answers, sends a chunk and waits, or blocks its loop, as the message's body says."""

    class Blocking(Agent):
        abort_timeout = timedelta(milliseconds=200)

        async def respond(self, message: Message, cycle: Cycle) -> Any:
            threads.note()
            try:
                if message.body == "wait":
                    await cycle.send("began")
                    await asyncio.Event().wait()
                if message.body == "block":
                    await cycle.send("began")
                    threads.reached.set()
                    time.sleep(BLOCKS_S)  # noqa: ASYNC251  # the hostile behaviour under test
                    await cycle.send("woke up")
                return message.body
            finally:
                threads.note()

    return Blocking


def spinning(threads: Threads) -> type[Agent]:
    """A thread agent that spins until the test is over, or sends as fast as it can, and takes no notice of anything."""

    class Spinning(Agent):
        abort_timeout = timedelta(milliseconds=200)

        def respond(self, message: Message, cycle: ThreadCycle) -> Any:
            threads.note()
            if message.body == "flood":
                while not threads.over.is_set():
                    try:
                        cycle.send("more")
                    except Exception:
                        if not cycle.cancelled:
                            raise
            if message.body == "spin":
                cycle.send("began")
                while not threads.over.is_set():
                    pass
            return message.body

    return Spinning


def timed_stop(client: Client, room: str) -> float:
    """Stop a room; answer how many seconds that took. From then on nothing of its cycle is accepted, and its status says so."""
    start = time.perf_counter()
    receipt = client.stop(room)[0]
    took = time.perf_counter() - start
    assert receipt.outcome is Outcome.APPLIED
    status = client.status(room)
    assert status.hold is not None
    assert status.hold.mode is Mode.STOP
    assert status.ticket is None or status.abort == "stop"
    return took


def chunks(client: Client, room: str) -> int:
    return sum(1 for output in client.outputs(room) if output.kind is Kind.CHUNK)


def test_a_handler_that_blocks_its_loop_holds_up_no_stop(running: Running, client: Client, threads: Threads) -> None:
    """row 29, row 18"""
    system = running(blocking(threads))
    for room in ROOMS:
        client.send(room, "wait")
        wait_output(client, room, lambda output: output.body == "began")
    client.send("blocker", "block")
    assert threads.reached.wait(WAIT_S)
    begin = time.perf_counter()
    assert all(timed_stop(client, room) < WELL_UNDER_A_SECOND for room in [*ROOMS, "blocker"])
    for room in [*ROOMS, "blocker"]:  # each is given back although its code cannot be told to end yet
        wait_output(client, room, lambda output: output.kind is Kind.ABORTED)
    assert time.perf_counter() - begin < BLOCKS_S, "it waited for the handler"
    assert system._worker.context.detached == len(ROOMS) + 1
    client.play("blocker")
    client.interrupt("blocker")
    assert client.ask("afterwards", "x", timeout=WAIT_S) == "x"
    assert [output.body for output in client.outputs("blocker")].count("woke up") == 0


def test_messages_are_accepted_and_signals_applied_while_the_loop_is_blocked(
    running: Running, client: Client, threads: Threads
) -> None:
    """row 29"""
    running(blocking(threads))
    client.send("blocker", "block")
    assert threads.reached.wait(WAIT_S)
    begin = time.perf_counter()
    for room in ROOMS:
        client.send(room, "x")
        client.pause(room)
        client.play(room)
    assert client.overview().rooms >= len(ROOMS)
    assert time.perf_counter() - begin < BLOCKS_S
    for room in ROOMS:
        wait_output(client, room, lambda output: output.kind is Kind.REPLY)


def test_threads_that_spin_hold_up_no_stop(running: Running, client: Client, threads: Threads) -> None:
    """row 29, row 18"""
    running(spinning(threads))
    for room in ROOMS[:2]:
        client.send(room, "spin")
        wait_output(client, room, lambda output: output.body == "began")
    for room in ROOMS[:2]:
        assert timed_stop(client, room) < WELL_UNDER_A_SECOND
        wait_output(client, room, lambda output: output.kind is Kind.ABORTED)
    assert client.ask("other", "x") == "x"


def test_after_a_stop_has_answered_not_one_more_output_of_a_flood_is_accepted(
    running: Running, client: Client, threads: Threads
) -> None:
    """row 6, row 18"""
    running(spinning(threads))
    client.send("42", "flood")
    wait_output(client, "42", lambda output: output.seq >= 20)
    assert timed_stop(client, "42") < WELL_UNDER_A_SECOND
    accepted = chunks(client, "42")
    wait_output(client, "42", lambda output: output.kind is Kind.ABORTED)
    assert client.ask("other", "x") == "x"
    assert chunks(client, "42") == accepted


def test_stopping_the_system_waits_neither_for_a_blocked_loop_nor_for_threads_that_spin(
    running: Running, client: Client, threads: Threads
) -> None:
    """row 29, row 38"""
    system = running(blocking(threads))
    client.send("blocker", "block")
    assert threads.reached.wait(WAIT_S)
    begin = time.perf_counter()
    system.stop(timedelta(0))
    assert time.perf_counter() - begin < BLOCKS_S
    assert client.status("blocker").owner is None


def test_no_user_code_ever_runs_on_the_control_thread(running: Running, client: Client, threads: Threads) -> None:
    """row 29"""

    class Body(dict[str, Any]):
        """What a handler returns may be anything that has code of its own."""

        def items(self) -> Any:
            threads.note()
            return super().items()

        def values(self) -> Any:
            threads.note()
            return super().values()

    class Everywhere(Agent):
        retry = AT_ONCE
        max_attempts = 2

        def __init__(self) -> None:
            threads.note()

        async def respond(self, message: Message, cycle: Cycle) -> Any:
            threads.note()
            asyncio.get_running_loop().call_soon(threads.note)
            cycle.state["body"] = Body(a=1)
            try:
                if message.body == "fail":
                    raise Loud("failed")
                if message.body == "wait":
                    await cycle.send("began")
                    await asyncio.Event().wait()
                await cycle.send(Body(b=2))
                async with cycle.shield():
                    threads.note()
                return Body(c=3)
            finally:
                threads.note()

    class Loud(Exception):
        def __str__(self) -> str:
            threads.note()
            return "loud"

    running(Everywhere)
    assert client.ask("42", "x") == {"c": 3}
    client.send("42", "fail")
    wait_output(client, "42", lambda output: output.kind is Kind.DEAD)
    client.send("42", "wait")
    wait_output(client, "42", lambda output: output.body == "began")
    client.interrupt("42")
    assert client.ask("42", "y") == {"c": 3}


_bound: ContextVar[str] = ContextVar("bound", default="")


class Binding(Agent):
    """Binds a context variable, and replies with what it was before, and what a step's thread sees."""

    async def respond(self, message: Message, cycle: Cycle) -> Any:
        before = _bound.get()
        _bound.set(message.room)
        return [before, await cycle.step("look", _bound.get)]


class BindingInThread(Agent):
    def respond(self, message: Message, cycle: ThreadCycle) -> Any:
        before = _bound.get()
        _bound.set(message.room)
        return [before, cycle.step("look", _bound.get)]


@pytest.mark.parametrize("agent_class", [Binding, BindingInThread])
def test_what_a_handler_binds_in_its_context_is_seen_by_its_steps_and_by_no_other_cycle(
    agent_class: type[Agent], running: Running, client: Client
) -> None:
    client.pause(*ROOMS)
    last = {room: [client.send(room, "look") for _ in range(5)][-1] for room in ROOMS}
    client.play(*ROOMS)
    running(agent_class)
    for room, message in last.items():
        wait_output(client, room, lambda output, message=message: output.message == message)  # type: ignore[misc]
        assert [output.body for output in client.outputs(room)] == [["", room]] * 5


class Held:
    """What a handler or a hook holds when it ends. ``ends`` are the threads on which that ended."""

    def __init__(self, ends: SimpleQueue[str]) -> None:
        self._ends = ends

    def __del__(self) -> None:
        self._ends.put(threading.current_thread().name)


def holding(ends: SimpleQueue[str], go: threading.Event) -> type[Agent]:
    def fail() -> None:
        raise ValueError("in a step")

    class Holding(Agent):
        max_attempts = 1

        async def respond(self, message: Message, cycle: Cycle) -> None:
            held = Held(ends)
            if message.body == "step":
                await cycle.step("fail", fail)
            if message.body == "leave":
                raise GeneratorExit
            if message.body == "shield":
                async with cycle.shield():
                    await cycle.send("began")
                    await asyncio.to_thread(go.wait, WAIT_S)
            await cycle.send("began")
            await asyncio.Event().wait()
            del held

        def on_interrupt(self, interruption: Interruption, state: Any) -> None:
            raise ValueError("in a hook", Held(ends))

    return Holding


@pytest.mark.parametrize("body", ["step", "leave", "wait", "shield"])
def test_what_a_handler_held_ends_with_it_and_not_when_the_garbage_collector_comes_by_on_any_thread(
    body: str, running: Running, client: Client
) -> None:
    ends: SimpleQueue[str] = SimpleQueue()
    go = threading.Event()
    running(holding(ends, go))
    gc.disable()
    try:
        client.send("42", body)
        if body in ("wait", "shield"):
            wait_output(client, "42", lambda output: output.body == "began")
            client.interrupt("42")
            go.set()
            ended = {ends.get(timeout=WAIT_S), ends.get(timeout=WAIT_S)}  # the handler's, and the hook's
        else:
            ended = {ends.get(timeout=WAIT_S)}
        assert body == "shield" or "greenroom-control" not in ended  # its CycleEnded was made over there
    finally:
        gc.enable()


def test_exits_of_user_code_end_their_cycle_alone(running: Running, client: Client) -> None:
    class Exits(Agent):
        max_attempts = 1

        async def respond(self, message: Message, cycle: Cycle) -> Any:
            async def leave() -> None:
                raise SystemExit(3)

            if message.body == "exit":
                raise SystemExit(3)
            if message.body == "Ctrl-C":
                raise KeyboardInterrupt
            if message.body == "a task that exits":
                await asyncio.gather(asyncio.create_task(leave()), return_exceptions=True)
            if message.body == "stops the loop":
                asyncio.get_running_loop().stop()
                await asyncio.sleep(0)
            return message.body

    system = running(Exits)
    for body in ("exit", "Ctrl-C"):
        client.send("42", body)
    for body in ("a task that exits", "stops the loop", "afterwards"):
        assert client.ask("42", body, timeout=WAIT_S) == body
    letters = [letter.error for letter in client.dead_letters()]
    assert letters == ["SystemExit: 3", "KeyboardInterrupt"]
    assert system.wait(0) is False
