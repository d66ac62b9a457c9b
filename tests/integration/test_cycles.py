"""Cycles: one a room at a time and in order, state only by commit, and stops that outlive every restart."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py

from greenroom import Agent, AsyncClient, Client, Cycle, Kind, Message, Output
from greenroom.protocol.keys import Keys
from integration.agents import (
    AT_ONCE,
    WAIT_S,
    Director,
    StoreGate,
    abandon,
    eventually,
    ready_of,
    settled,
    wait_output,
)
from integration.conftest import Running

LEASE = timedelta(seconds=1)
LONG = timedelta(seconds=300)  # so long that what is owned but forgotten is not found again within a test


# Order (row 20). ---------------------------------------------------------------------------------------------


class Log:
    """What handlers did, in every system of the test."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begun: dict[str, list[tuple[int, int]]] = defaultdict(list)  # by room: message and ticket
        self.count = 0
        self.failures = random.Random(20)
        self.reached = threading.Condition(self.lock)

    def begin(self, message: Message, ticket: int) -> None:
        with self.lock:
            self.begun[message.room].append((message.id, ticket))
            self.count += 1
            self.reached.notify_all()
            if self.failures.random() < 0.05:
                raise RuntimeError("one of the failures")

    def wait(self, count: int) -> None:
        with self.lock:
            assert self.reached.wait_for(lambda: self.count >= count, WAIT_S), f"{self.count} of {count} runs"


def logging_agent(log: Log) -> type[Agent]:
    class Logging(Agent):
        max_attempts = 50
        retry = AT_ONCE
        abort_timeout = timedelta(seconds=1)

        async def respond(self, message: Message, cycle: Cycle) -> Any:
            log.begin(message, cycle.ticket)
            await cycle.send("chunk")
            cycle.state["seen"] = [*cycle.state.get("seen", []), message.body]
            await asyncio.sleep(0)
            return cycle.state["seen"][-3:]

    return Logging


def check_order(log: Log, client: Client, room: str, sent: list[int]) -> None:
    begun = log.begun[room]
    tickets = [ticket for _, ticket in sorted(begun, key=lambda run: run[1])]
    assert len(set(tickets)) == len(tickets), "a ticket ran twice"
    by_ticket = [message for message, _ in sorted(begun, key=lambda run: run[1])]
    assert by_ticket == sorted(by_ticket), "a later message ran before an earlier one had ended"
    outputs = list(client.outputs(room))
    replies = [output.message for output in outputs if output.kind is Kind.REPLY]
    assert replies == sent, "each message is answered once, in order"
    assert [output.ticket for output in outputs] == sorted(output.ticket for output in outputs), "cycles overlap"


def test_order_holds_over_crashes_replays_takeovers_and_several_workers(running: Running, client: Client) -> None:
    """row 20, row 24"""
    log, rooms = Log(), ["a", "b", "c", "d"]
    agent_class = logging_agent(log)
    systems = [running(agent_class, lease=LEASE) for _ in range(3)]
    sent: dict[str, list[int]] = {room: [] for room in rooms}

    def send(numbers: range) -> None:
        for number in numbers:
            for room in rooms:
                sent[room].append(client.send(room, number))

    send(range(15))
    log.wait(8)
    abandon(systems[0])
    send(range(15, 30))
    log.wait(50)
    systems[1].stop(timedelta(0))  # gives back what runs
    running(agent_class, lease=LEASE)
    send(range(30, 45))
    log.wait(100)
    abandon(systems[2])
    send(range(45, 60))
    for room in rooms:
        last = wait_output(client, room, lambda o, r=room: o.kind is Kind.REPLY and o.message == sent[r][-1])  # type: ignore[misc]
        assert last.body == [57, 58, 59]
        check_order(log, client, room, sent[room])


def test_a_message_that_fails_and_is_replayed_keeps_its_place(running: Running, director: Director, client: Client) -> None:
    """row 20, row 32"""
    running(director.agent())
    for body in ("wait first", "second", "third"):
        client.send("42", body)
    director.run("42").fail()
    director.run("42").fail()
    director.run("42").finish("first")
    wait_output(client, "42", lambda output: output.body == "third")
    assert director.bodies("42") == ["wait first"] * 3 + ["second", "third"]


# Messages that arrive in the gaps (row 26). -------------------------------------------------------------------


def replies(client: Client, room: str) -> list[Any]:
    return [output.body for output in client.outputs(room) if output.kind is Kind.REPLY]


def test_messages_sent_in_the_moment_of_the_last_commit_run_once(
    running: Running, director: Director, redis_url: str, agent: str, client: Client
) -> None:
    """row 26"""
    running(director.agent(), lease=LONG)

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as sender, asyncio.timeout(2 * WAIT_S):
            for number in range(500):  # the reply is seen while the answer to the commit is on its way to the worker
                assert await sender.ask("42", number) == number

    asyncio.run(test())
    assert director.bodies("42") == list(range(500))
    assert replies(client, "42") == list(range(500))
    eventually(lambda: client.status("42").phase is None, "the room is empty")


def test_messages_sent_at_random_moments_of_a_cycle_run_once_on_several_workers(
    running: Running, director: Director, redis_url: str, agent: str, client: Client
) -> None:
    """row 26, row 20"""
    for _ in range(3):
        running(director.agent(), lease=LONG)
    rolls = random.Random(26)

    async def one_room(sender: AsyncClient, room: str) -> None:
        for number in range(100):
            ask = asyncio.create_task(sender.ask(room, number))
            for _ in range(rolls.randrange(12)):
                await asyncio.sleep(0)
            if number % 3:
                await ask
            else:
                await asyncio.gather(ask, sender.ask(room, -number - 1))

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as sender, asyncio.timeout(2 * WAIT_S):
            await asyncio.gather(*[one_room(sender, f"room-{n}") for n in range(5)])

    asyncio.run(test())
    for room in (f"room-{n}" for n in range(5)):
        bodies = director.bodies(room)
        assert sorted(bodies) == sorted([*range(100), *[-n - 1 for n in range(0, 100, 3)]])


@pytest.mark.parametrize("call", ["claim", "commit", "settle"])
def test_a_message_that_arrives_while_redis_answers_that_nothing_is_left(
    running: Running, director: Director, client: Client, call: str
) -> None:
    """row 26"""
    system = running(director.agent(), lease=LONG)
    client.ask("other", "the dispatcher is up")
    gate = StoreGate.of(system)
    hold = gate.before("claim") if call == "claim" else gate.after(call)
    message = client.send("42", "wait" if call == "settle" else "first")
    if call == "claim":
        hold.wait()
        client.discard("42", message)  # nothing is left when the claim arrives
    elif call == "settle":
        director.run("42")
        client.interrupt("42")
    hold.wait()
    second = client.send("42", "second")
    eventually(lambda: system._worker.context.active.get("42") == ready_of(client, "42"), "the new entry is handed over")
    hold.release()
    wait_output(client, "42", lambda output: output.message == second and output.kind is Kind.REPLY)
    assert director.bodies("42").count("second") == 1


def test_messages_sent_while_a_room_crashes_and_starts_again_run_once(
    running: Running, director: Director, client: Client
) -> None:
    """row 26, row 34"""
    system = running(director.agent(max_attempts=10), lease=LONG)
    client.ask("42", "up")
    gate = StoreGate.of(system)
    sent = []
    for number in range(5):
        hold = gate.after("commit")
        sent.append(client.send("42", number))
        hold.wait()
        sent.append(client.send("42", f"while {number}"))
        hold.release(RuntimeError("the room's actor fails"))
        sent.append(client.send("42", f"after {number}"))
        wait_output(client, "42", lambda output: output.message == sent[-1] and output.kind is Kind.REPLY)
    committed = [output.message for output in client.outputs("42") if output.kind is Kind.REPLY]
    assert committed[1:] == sent


def test_messages_sent_while_a_room_is_handed_over_run_once(running: Running, director: Director, client: Client) -> None:
    """row 26, row 38"""
    agent_class = director.agent()
    system = running(agent_class, lease=LONG)
    sent: list[int] = []
    done = threading.Event()

    def send() -> None:
        while not done.is_set():
            for room in ("42", "43"):
                sent.append(client.send(room, len(sent)))
            wait_output(client, "43", lambda output: output.message == sent[-1] and output.kind is Kind.REPLY)

    sender = threading.Thread(target=send)
    sender.start()
    for _ in range(6):
        successor = running(agent_class, lease=LONG)
        system.stop(timedelta(seconds=WAIT_S))
        system = successor
    done.set()
    sender.join(WAIT_S)
    assert not sender.is_alive()
    for room in ("42", "43"):
        mine = sent[0::2] if room == "42" else sent[1::2]
        wait_output(client, room, lambda output, last=mine[-1]: output.message == last)  # type: ignore[misc]
        ended = [output.message for output in client.outputs(room) if output.kind is Kind.REPLY]
        assert ended == mine


# State (row 24). ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("how", ["interrupt", "stop", "fail", "crash"])
def test_state_of_a_cycle_that_did_not_commit_leaves_no_trace(
    running: Running, director: Director, client: Client, how: str, threaded: bool
) -> None:
    """row 24"""
    agent_class = director.agent(threaded=threaded)
    system = running(agent_class, lease=LEASE)
    client.send("42", "wait")
    committed = director.run("42")
    committed.do(lambda cycle: cycle.state.update(n=1, keep=["a"]))
    committed.finish()
    client.send("42", "wait")
    spoilt = director.run("42")
    assert spoilt.do(lambda cycle: dict(cycle.state)) == {"n": 1, "keep": ["a"]}
    spoilt.do(lambda cycle: cycle.state.update(n=2))
    spoilt.do(lambda cycle: cycle.state["keep"].append("b"))
    if how == "fail":
        spoilt.fail()
    elif how == "crash":
        running(agent_class, lease=LEASE)
        abandon(system)
    else:
        getattr(client, how)("42")
        spoilt.wait_cancelled()
    if how == "stop":
        client.play("42")
    if how == "interrupt":
        client.send("42", "wait")
    after = director.run("42")
    assert after.do(lambda cycle: dict(cycle.state)) == {"n": 1, "keep": ["a"]}
    after.do(lambda cycle: cycle.state.update(n=3))
    after.finish()
    client.send("42", "wait")
    assert director.run("42").do(lambda cycle: cycle.state["n"]) == 3


@pytest.mark.parametrize("how", ["interrupt", "stop"])
def test_state_of_a_commit_that_an_abort_was_faster_than_leaves_no_trace(
    running: Running, director: Director, client: Client, how: str
) -> None:
    """row 24, row 7"""
    gate = StoreGate.of(running(director.agent()))
    client.send("42", "wait")
    run = director.run("42")
    run.do(lambda cycle: cycle.state.update(n=1))
    hold = gate.before("commit")
    run.finish("too late")
    hold.wait()
    client.send("42", "wait")
    getattr(client, how)("42")
    hold.release()
    assert settled(client, "42", run.ticket).kind is Kind.ABORTED
    if how == "stop":
        client.play("42")
    assert director.run("42").do(lambda cycle: dict(cycle.state)) == {}


def test_state_may_be_emptied(running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys) -> None:
    """row 24"""
    running(director.agent())
    client.send("42", "wait")
    first = director.run("42")
    first.do(lambda cycle: cycle.state.update(n=1))
    first.finish()
    settled(client, "42", first.ticket)
    assert redis.exists(keys.state("42"))
    client.send("42", "wait")
    second = director.run("42")
    second.do(lambda cycle: cycle.state.clear())
    second.finish()
    settled(client, "42", second.ticket)
    assert not redis.exists(keys.state("42"))


def test_state_of_rooms_is_their_own(running: Running, director: Director, client: Client) -> None:
    """row 24"""
    running(director.agent())
    for room in ("a", "b"):
        client.send(room, "wait")
    a, b = director.run("a"), director.run("b")
    a.do(lambda cycle: cycle.state.update(room="a"))
    assert b.do(lambda cycle: dict(cycle.state)) == {}
    a.finish()
    settled(client, "a", a.ticket)
    assert b.do(lambda cycle: dict(cycle.state)) == {}


class Resuming(Agent):
    """Goes through numbered pages, one a message; knows where it was. "hold" makes it wait for ever after its page."""

    max_attempts = 5
    abort_timeout = timedelta(seconds=1)
    retry = AT_ONCE

    async def respond(self, message: Message, cycle: Cycle) -> Any:
        cycle.state["page"] = cycle.state.get("page", 0) + 1
        await cycle.send(cycle.state["page"])
        if message.body == "hold":
            await asyncio.Event().wait()
        return cycle.state["page"]


def test_an_agent_resumes_where_it_was_over_interrupt_stop_and_crash(running: Running, client: Client) -> None:
    """row 24"""

    def held() -> int:
        """Send a message whose cycle stays on its page; wait for that."""
        message = client.send("42", "hold")
        seen(message, Kind.CHUNK)
        return message

    def seen(message: int, kind: Kind, count: int = 1) -> None:
        tickets = set()

        def fits(output: Output) -> bool:
            if output.message == message and output.kind is kind:
                tickets.add(output.ticket)
            return len(tickets) == count

        wait_output(client, "42", fits)

    system = running(Resuming, lease=LEASE)
    assert client.ask("42", "go") == 1
    held()
    client.interrupt("42")
    stopped = held()
    client.stop("42")
    seen(stopped, Kind.ABORTED)
    client.play("42")
    seen(stopped, Kind.CHUNK, 2)
    client.interrupt("42")
    crashed = held()
    abandon(system)
    running(Resuming, lease=LEASE)
    seen(crashed, Kind.CHUNK, 2)
    client.interrupt("42")
    assert client.ask("42", "go") == 2
    chunks = [output.body for output in client.outputs("42") if output.kind is Kind.CHUNK]
    assert chunks == [1, 2, 2, 2, 2, 2, 2]
