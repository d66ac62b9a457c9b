"""Relays of several processes and names: who hands over, what becomes of the one that is lost or stopped."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py

from greenroom import (
    BudgetSpent,
    Client,
    GreenroomError,
    InvalidName,
    InvalidRequest,
    Output,
    RedisUnavailable,
    Relay,
)
from greenroom.protocol.keys import Keys
from greenroom.supervisors import handover
from integration.agents import Director, StoreGate, events, eventually
from integration.conftest import Running
from integration.receiver import Receiver, Relaying, lose, says, wait_delivered, wait_renewals

# Several, and the end of one. --------------------------------------------------------------------------


def test_what_a_lost_relay_had_in_hand_is_handed_over_again_by_the_next(
    running: Running, director: Director, relaying: Relaying, receiver: Receiver, client: Client
) -> None:
    relay = relaying()
    running(director.agent())
    held = receiver.hold("42", says("second"))
    for body in ("first", "second", "third"):
        client.send("42", body)
    held.wait()
    lose(relay)
    relaying()
    receiver.wait_bodies("42", "first", "second", "second", "third")


def test_one_that_stands_by_takes_over_at_once_from_one_that_is_stopped(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    redis: redis_py.Redis,
    agent: str,
) -> None:
    other = Receiver()
    relay = relaying(lease=timedelta(seconds=60))
    relaying(other.on_loop, lease=timedelta(seconds=60))
    running(director.agent())
    client.ask("42", "first")
    receiver.wait_bodies("42", "first")
    relay.stop()
    client.ask("42", "second")
    other.wait_bodies("42", "second")
    assert receiver.bodies("42") == ["first"]
    assert len(events(redis, agent, "relay.joined")) == 2
    assert len(events(redis, agent, "relay.registered")) == 1


def test_one_that_stands_by_takes_over_when_the_lease_of_a_lost_one_has_run_out(
    running: Running, director: Director, relaying: Relaying, receiver: Receiver, client: Client
) -> None:
    other = Receiver()
    relay = relaying()
    relaying(other.on_loop)
    running(director.agent())
    held = receiver.hold("42")
    client.send("42", "first")
    held.wait()
    lose(relay)
    other.wait_bodies("42", "first")


def test_relays_of_other_names_are_each_handed_everything(
    running: Running, director: Director, relaying: Relaying, receiver: Receiver, client: Client
) -> None:
    other = Receiver()
    relaying()
    relaying(other.on_loop, name="other")
    running(director.agent())
    held = receiver.hold("42")
    for body in ("first", "second"):
        client.ask("42", body)
    other.wait_bodies("42", "first", "second")
    assert receiver.bodies("42") == ["first"]
    held.release()
    receiver.wait_bodies("42", "first", "second")


def test_a_relay_whose_lease_another_has_stops_handing_over_and_stands_by(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
    renewals: list[str],
) -> None:
    relaying()
    running(director.agent())
    held = receiver.hold("42")
    client.send("42", "first")
    held.wait()
    redis.set(keys.relay("relay"), "another")
    held.wait_cancelled()
    client.ask("43", "not handed over")
    wait_renewals(renewals, 2)
    assert receiver.of("43") == []
    redis.delete(keys.relay("relay"))
    receiver.wait_bodies("43", "not handed over")
    receiver.wait_bodies("42", "first", "first")


def test_what_a_relay_was_answered_before_it_lost_its_lease_is_not_handed_over_after(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
    renewals: list[str],
) -> None:
    """As when its process is suspended, and finds the answer when it wakes."""

    async def suspended(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(handover._Term, "_renew", suspended)
    relay = relaying()
    gate = StoreGate(relay._duty.store)
    relay._duty.store = gate  # type: ignore[assignment]  # it has all that a store has
    running(director.agent())
    answered = gate.after("deliver")
    client.send("42", "first")
    answered.wait()
    eventually(lambda: redis.set(keys.relay("relay"), "another", nx=True), "the lease has run out, and another takes it")
    answered.release()
    wait_renewals(renewals, 2)
    assert receiver.of("42") == []
    redis.delete(keys.relay("relay"))
    receiver.wait_bodies("42", "first")


def test_a_relay_whose_lease_ran_out_and_nobody_took_goes_on_and_repeats_nothing(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
) -> None:
    relaying(lease=timedelta(seconds=60))
    running(director.agent())
    held = receiver.hold("42")
    client.send("42", "first")
    client.send("42", "second")
    held.wait()
    redis.delete(keys.relay("relay"))
    held.release()
    receiver.wait_bodies("42", "first", "second")
    wait_delivered(redis, keys)
    assert redis.exists(keys.relay("relay"))


# The end. ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threaded", [False, True])
def test_stop_lets_the_function_finish_and_acknowledges_that(
    running: Running, director: Director, relaying: Relaying, receiver: Receiver, client: Client, threaded: bool
) -> None:
    relay = relaying(receiver.in_thread if threaded else receiver.on_loop)
    running(director.agent())
    held = receiver.hold("42")
    client.send("42", "first")
    client.send("42", "second")
    held.wait()
    stopping = threading.Thread(target=relay.stop)
    stopping.start()
    eventually(lambda: relay._duty.draining, "the relay is stopping")
    assert not relay.wait(0)
    held.release()
    stopping.join()
    assert relay.wait(0)
    assert receiver.bodies("42") == ["first"]
    relaying()
    receiver.wait_bodies("42", "first", "second")


@pytest.mark.parametrize("threaded", [False, True])
def test_after_the_grace_what_hangs_is_cancelled_or_left_and_handed_over_again_by_the_next(
    running: Running, director: Director, relaying: Relaying, receiver: Receiver, client: Client, threaded: bool
) -> None:
    relay = relaying(receiver.in_thread if threaded else receiver.on_loop)
    running(director.agent())
    held = receiver.hold("42")
    client.send("42", "first")
    held.wait()
    relay.stop(timedelta(milliseconds=50))
    if not threaded:
        held.wait_cancelled()
    relaying(lease=timedelta(seconds=60))  # nothing waits for the lease of the other
    receiver.wait_bodies("42", "first", "first")
    held.release()


def test_a_stopped_relay_leaves_its_lease_and_nothing_runs_on(relaying: Relaying, redis: redis_py.Redis, keys: Keys) -> None:
    before = threading.active_count()
    relay = relaying()
    assert redis.exists(keys.relay("relay"))
    relay.stop()
    relay.stop()
    assert not redis.exists(keys.relay("relay"))
    assert threading.active_count() == before
    with pytest.raises(GreenroomError):
        relay.start()


def test_context_managers_start_and_stop(
    redis_url: str, agent: str, receiver: Receiver, redis: redis_py.Redis, keys: Keys
) -> None:
    async def on_a_loop() -> None:
        async with Relay(agent, receiver.on_loop, redis=redis_url) as relay:
            assert redis.exists(keys.relay("relay"))
        assert relay.wait(0)

    with Relay(agent, receiver.on_loop, redis=redis_url) as relay:
        assert redis.exists(keys.relay("relay"))
    assert relay.wait(0)
    asyncio.run(on_a_loop())
    assert not redis.exists(keys.relay("relay"))


def test_a_relay_that_keeps_failing_ends_and_says_why(relaying: Relaying, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(handover._Term, "_look", fail)
    relay = relaying()
    with pytest.raises(BudgetSpent):
        relay.wait(60)


def test_a_relay_is_not_started_without_redis(agent: str, receiver: Receiver) -> None:
    relay = Relay(agent, receiver.on_loop, redis="redis://127.0.0.1:1")
    with pytest.raises(RedisUnavailable):
        relay.start()
    relay.stop()
    assert relay.wait(0)


def test_arguments_that_cannot_be_used_are_refused(receiver: Receiver) -> None:
    def no_room(output: Output) -> None: ...

    for deliver in (None, "post", no_room, lambda: None):
        with pytest.raises(InvalidRequest, match="deliver"):
            Relay("a", deliver)  # type: ignore[arg-type]  # the point of it
    wrong: list[dict[str, Any]] = [
        {"max_rooms": 0},
        {"max_rooms": True},
        {"retry": 3},
        {"lease": timedelta(milliseconds=999)},
        {"lease": 5},
        {"redis": "http://nowhere"},
    ]
    for options in wrong:
        with pytest.raises(InvalidRequest):
            Relay("a", receiver.on_loop, **options)
    for agent, name in (("{a}", "relay"), ("a", "two words"), ("a", "")):
        with pytest.raises(InvalidName):
            Relay(agent, receiver.on_loop, name=name)
