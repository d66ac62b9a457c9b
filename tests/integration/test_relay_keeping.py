"""What Redis keeps for relays, and for how long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis as redis_py

from greenroom import (
    AsyncClient,
    Client,
    InvalidName,
    NotFound,
    RelayRuns,
)
from greenroom.protocol.keys import Keys
from integration.agents import Director, events, wait_output
from integration.conftest import Running
from integration.receiver import Receiver, Relaying, undelivered, wait_delivered

MANY = 2500  # outputs: more than an outbox keeps


def _send_many(client: Client, director: Director, room: str) -> None:
    """A cycle with so many chunks that an outbox would not keep them, and its reply."""
    client.send(room, "wait")
    run = director.run(room)

    async def send(cycle: Any) -> None:
        for number in range(MANY):
            await cycle.send(number)

    run.do(send)
    run.finish("end")
    wait_output(client, room, lambda output: output.body == "end")


def test_nothing_is_trimmed_that_a_relay_has_not_handed_over_and_the_rest_is(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
) -> None:
    running(director.agent())
    other = Receiver()
    relaying().stop()
    relaying(other.on_loop, name="other").stop()
    _send_many(client, director, "42")
    assert redis.xlen(keys.outbox("42")) == MANY + 1
    relaying()
    receiver.wait_last("42", "end")
    wait_delivered(redis, keys)
    assert receiver.bodies("42") == [*range(MANY), "end"]
    assert redis.xlen(keys.outbox("42")) == MANY + 1
    relaying(other.on_loop, name="other")
    other.wait_last("42", "end")
    wait_delivered(redis, keys, "other")
    assert other.of("42") == receiver.of("42")
    assert 1000 <= redis.xlen(keys.outbox("42")) < 1200


def test_without_relays_outboxes_are_trimmed_and_nothing_is_kept_for_them(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    running(director.agent())
    _send_many(client, director, "42")
    assert 1000 <= redis.xlen(keys.outbox("42")) < 1200
    found: Any = redis.keys(f"{keys.root.replace('{', '[{]')}:*")
    assert not [key for key in found if "relay" in key or "undelivered" in key or "aborted" in key]


def test_forgetting_a_relay_frees_what_was_kept_for_it_and_leaves_no_key(
    running: Running, director: Director, relaying: Relaying, client: Client, redis: redis_py.Redis, keys: Keys, agent: str
) -> None:
    relaying().stop()
    running(director.agent())
    client.send("42", "wait")
    director.run("42").send("a")
    client.interrupt("42")
    _send_many(client, director, "42")
    client.ask("43", "hello")
    assert set(undelivered(redis, keys)) == {"42", "43"}
    assert redis.exists(keys.aborted("42"))
    client.forget_relay("relay")
    assert not redis.exists(keys.relays, keys.relay("relay"), keys.undelivered("relay"), keys.aborted("42"))
    assert redis.xlen(keys.outbox("42")) < 1200
    client.ask("43", "again")
    assert not redis.exists(keys.undelivered("relay"))
    assert len(events(redis, agent, "relay.forgotten", relay="relay")) == 1


def test_forgetting_takes_as_many_calls_as_its_rooms_need(
    relaying: Relaying, redis: redis_py.Redis, keys: Keys, client: Client
) -> None:
    relaying().stop()
    redis.hset(keys.undelivered("relay"), mapping={f"room-{number}": "1-1" for number in range(20_000)})
    client.forget_relay("relay")  # it never ended where each call began anew: the beginning of the hash was empty by then
    assert not redis.exists(keys.undelivered("relay"))


def test_a_relay_that_runs_is_not_forgotten_and_one_that_is_unknown_is_not_found(
    relaying: Relaying, client: Client, redis_url: str, agent: str
) -> None:
    relay = relaying()
    with pytest.raises(RelayRuns, match=relay._duty.token):
        client.forget_relay("relay")
    relay.stop()

    async def forget() -> None:
        async with AsyncClient(agent, redis=redis_url) as asynchronous:
            await asynchronous.forget_relay("relay")
            with pytest.raises(NotFound):
                await asynchronous.forget_relay("relay")

    asyncio.run(forget())
    with pytest.raises(InvalidName):
        client.forget_relay("two words")


def test_a_relay_that_was_forgotten_begins_anew(
    running: Running, director: Director, relaying: Relaying, receiver: Receiver, client: Client
) -> None:
    running(director.agent())
    relaying().stop()
    client.ask("42", "for nobody")
    client.forget_relay("relay")
    relaying()
    client.ask("42", "for it")
    receiver.wait_bodies("42", "for it")
