"""A relay hands each output to a function: at least once, in order in each room, and not what was aborted."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import redis as redis_py

from greenroom import (
    AsyncClient,
    Backoff,
    BudgetSpent,
    Client,
    GreenroomError,
    InvalidName,
    InvalidRequest,
    Kind,
    NotFound,
    Output,
    RedisUnavailable,
    Reject,
    Relay,
    RelayRuns,
)
from greenroom.protocol.keys import Keys
from greenroom.supervisors import handover
from integration.agents import Director, StoreGate, events, eventually, wait_event, wait_output
from integration.conftest import Running
from integration.receiver import Receiver, Relaying, lose

MANY = 2500  # outputs: more than an outbox keeps


def undelivered(redis: redis_py.Redis, keys: Keys, name: str = "relay") -> dict[str, str]:
    """The rooms that have outputs which that relay has not handed over, with the first of these."""
    rows: Any = redis.hgetall(keys.undelivered(name))
    return dict(rows)


def wait_delivered(redis: redis_py.Redis, keys: Keys, name: str = "relay") -> None:
    eventually(lambda: not undelivered(redis, keys, name), f"relay {name} is done with all that was sent")


def says(body: Any) -> Callable[[Output], bool]:
    return lambda output: bool(output.body == body)


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tokens with which relays have asked for their lease so far."""
    asked: list[str] = []
    renew = handover.Duty.renew

    async def counted(duty: handover.Duty) -> None:
        asked.append(duty.token)
        await renew(duty)

    monkeypatch.setattr(handover.Duty, "renew", counted)
    return asked


def wait_renewals(renewals: list[str], count: int) -> None:
    wanted = len(renewals) + count
    eventually(lambda: len(renewals) >= wanted, f"{count} more renewals")


# In order, each of them. ------------------------------------------------------------------------------


@pytest.mark.parametrize("threaded", [False, True])
def test_every_output_is_handed_over_once_and_in_its_rooms_order(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
    threaded: bool,
) -> None:
    relaying(receiver.in_thread if threaded else receiver.on_loop)
    running(director.agent(max_attempts=2))
    rooms = [f"room-{number}" for number in range(8)]
    for number in range(10):
        for room in rooms:
            client.send(room, "fail" if number == 3 else number)
    for room in rooms:
        wait_output(client, room, lambda output: output.body == 9)
    wait_delivered(redis, keys)
    for room in rooms:
        assert receiver.of(room) == list(client.outputs(room))
        assert Kind.DEAD in {output.kind for output in receiver.of(room)}


def test_the_function_never_runs_on_the_thread_of_redis_traffic(
    running: Running, director: Director, relaying: Relaying, receiver: Receiver, client: Client
) -> None:
    relaying(receiver.on_loop, name="on-loop")
    relaying(receiver.in_thread, name="in-thread")
    running(director.agent())
    client.ask("42", "hello")
    receiver.wait_bodies("42", "hello", "hello")
    assert receiver.threads == {"greenroom-relay-user", "greenroom-call"}


def test_a_function_that_blocks_its_thread_holds_up_neither_the_lease_nor_other_rooms(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
    agent: str,
    renewals: list[str],
) -> None:
    relaying(receiver.in_thread)
    running(director.agent())
    held = receiver.hold("42")
    client.send("42", "blocks")
    held.wait()
    for number in range(3):
        client.send("43", number)
        receiver.wait_last("43", number)
    wait_renewals(renewals, 4)  # over more than the lease
    held.release()
    wait_delivered(redis, keys)
    assert receiver.bodies("42") == ["blocks"]
    assert len(events(redis, agent, "relay.joined")) == 1


def test_a_plain_function_around_a_coroutine_function_is_awaited(
    running: Running, director: Director, relaying: Relaying, receiver: Receiver, client: Client
) -> None:
    receiver.refuse("42", ValueError("not yet"))
    relaying(lambda room, output: receiver.on_loop(room, output))
    running(director.agent())
    client.send("42", "hello")
    receiver.wait_bodies("42", "hello", "hello")
    assert receiver.threads == {"greenroom-relay-user"}


def test_an_object_with_an_async_call_runs_on_the_loop(
    running: Running, director: Director, relaying: Relaying, receiver: Receiver, client: Client
) -> None:
    class Post:
        async def __call__(self, room: str, output: Output) -> None:
            await receiver.on_loop(room, output)

    relaying(Post())
    relaying(partial(receiver.on_loop), name="other")
    running(director.agent())
    client.send("42", "hello")
    receiver.wait_bodies("42", "hello", "hello")
    assert receiver.threads == {"greenroom-relay-user"}


def test_what_was_sent_before_the_first_start_is_not_handed_over_and_all_that_came_since_is(
    running: Running, director: Director, relaying: Relaying, receiver: Receiver, client: Client
) -> None:
    running(director.agent())
    client.ask("42", "before")
    relaying().stop()
    client.ask("42", "while none runs")
    client.ask("43", "neither")
    relaying()
    receiver.wait_bodies("42", "while none runs")
    receiver.wait_bodies("43", "neither")


def test_no_more_rooms_at_once_than_max_rooms_and_a_long_one_gives_way(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
) -> None:
    running(director.agent())
    relaying().stop()
    for number in range(2 * handover.TURN):
        client.ask("long", number)
    client.ask("short", "me too")
    held = receiver.hold("long")
    relaying(max_rooms=1)
    eventually(lambda: held.reached.is_set() or receiver.bodies("short"), "the relay begins")
    held.release()
    wait_delivered(redis, keys)
    assert receiver.most_at_once == 1
    assert receiver.bodies("long") == list(range(2 * handover.TURN))
    order = [room for room, _ in receiver.given]
    assert order.index("short") in (0, handover.TURN)


# What raises. ------------------------------------------------------------------------------------------


def test_what_raises_is_tried_again_until_it_does_not_while_other_rooms_go_on(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    relaying(retry=Backoff(first=timedelta(milliseconds=50), most=timedelta(milliseconds=50)), max_rooms=1)
    running(director.agent())
    errors = [RuntimeError("down"), SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt()]
    receiver.refuse("42", *errors, fits=says("first"))
    client.send("42", "first")
    client.send("42", "second")
    client.send("43", "meanwhile")
    receiver.wait_bodies("43", "meanwhile")
    receiver.wait_bodies("42", *["first"] * 5, "second")
    assert len({output.id for output in receiver.of("42")[:5]}) == 1
    assert caplog.text.count("relay.failed") == 4
    assert "RuntimeError: down" in caplog.text


def test_each_further_try_of_an_output_waits_longer_and_the_next_output_starts_anew(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[int] = []

    def at_once(_: Backoff, tried: int) -> float:
        tries.append(tried)
        return 0.0

    monkeypatch.setattr(Backoff, "delay_s", at_once)
    relaying()
    running(director.agent())
    receiver.refuse("42", *[RuntimeError("down")] * 3, fits=says("first"))
    receiver.refuse("42", RuntimeError("down"), fits=says("second"))
    client.send("42", "first")
    client.send("42", "second")
    receiver.wait_bodies("42", *["first"] * 4, "second", "second")
    assert tries == [1, 2, 3, 1]


def test_reject_passes_over_that_output_at_once_with_an_event_and_a_warning(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    redis: redis_py.Redis,
    agent: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    relaying()
    running(director.agent())
    receiver.refuse("42", Reject("no such chat"))
    client.send("42", "first")
    client.send("42", "second")
    receiver.wait_bodies("42", "first", "second")
    first = receiver.of("42")[0]
    [rejected] = events(redis, agent, "output.rejected")
    assert (rejected["room"], rejected["output"], rejected["error"]) == ("42", first.id, "no such chat")
    assert "relay.rejected" in caplog.text


def test_an_entry_that_is_no_output_is_passed_over_and_told(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
    agent: str,
) -> None:
    running(director.agent())
    relaying().stop()
    client.ask("42", "first")
    for fields in ({"what": "is this"}, {"kind": "reply", "message": "1-0", "ticket": "1", "seq": "1", "body": b"\xc1"}):
        redis.xadd(keys.outbox("42"), fields)  # type: ignore[arg-type]  # that they are no good is the point
    client.send("42", "last")  # not ask: it would read those, too
    relaying()
    receiver.wait_bodies("42", "first", "last")
    assert "not an output" in wait_event(redis, agent, "output.rejected", count=2)["error"]


# What is aborted. --------------------------------------------------------------------------------------


@pytest.mark.parametrize("signal", ["stop", "interrupt", "stop everywhere"])
def test_once_a_signal_has_answered_no_further_chunk_of_its_cycle_is_handed_over(
    running: Running, director: Director, relaying: Relaying, receiver: Receiver, client: Client, signal: str
) -> None:
    relaying()
    running(director.agent())
    held = receiver.hold("42")
    client.send("42", "wait")
    first = director.run("42")
    for body in ("a", "b", "c"):
        first.send(body)
    held.wait()
    if signal == "stop everywhere":
        client.stop(everywhere=True)
    else:
        getattr(client, signal)("42")
    held.release()
    receiver.wait_bodies("42", "a", "aborted")
    assert [output.body for output in client.outputs("42") if output.kind is Kind.CHUNK] == ["a", "b", "c"]
    if signal == "interrupt":
        client.send("42", "wait")
    else:
        client.play("42") if signal == "stop" else client.play(everywhere=True)
    again = director.run("42")
    again.send("d")
    again.finish("e")
    receiver.wait_bodies("42", "a", "aborted", "d", "e")


def test_a_chunk_that_waits_for_its_next_try_is_not_tried_again_after_a_stop(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
) -> None:
    relaying(retry=Backoff(first=timedelta(seconds=1), most=timedelta(seconds=1)))
    running(director.agent())
    held = receiver.hold("42")
    client.send("42", "wait")
    director.run("42").send("a")
    held.wait()
    client.stop("42")
    held.release(RuntimeError("down"))
    receiver.wait_bodies("42", "a", "aborted")
    wait_delivered(redis, keys)


def test_chunks_that_wait_while_no_relay_runs_do_not_go_out_after_a_stop_and_neither_do_those_in_hand(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
) -> None:
    """The cycle has ended long before a relay looks."""
    relay = relaying()
    running(director.agent())
    held = receiver.hold("42")
    client.send("42", "wait")
    run = director.run("42")
    run.send("a")
    held.wait()
    lose(relay)
    run.send("b")
    client.interrupt("42")
    client.ask("42", "next")
    assert redis.smembers(keys.aborted("42")) == {str(run.ticket)}
    relaying()
    receiver.wait_bodies("42", "a", "aborted", "next")
    wait_delivered(redis, keys)
    assert not redis.exists(keys.aborted("42"))


def test_chunks_of_a_shielded_cycle_go_out_until_its_shield_is_down(
    running: Running, director: Director, relaying: Relaying, receiver: Receiver, client: Client
) -> None:
    relaying()
    running(director.agent(interruptible=False))
    client.send("42", "wait")
    run = director.run("42")
    client.stop("42")
    run.send("a")
    receiver.wait_bodies("42", "a")
    run.finish("done")
    receiver.wait_bodies("42", "a", "done")


def test_chunks_of_a_failed_cycle_are_handed_over(
    running: Running, director: Director, relaying: Relaying, receiver: Receiver, client: Client
) -> None:
    relaying()
    running(director.agent(max_attempts=1))
    held = receiver.hold("42")
    client.send("42", "wait")
    run = director.run("42")
    run.send("a")
    run.send("b")
    run.fail()
    wait_output(client, "42", lambda output: output.kind is Kind.DEAD)
    held.release()
    receiver.wait_bodies("42", "a", "b", "failed", "dead")


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


# What is kept, and for how long. -----------------------------------------------------------------------


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
    redis.hset(keys.undelivered("relay"), mapping={f"room-{number}": "1-1" for number in range(3000)})
    client.forget_relay("relay")
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
