"""A relay whose Redis goes away, comes back, refuses or forgets; and hints that are lost."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py

from greenroom import Client, Kind
from greenroom.protocol.keys import Keys
from greenroom.protocol.server import RedisServer
from greenroom.supervisors import handover
from integration.agents import WAIT_S, Director, StoreGate, eventually, wait_for, wait_logged, wait_output
from integration.conftest import Running
from integration.receiver import Receiver, Relaying

ROOMS = [f"room-{number}" for number in range(5)]


@pytest.fixture
def redis_url(server: RedisServer) -> str:
    """Systems, relays and clients of these tests talk to the test's own server."""
    return server.url


@pytest.fixture
def client(redis_url: str, agent: str) -> Iterator[Client]:
    with Client(agent, redis=redis_url, timeout=2 * WAIT_S) as client:
        yield client


def once(receiver: Receiver, room: str) -> list[str]:
    """The ids of what was handed over, in order of their first time."""
    return list(dict.fromkeys(output.id for output in receiver.of(room)))


@pytest.mark.parametrize("lease_s", [1, 60])
def test_a_redis_that_is_killed_and_started_again_costs_no_output_and_no_order(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    server: RedisServer,
    lease_s: int,
) -> None:
    relay = relaying(lease=timedelta(seconds=lease_s))
    running(director.agent())
    for number in range(30):
        for room in ROOMS:
            client.send(room, number)
        if number % 10 == 5:
            server.kill()
            server.start()
    for room in ROOMS:
        wait_output(client, room, lambda output: output.body == 29)
        receiver.wait_last(room, 29)
        assert once(receiver, room) == [output.id for output in client.outputs(room)]
        replies = [output.body for output in receiver.of(room) if output.kind is Kind.REPLY]
        assert replies == sorted(replies)
    assert relay._duty.store.pipeline.reconnects >= 1


def test_connections_that_are_killed_cost_nothing_and_repeat_nothing(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    redis: redis_py.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handover, "LOOK_S", 3600.0)
    relaying()
    running(director.agent())
    for number in range(30):
        for room in ROOMS:
            client.send(room, number)
        if number % 10 == 5:
            for kind in ("normal", "pubsub"):
                redis.client_kill_filter(_type=kind, skipme=True)
    for room in ROOMS:
        receiver.wait_last(room, 29)
        assert receiver.bodies(room) == list(range(30))


def test_an_answer_that_redis_cannot_write_down_repeats_no_call(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is out of memory: that the first is done with is said again and again, and the first is not handed over again."""

    def connections() -> int:
        stats: Any = redis.info("stats")
        return int(stats["total_connections_received"])

    caplog.set_level(logging.WARNING)
    relaying(lease=timedelta(seconds=60))
    running(director.agent())
    held = receiver.hold("42")
    client.ask("42", "first")
    client.ask("42", "second")
    held.wait()
    redis.config_set("maxmemory", "1")
    held.release()
    eventually(lambda: "command not allowed when used memory" in caplog.text, "Redis refuses")
    tried = connections()
    eventually(lambda: connections() > tried + 3, "it is said again and again")
    redis.config_set("maxmemory", "0")
    receiver.wait_bodies("42", "first", "second")


def test_a_relay_whose_redis_was_emptied_registers_anew_and_warns(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    relaying()
    redis.flushall()
    eventually(lambda: redis.hexists(keys.relays, "relay"), "the relay registers anew")
    running(director.agent())
    client.ask("42", "hello")
    receiver.wait_bodies("42", "hello")
    wait_logged(caplog, "relay.registered_anew")


def test_a_relay_is_told_of_what_is_new_and_needs_not_look_by_itself(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handover, "LOOK_S", 3600.0)
    relaying()
    running(director.agent())
    for number in range(50):
        room = ROOMS[number % len(ROOMS)]
        client.ask(room, number)
        receiver.wait_last(room, number)


def test_a_relay_that_could_not_hear_looks_when_it_hears_again(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    redis: redis_py.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deaf, hears = threading.Event(), threading.Event()

    async def until_told(*_: object) -> None:
        deaf.set()
        await asyncio.to_thread(hears.wait, WAIT_S)

    monkeypatch.setattr(handover, "LOOK_S", 3600.0)
    monkeypatch.setattr(handover, "back_off", until_told)
    relaying()
    running(director.agent())
    client.ask("42", "first")
    receiver.wait_bodies("42", "first")
    redis.client_kill_filter(_type="pubsub")
    wait_for(deaf, "the relay hears nothing")
    client.ask("42", "second")
    hears.set()
    receiver.wait_bodies("42", "first", "second")


def test_a_relay_finds_what_it_was_not_told_of(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def deaf(_: object) -> None:
        return

    monkeypatch.setattr(handover, "LOOK_S", 0.05)
    monkeypatch.setattr(handover._Term, "_listen", deaf)
    relaying()
    running(director.agent())
    for number in range(5):
        client.ask("42", number)
        receiver.wait_last("42", number)


def test_what_is_sent_while_a_room_is_found_empty_is_not_overlooked(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handover, "LOOK_S", 3600.0)
    relay = relaying()
    gate = StoreGate(relay._duty.store)
    relay._duty.store = gate  # type: ignore[assignment]  # it has all that a store has
    running(director.agent())
    held = receiver.hold("42")
    client.ask("42", "first")
    held.wait()
    empty = gate.after("deliver")
    held.release()
    empty.wait()
    client.ask("42", "second")
    client.ask("43", "hello")
    receiver.wait_bodies("43", "hello")  # it has been told of both
    empty.release()
    receiver.wait_bodies("42", "first", "second")
