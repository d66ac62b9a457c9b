"""What a handler started and left: what is cancelled with it, what runs on, and that all of it is refused (rows 6 and 27)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import pytest
import redis as redis_py

from greenroom import Client, Cycle, CycleEnded, Kind, Mode, ThreadCycle
from greenroom.protocol.keys import Keys
from integration.agents import WAIT_S, Director, Run, eventually, settled, wait_for
from integration.conftest import Running
from integration.replays import LEASE

ENDS = pytest.mark.parametrize("how", ["interrupt", "stop", "finish", "fail"])
ABORTS = pytest.mark.parametrize("how", [Mode.INTERRUPT, Mode.STOP])


def end(run: Run, how: str, client: Client) -> None:
    """End the run in that way, and wait until Redis has it."""
    if how in ("finish", "fail"):
        getattr(run, how)()
    else:
        getattr(client, how)("1")
    settled(client, "1", run.ticket)


class Child:
    """A task of a handler's, as the test sees it."""

    def __init__(self) -> None:
        self.begun, self.cancelled = threading.Event(), threading.Event()
        self.go = threading.Event()
        self.answer: Future[Any] = Future()

    async def hang(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def later(self, act: Callable[[], Awaitable[Any]]) -> None:
        """Wait to be told to go on, and do that then."""
        self.begun.set()
        await asyncio.to_thread(self.go.wait, WAIT_S)
        await self._try(act)

    async def _try(self, act: Callable[[], Awaitable[Any]]) -> None:
        try:
            self.answer.set_result(await act())
        except BaseException as error:
            self.answer.set_exception(error)


# What is cancelled. ---------------------------------------------------------------------------------------------


async def in_group(cycle: Cycle, child: Child) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(child.hang())


async def in_gather(cycle: Cycle, child: Child) -> None:
    await asyncio.gather(child.hang())


async def awaited(cycle: Cycle, child: Child) -> None:
    await asyncio.create_task(child.hang())


async def in_step(cycle: Cycle, child: Child) -> None:
    await cycle.step("hangs", child.hang)


@ABORTS
@pytest.mark.parametrize("owner", [in_group, in_gather, awaited, in_step], ids=lambda owner: owner.__name__)
def test_what_the_handler_waits_for_is_cancelled_with_it(
    owner: Callable[[Cycle, Child], Awaitable[None]], how: Mode, running: Running, director: Director, client: Client
) -> None:
    running(director.agent())
    client.send("1", "wait")
    run, child = director.run("1"), Child()
    run.begin(lambda cycle: owner(cycle, child))
    wait_for(child.begun, "the child has begun")
    end(run, how, client)
    wait_for(child.cancelled, "the child is cancelled with its handler")


# What runs on, and is refused. ----------------------------------------------------------------------------------


async def enter_shield(cycle: Cycle) -> None:
    async with cycle.shield():
        pass


async def stream_all(cycle: Cycle) -> None:
    await cycle.stream("late")
    await cycle.flush()


EFFECTS: dict[str, Callable[[Cycle], Awaitable[Any]]] = {
    "send": lambda cycle: cycle.send("late"),
    "stream": stream_all,
    "step": lambda cycle: cycle.step("late", lambda: "done"),
    "shield": enter_shield,
}


@ENDS
@pytest.mark.parametrize("effect", EFFECTS)
def test_a_task_that_nobody_waits_for_runs_on_and_all_it_tries_is_refused(
    effect: str, how: str, running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """Also while the room's next cycle is live."""
    running(director.agent())
    client.send("1", "wait")
    client.send("1", "wait")
    run, child = director.run("1"), Child()
    tasks: list[asyncio.Task[None]] = []
    run.do(lambda cycle: tasks.append(asyncio.create_task(child.later(lambda: EFFECTS[effect](cycle)))))
    wait_for(child.begun, "the task has begun")
    end(run, how, client)
    client.play("1")
    live = director.run("1")
    child.go.set()
    with pytest.raises(CycleEnded):
        child.answer.result(WAIT_S)
    status = client.status("1")
    assert (status.ticket, status.shielded) == (live.ticket, False)
    assert not redis.exists(f"{keys.room('1')}:steps")
    live.finish("done")
    assert [output.kind for output in client.outputs("1") if output.body == "late"] == []


@ABORTS
def test_a_thread_that_an_async_handler_waits_for_runs_on_and_sees_that_the_cycle_has_ended(
    how: Mode, running: Running, director: Director, client: Client
) -> None:
    """row 27: cancelling the wait does not end the thread"""
    running(director.agent())
    client.send("1", "wait")
    run, begun = director.run("1"), threading.Event()
    seen: Future[str] = Future()

    def work(cycle: Cycle) -> None:
        begun.set()
        eventually(lambda: cycle.cancelled, "the thread sees it")
        try:
            cycle.checkpoint()
        except CycleEnded as error:
            seen.set_result(error.why)

    run.begin(lambda cycle: asyncio.to_thread(work, cycle))
    wait_for(begun, "the thread works")
    end(run, how, client)
    assert seen.result(WAIT_S) == how


def test_the_thread_of_a_cancelled_step_runs_on_and_its_result_is_not_recorded(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """row 25: so its outcome is not known"""
    running(director.agent())
    client.send("1", "wait")
    run, begun, go, ended = director.run("1"), threading.Event(), threading.Event(), threading.Event()

    def charge() -> str:
        begun.set()
        wait_for(go, "the step may end")
        ended.set()
        return "charged"

    run.begin(lambda cycle: cycle.step("charge", charge))
    wait_for(begun, "the step has begun")
    end(run, "stop", client)
    go.set()
    wait_for(ended, "the step's thread runs to its end")
    assert redis.hgetall(f"{keys.room('1')}:steps") == {"charge": f"?{run.ticket}"}


@ENDS
def test_a_thread_that_a_function_started_runs_on_and_all_it_tries_is_refused(
    how: str, running: Running, director: Director, client: Client
) -> None:
    running(director.agent(threaded=True))
    client.send("1", "wait")
    client.send("1", "wait")
    run, go = director.run("1"), threading.Event()
    answers: list[Future[Any]] = [Future() for _ in range(4)]

    def tries(cycle: ThreadCycle) -> None:
        wait_for(go, "the handler has ended")
        for answer, act in zip(answers, (send, stream_in_thread, step, shield), strict=True):
            try:
                answer.set_result(act(cycle))
            except BaseException as error:
                answer.set_exception(error)

    def send(cycle: ThreadCycle) -> None:
        cycle.send("late")

    def stream_in_thread(cycle: ThreadCycle) -> None:
        cycle.stream("late")
        cycle.flush()

    def step(cycle: ThreadCycle) -> None:
        cycle.step("late", lambda: "done")

    def shield(cycle: ThreadCycle) -> None:
        with cycle.shield():
            pass

    run.do(lambda cycle: threading.Thread(target=tries, args=(cycle,), daemon=True).start())
    end(run, how, client)
    client.play("1")
    live = director.run("1")
    go.set()
    for answer in answers:
        with pytest.raises(CycleEnded):
            answer.result(WAIT_S)
    assert not client.status("1").shielded
    live.finish("done")
    assert settled(client, "1", live.ticket).kind is Kind.REPLY
    assert "late" not in [output.body for output in client.outputs("1")]


@pytest.mark.parametrize("threaded", [False, True], ids=["coroutine", "function"])
def test_a_cycle_stays_cancelled_when_the_next_one_has_begun(
    threaded: bool, running: Running, director: Director, client: Client
) -> None:
    """row 27"""
    running(director.agent(threaded=threaded), lease=LEASE)
    client.send("1", "wait")
    client.send("1", "wait")
    first = director.run("1")
    client.interrupt("1")
    second = director.run("1")
    assert (first.cycle.cancelled, second.cycle.cancelled) == (True, False)
    second.finish()
    settled(client, "1", second.ticket)
    assert first.cycle.cancelled
    with pytest.raises(CycleEnded, match="interrupt"):
        first.cycle.checkpoint()
