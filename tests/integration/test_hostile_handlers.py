"""Once a stop or an interrupt has answered, nothing of that cycle appears any more, whatever its handler does.

The handlers here do not only ignore that they are told to end: before each try they also reset what greenroom remembers of it
on this side, so that nothing but Redis refuses them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py

from greenroom import Agent, AsyncClient, Client, Cycle, Kind, Message, Mode, Receipt, ThreadCycle
from greenroom.protocol.keys import Keys
from greenroom.protocol.store import KEEP_STATE, Answer, Terms
from integration.agents import WAIT_S, Director, StoreGate, cut_off, eventually, wait_event, wait_for, wait_output
from integration.conftest import Running

ABORTS = pytest.mark.parametrize("verb", [Mode.INTERRUPT, Mode.STOP])
SHORT = timedelta(milliseconds=100)


class Villain:
    """What a hostile handler and its test share. It misbehaves on its first run only, until it is told that all is ``done``."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.done = threading.Event()
        self.ended = threading.Event()
        self.ticket = 0
        self.accepted = 0  # sends that were confirmed; what is yielded is not
        self._tries = 0
        self._tried = threading.Condition()

    def begin(self, cycle: Cycle | ThreadCycle) -> bool:
        """Whether this run is the one that misbehaves."""
        if self.begun.is_set():
            return False
        self.ticket = cycle.ticket
        self.begun.set()
        return True

    def note(self) -> None:
        with self._tried:
            self._tries += 1
            self._tried.notify_all()

    def wait_tries(self, more: int) -> None:
        """Wait until it has tried so often more."""
        with self._tried:
            wanted = self._tries + more
            assert self._tried.wait_for(lambda: self._tries >= wanted, WAIT_S), "the handler does not try any more"

    def send(self, cycle: ThreadCycle) -> None:
        """Try to send, and hide all errors."""
        cycle._link.ended = ""
        cycle.state["stolen"] = True
        with contextlib.suppress(BaseException):
            cycle.send("evil")
            self.accepted += 1
        self.note()

    async def asend(self, cycle: Cycle) -> None:
        """As ``send``; a cancel is swallowed, too."""
        cycle._link.ended = ""
        cycle.state["stolen"] = True
        with contextlib.suppress(BaseException):
            await cycle.send("evil")
            self.accepted += 1
        self.note()


def goes_on_in_a_thread(villain: Villain, cycle: ThreadCycle) -> Any:
    while not villain.done.is_set():
        villain.send(cycle)
    villain.ended.set()
    return "evil reply"


def sleeps_through_in_a_thread(villain: Villain, cycle: ThreadCycle) -> Any:
    villain.send(cycle)
    villain.done.wait(WAIT_S)
    for _ in range(5):
        villain.send(cycle)
    villain.ended.set()
    return "evil reply"


def leaves_a_thread_behind(villain: Villain, cycle: ThreadCycle) -> Any:
    threading.Thread(target=goes_on_in_a_thread, args=(villain, cycle), daemon=True).start()
    while not cycle.cancelled and not villain.done.is_set():
        time.sleep(0.001)  # as a well-behaved one that looks now and then; the thread resets what it looks at
    return "evil reply"


def yields_on_from_a_generator(villain: Villain, cycle: ThreadCycle) -> Iterator[str]:
    while not villain.done.is_set():
        cycle.state["stolen"] = True
        try:
            yield "evil"
        except GeneratorExit:
            goes_on_in_a_thread(villain, cycle)
        villain.note()
    villain.ended.set()


async def swallows_every_cancel(villain: Villain, cycle: Cycle) -> Any:
    while not villain.done.is_set():
        await villain.asend(cycle)
    villain.ended.set()
    return "evil reply"


async def sleeps_through_every_cancel(villain: Villain, cycle: Cycle) -> Any:
    await villain.asend(cycle)
    while not villain.done.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.to_thread(villain.done.wait, WAIT_S)
    for _ in range(5):
        await villain.asend(cycle)
    villain.ended.set()
    return "evil reply"


async def leaves_a_task_behind(villain: Villain, cycle: Cycle) -> Any:
    villain.task = asyncio.create_task(swallows_every_cancel(villain, cycle))  # type: ignore[attr-defined]  # kept alive
    await asyncio.Event().wait()


async def blocks_the_loop(villain: Villain, cycle: Cycle) -> Any:
    await villain.asend(cycle)
    villain.done.wait(WAIT_S)  # that is what it does
    for _ in range(5):
        await villain.asend(cycle)
    villain.ended.set()
    return "evil reply"


async def yields_on_from_an_async_generator(villain: Villain, cycle: Cycle) -> AsyncIterator[str]:
    while not villain.done.is_set():
        cycle.state["stolen"] = True
        try:
            yield "evil"
        except BaseException:
            await swallows_every_cancel(villain, cycle)
        villain.note()
    villain.ended.set()


IN_THREADS: list[Callable[..., Any]] = [goes_on_in_a_thread, sleeps_through_in_a_thread, leaves_a_thread_behind]
ON_LOOP: list[Callable[..., Awaitable[Any]]] = [swallows_every_cancel, sleeps_through_every_cancel, leaves_a_task_behind]
ALL = [*IN_THREADS, yields_on_from_a_generator, *ON_LOOP, blocks_the_loop, yields_on_from_an_async_generator]
PATIENT = (sleeps_through_in_a_thread, sleeps_through_every_cancel, blocks_the_loop)


def hostile(villain: Villain, behaviour: Callable[..., Any]) -> type[Agent]:
    """An agent that behaves so on its first run, and else replies with the body."""

    class OnLoop(Agent):
        abort_timeout = SHORT

        async def respond(self, message: Message, cycle: Cycle) -> Any:
            return await behaviour(villain, cycle) if villain.begin(cycle) else message.body

    class InThread(Agent):
        abort_timeout = SHORT

        def respond(self, message: Message, cycle: ThreadCycle) -> Any:
            return behaviour(villain, cycle) if villain.begin(cycle) else message.body

    class Generator(Agent):
        abort_timeout = SHORT

        def respond(self, message: Message, cycle: ThreadCycle) -> Iterator[Any]:
            if villain.begin(cycle):
                yield from behaviour(villain, cycle)
            else:
                yield message.body

    class AsyncGenerator(Agent):
        abort_timeout = SHORT

        async def respond(self, message: Message, cycle: Cycle) -> AsyncIterator[Any]:
            if not villain.begin(cycle):
                yield message.body
                return
            async for chunk in behaviour(villain, cycle):
                yield chunk

    if behaviour is yields_on_from_a_generator:
        return Generator
    if behaviour is yields_on_from_an_async_generator:
        return AsyncGenerator
    return InThread if behaviour in IN_THREADS else OnLoop


def signal_and_mark(client: Client, verb: Mode, room: str) -> tuple[Receipt, str]:
    """The receipt of a signal, and the last entry of the outbox at that very instant: both are asked for in one write."""

    async def both() -> tuple[Receipt, str]:
        inner = client._client
        store = inner._store
        signalled = asyncio.ensure_future(getattr(inner, verb)(room))
        await asyncio.sleep(0)
        [last] = await store.pipeline.command("XREVRANGE", store.keys.outbox(room), "+", "-", "COUNT", 1)
        return (await signalled)[0], last[0].decode()

    return client._run(both)


@pytest.fixture
def villain() -> Iterator[Villain]:
    villain = Villain()
    yield villain
    villain.done.set()


@ABORTS
@pytest.mark.parametrize("behaviour", ALL, ids=lambda behaviour: behaviour.__name__)
def test_nothing_of_a_cycle_appears_after_the_signal_has_answered_and_the_room_goes_on(
    behaviour: Callable[..., Any],
    verb: Mode,
    villain: Villain,
    running: Running,
    client: Client,
    redis: redis_py.Redis,
    agent: str,
    keys: Keys,
) -> None:
    """row 6"""
    system = running(hostile(villain, behaviour))
    message = client.send("1", "hello")
    wait_output(client, "1", lambda output: output.body == "evil")
    receipt, mark = signal_and_mark(client, verb, "1")
    assert (receipt.message, receipt.outcome) == (message, "applied")
    if behaviour not in PATIENT:
        villain.wait_tries(20)

    # The room goes on while the handler still runs.
    wait_event(redis, agent, "cycle.interrupted" if verb is Mode.INTERRUPT else "cycle.stopped", room="1")
    assert not villain.ended.is_set()
    if behaviour is blocks_the_loop:
        villain.done.set()
    if verb is Mode.STOP:
        client.play("1")
    else:
        client.send("1", "hello")
    wait_output(client, "1", lambda output: output.kind is Kind.REPLY)
    if behaviour not in PATIENT:
        villain.wait_tries(20)
    villain.done.set()
    wait_for(villain.ended, "the handler ends")
    assert client.ask("1", "last") == "last"

    own = [output for output in client.outputs("1", after=mark) if output.ticket == villain.ticket]
    assert [(output.kind, output.mode) for output in own] == [(Kind.ABORTED, verb)]
    before = [output for output in client.outputs("1") if output.ticket == villain.ticket and output.kind is Kind.CHUNK]
    assert len(before) >= max(1, villain.accepted)
    assert [output.body for output in before] == ["evil"] * len(before)
    assert not redis.exists(keys.state("1")), "what it did to the state is not kept"
    assert not list(client.dead_letters())
    eventually(lambda: system._worker.context.slots.used == 0, "no slot is held")


@ABORTS
@pytest.mark.parametrize("behaviour", [goes_on_in_a_thread, swallows_every_cancel], ids=lambda behaviour: behaviour.__name__)
def test_nothing_of_a_cycle_appears_while_the_worker_has_not_heard_of_the_signal_yet(
    behaviour: Callable[..., Any], verb: Mode, villain: Villain, running: Running, client: Client
) -> None:
    """row 6: its control listener is cut off, so the refusal is the first that it learns"""
    system = running(hostile(villain, behaviour))
    cut_off(system)
    client.send("1", "hello")
    wait_output(client, "1", lambda output: output.body == "evil")
    _, mark = signal_and_mark(client, verb, "1")
    villain.wait_tries(20)
    wait_output(client, "1", lambda output: output.kind is Kind.ABORTED and output.mode == verb)
    if verb is Mode.STOP:
        client.play("1")
    assert client.ask("1", "next") == "next"
    own = [output for output in client.outputs("1", after=mark) if output.ticket == villain.ticket]
    assert [output.kind for output in own] == [Kind.ABORTED]


@ABORTS
def test_every_effect_of_the_ticket_is_refused_from_another_process_as_soon_as_the_signal_has_answered(
    verb: Mode, running: Running, director: Director, client: Client, redis: redis_py.Redis, redis_url: str, agent: str
) -> None:
    """row 6: before the worker has settled the cycle, and after"""
    hold = StoreGate.of(running(director.agent(interruptible=True, abort_timeout=SHORT))).before("settle")
    client.send("1", "wait")
    run = director.run("1")

    async def words(signal: bool) -> list[str]:
        async with AsyncClient(agent, redis=redis_url) as other:
            receipt = asyncio.ensure_future(getattr(other, verb)("1")) if signal else None
            await asyncio.sleep(0)
            store, ticket = other._store, run.ticket
            commit = store.commit("1", ticket, state=KEEP_STATE, reply=b"\xa4evil", take_next=True, terms=Terms())
            shields = [store.shield("1", ticket, up=up) for up in (True, False)]
            emits = [store.emit("1", ticket, 1, b"\xa4evil"), *shields]
            steps = [store.step("1", ticket, "charge", act) for act in ("begin", "again", "done")]
            committed = await commit
            assert isinstance(committed, Answer)
            found = [committed.word, *[(await emit).word for emit in emits], *[(await step)[0] for step in steps]]
            if receipt is not None:
                assert (await receipt)[0].outcome == "applied"
            return found

    assert set(asyncio.run(words(signal=True))) == {verb.value}
    hold.wait()
    hold.release()
    wait_event(redis, agent, "cycle.interrupted" if verb is Mode.INTERRUPT else "cycle.stopped", room="1")
    # A commit of a ticket that is settled counts as that settlement, sent again: it gets the same answer, and does nothing.
    late = asyncio.run(words(signal=False))
    assert set(late) - {"empty", "held"} == {"fenced"}
    assert [(output.kind, output.mode) for output in client.outputs("1")] == [(Kind.ABORTED, verb)]


def test_what_a_handler_left_behind_cannot_send_once_its_cycle_has_committed(
    villain: Villain, running: Running, client: Client
) -> None:
    """row 6"""

    class LeavesATask(Agent):
        async def respond(self, message: Message, cycle: Cycle) -> Any:
            if villain.begin(cycle):
                self.task = asyncio.create_task(swallows_every_cancel(villain, cycle))
            return message.body

    running(LeavesATask)
    assert client.ask("1", "first") == "first"
    assert client.ask("1", "second") == "second"
    villain.wait_tries(20)
    villain.done.set()
    wait_for(villain.ended, "the task ends")
    own = [output for output in client.outputs("1") if output.ticket == villain.ticket]
    assert own[-1].kind is Kind.REPLY
    assert {output.kind for output in own[:-1]} <= {Kind.CHUNK}
