"""A relay hands each output to a function, at least once and in order in each room; what raises, and what is aborted."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from functools import partial

import pytest
import redis as redis_py

from greenroom import (
    Backoff,
    Client,
    Kind,
    Output,
    Reject,
)
from greenroom.protocol.keys import Keys
from greenroom.supervisors import handover
from integration.agents import Director, events, eventually, wait_event, wait_output
from integration.conftest import Running
from integration.receiver import Receiver, Relaying, lose, says, wait_delivered, wait_renewals

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
    assert "error=RuntimeError " in caplog.text or "error=RuntimeError\n" in caplog.text
    assert "down" not in caplog.text, "what it says may be a part of an output"


def test_where_an_output_failed_is_logged_once_while_it_fails_of_the_same(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    relaying(retry=Backoff(first=timedelta(milliseconds=1), most=timedelta(milliseconds=1)))
    running(director.agent())
    receiver.refuse("42", *[OSError("down") for _ in range(3)], ValueError("wrong"), OSError("down"), fits=says("first"))
    receiver.refuse("42", OSError("down"), fits=says("second"))
    client.send("42", "first")
    client.send("42", "second")
    receiver.wait_bodies("42", *["first"] * 6, *["second"] * 2)
    said = [getattr(record, "greenroom", {}) for record in caplog.records if "event=relay.failed" in record.getMessage()]
    assert [(each["tries"], "stack" in each) for each in said] == [
        (1, True),
        (2, False),
        (3, False),
        (4, True),
        (5, True),
        (1, True),
    ]


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


def test_a_rejection_whose_words_are_no_text_still_passes_over_its_output(
    running: Running,
    director: Director,
    relaying: Relaying,
    receiver: Receiver,
    client: Client,
    redis: redis_py.Redis,
    agent: str,
) -> None:
    relaying()
    running(director.agent())
    receiver.refuse("42", Reject("no such file: caf\udce9"))
    client.send("42", "first")
    client.send("42", "second")
    receiver.wait_bodies("42", "first", "second")
    [rejected] = events(redis, agent, "output.rejected")
    assert rejected["error"] == r"no such file: caf\udce9"


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


def test_what_an_interrupted_cycle_says_at_its_end_is_handed_over(
    running: Running, director: Director, relaying: Relaying, receiver: Receiver, client: Client
) -> None:
    relaying()
    running(director.agent(on_interrupt=lambda *_: "I was saying something"))
    held = receiver.hold("42")
    client.send("42", "wait")
    run = director.run("42")
    for body in ("a", "b"):
        run.send(body)
    held.wait()
    client.interrupt("42")
    held.release()
    receiver.wait_bodies("42", "a", "I was saying something", "aborted")


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
