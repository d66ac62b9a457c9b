"""An ask that streams: each output of its message as it comes, and how it ended. And no ask that hangs or is half answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py

from greenroom import (
    Agent,
    AskTimeout,
    AsyncClient,
    Client,
    Conflict,
    Cycle,
    Durability,
    GreenroomError,
    InvalidBody,
    InvalidName,
    Kind,
    Message,
    NotReplicated,
    Output,
    QueueFull,
    Reject,
    ReplyLost,
)
from greenroom.protocol import outbox
from greenroom.protocol.keys import Keys
from greenroom.protocol.wakeups import Wakeups
from integration.agents import WAIT_S, Director, asked, eventually, run, wait_output
from integration.conftest import Running

MORE_THAN_KEPT = 1200


def streamed(client: AsyncClient, **options: Any) -> AsyncIterator[Output]:
    """A stream of a message that waits for the director."""
    return client.ask("42", "wait", stream=True, timeout=WAIT_S, **options)


def told(output: Output, ticket: int) -> tuple[Kind, int, Any, bool]:
    assert output.ticket == ticket
    return output.kind, output.seq, output.body, output.final


async def rest(outputs: AsyncIterator[Output]) -> list[Output]:
    return [output async for output in outputs]


async def ended(client: AsyncClient, room: str, body: Any, *, stream: bool, **options: Any) -> None:
    """Ask, in either way, to the end."""
    await (rest(client.ask(room, body, stream=True, **options)) if stream else client.ask(room, body, **options))


# What a stream gives (row 31, row 23). -----------------------------------------------------------------------


def test_each_chunk_is_read_while_the_handler_runs_and_the_reply_is_the_last(
    running: Running, director: Director, redis_url: str, agent: str
) -> None:
    """row 23, row 31"""
    running(director.agent())

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            outputs = streamed(client)
            first = asyncio.ensure_future(anext(outputs))
            steered = await director.arun("42")
            await asyncio.to_thread(steered.send, "a")
            assert told(await first, steered.ticket) == (Kind.CHUNK, 1, "a", False)
            await asyncio.to_thread(steered.send, "b")
            assert told(await anext(outputs), steered.ticket) == (Kind.CHUNK, 2, "b", False)
            assert not steered.ended.is_set()
            steered.finish("c")
            assert [told(output, steered.ticket) for output in await rest(outputs)] == [(Kind.REPLY, 3, "c", True)]

    run(test)


def test_a_stream_goes_on_through_stop_and_play_with_another_ticket(
    running: Running, director: Director, redis_url: str, agent: str
) -> None:
    """row 31, row 23"""
    running(director.agent())

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            outputs = streamed(client)
            chunk = asyncio.ensure_future(anext(outputs))
            first = await director.arun("42")
            await asyncio.to_thread(first.send, "a")
            await chunk
            await client.stop("42")
            stopped = await anext(outputs)
            assert told(stopped, first.ticket) == (Kind.ABORTED, 2, None, False)
            assert stopped.mode == "stop"
            await client.play("42")
            second = await director.arun("42")
            await asyncio.to_thread(second.send, "b")
            second.finish()
            kinds = [told(output, second.ticket) for output in await rest(outputs)]
            assert kinds == [(Kind.CHUNK, 1, "b", False), (Kind.REPLY, 2, None, True)]

    run(test)


def test_a_stream_shows_each_failed_attempt_and_ends_with_the_dead_letter(
    running: Running, director: Director, redis_url: str, agent: str
) -> None:
    """row 31"""
    running(director.agent(max_attempts=2))

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            outputs = await rest(client.ask("42", "fail: no luck", stream=True, timeout=WAIT_S))
            assert [(output.kind, output.final) for output in outputs] == [
                (Kind.FAILED, False),
                (Kind.FAILED, False),
                (Kind.DEAD, True),
            ]
            assert all(output.error == "RuntimeError: fail: no luck" for output in outputs)

    run(test)


@pytest.mark.parametrize("how", ["interrupt", "reject", "discard"])
def test_a_stream_ends_with_what_ended_the_message(
    running: Running, director: Director, redis_url: str, agent: str, how: str
) -> None:
    """row 31"""
    running(director.agent())

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            if how == "discard":
                await client.pause("42")
                message = await client.send("42", "wait", key="mine")
                outputs = streamed(client, key="mine")
                last = asyncio.ensure_future(anext(outputs))
                await client.discard("42", message)
            else:
                outputs = streamed(client)
                last = asyncio.ensure_future(anext(outputs))
                steered = await director.arun("42")
                if how == "interrupt":
                    await client.interrupt("42")
                else:
                    steered.fail(Reject("never"))
            output = await last
            ends = {"interrupt": Kind.ABORTED, "reject": Kind.DEAD, "discard": Kind.DISCARDED}
            assert (output.kind, output.final) == (ends[how], True)
            assert await rest(outputs) == []

    run(test)


def test_a_stream_has_the_outputs_of_its_own_message_and_no_other(
    running: Running, director: Director, redis_url: str, agent: str
) -> None:
    """row 31"""
    running(director.agent())

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            streams = [rest(client.ask("42", number, stream=True, timeout=WAIT_S)) for number in range(20)]
            outputs = await asyncio.gather(*streams)
            assert [[output.body for output in own] for own in outputs] == [[number] for number in range(20)]

    run(test)


def test_a_stream_with_a_key_that_was_answered_long_ago_gives_the_same_again(
    running: Running, director: Director, redis_url: str, agent: str
) -> None:
    """row 31"""
    running(director.agent())

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            once = await rest(client.ask("42", "hello", stream=True, key="mine"))
            await client.ask("42", "other")
            assert await rest(client.ask("42", "hello", stream=True, key="mine")) == once

    run(test)
    assert director.bodies("42") == ["hello", "other"]


def test_the_sync_client_and_the_rooms_of_both_stream_the_same(
    running: Running, director: Director, client: Client, redis_url: str, agent: str
) -> None:
    """row 31"""
    running(director.agent())
    once = list(client.ask("42", "hello", stream=True, key="mine"))
    assert [(output.kind, output.body) for output in once] == [(Kind.REPLY, "hello")]
    assert list(client.room("42").ask("hello", stream=True, key="mine")) == once
    assert client.room("42").ask("hello", key="mine") == "hello"

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            assert await rest(client.room("42").ask("hello", stream=True, key="mine")) == once
            assert await client.room("42").ask("hello", key="mine") == "hello"

    run(test)


# What a stream raises. ---------------------------------------------------------------------------------------


def test_a_streams_time_is_for_all_of_it_and_never_ends_what_the_reader_does(
    running: Running, director: Director, redis_url: str, agent: str
) -> None:
    """row 31"""
    running(director.agent())

    async def test() -> None:
        loop = asyncio.get_running_loop()
        async with AsyncClient(agent, redis=redis_url) as client:
            message = await client.send("42", "wait", key="mine")
            steered = await director.arun("42")
            await asyncio.to_thread(steered.send, "a")
            outputs = client.ask("42", "wait", stream=True, timeout=20.0, key="mine")
            assert (await anext(outputs)).body == "a"
            clock = loop.time
            loop.time = lambda: clock() + 25.0  # type: ignore[method-assign]  # 25 s pass, in which the reader does this:
            assert (await client.status("42")).processing == message
            asked_at = loop.time()
            with pytest.raises(AskTimeout, match="stays in its queue"):
                await anext(outputs)
            assert loop.time() - asked_at < 10.0, "the time began anew"
            assert await rest(outputs) == []

    run(test)


@pytest.mark.parametrize("stream", [False, True])
def test_what_send_refuses_ask_refuses_and_nothing_was_sent(redis_url: str, agent: str, stream: bool) -> None:
    """row 31"""

    async def refused(client: AsyncClient, error: type[GreenroomError], room: str, body: Any, **options: Any) -> None:
        with pytest.raises(error):
            await ended(client, room, body, stream=stream, **options)

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url, queue_limit=1) as client:
            await refused(client, InvalidName, "no room", "x")
            await refused(client, InvalidBody, "42", object())
            await client.send("42", "x", key="mine")
            await refused(client, QueueFull, "42", "x")
            await refused(client, Conflict, "43", "x", key="mine")
            assert (await client.status("42")).waiting == 1
            assert (await client.overview()).rooms == 1

    run(test)


def test_a_stream_that_is_not_replicated_says_so_and_its_message_was_sent(redis_url: str, agent: str) -> None:
    """row 31"""

    async def test() -> None:
        durability = Durability(replicas=1, timeout=timedelta(milliseconds=1))
        async with AsyncClient(agent, redis=redis_url, durability=durability) as client:
            with pytest.raises(NotReplicated) as raised:
                await rest(client.ask("42", "x", stream=True, key="mine"))
            with pytest.raises(NotReplicated) as again:
                await client.send("42", "x", key="mine")
            assert raised.value.answer == again.value.answer
            assert (await client.status("42")).waiting == 1

    run(test)


def test_closing_the_client_ends_its_streams(redis_url: str, agent: str) -> None:
    """row 31"""

    async def test() -> None:
        client = AsyncClient(agent, redis=redis_url)
        await client.send("42", "x", key="mine")
        following = asyncio.ensure_future(anext(client.ask("42", "x", stream=True, timeout=None, key="mine")))
        for _ in range(5):
            await client.status("42")
        await client.close()
        with pytest.raises(GreenroomError, match="closed"):
            await following

    run(test)


# What a stream leaves behind: nothing. -----------------------------------------------------------------------


def subscribers(redis: redis_py.Redis, keys: Keys) -> int:
    [(_, count)] = redis.pubsub_numsub(keys.outbox("42"))
    return int(count)


@pytest.mark.parametrize("how", ["aclose", "break", "cancel", "end", "timeout"])
def test_a_stream_that_ends_early_or_late_leaves_no_subscription(
    running: Running, director: Director, redis_url: str, agent: str, redis: redis_py.Redis, keys: Keys, how: str
) -> None:
    running(director.agent())

    async def read(client: AsyncClient) -> None:
        outputs = client.ask("42", "wait", stream=True, timeout=1.0 if how == "timeout" else WAIT_S, key="mine")
        async with aclosing(outputs):
            async for _ in outputs:
                if how == "aclose":
                    return

    async def leave(client: AsyncClient) -> None:
        async for _ in client.ask("42", "wait", stream=True, key="mine"):
            return

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            await client.send("42", "wait", key="mine")
            steered = await director.arun("42")
            await asyncio.to_thread(steered.send, "a")
            reading = asyncio.create_task(leave(client) if how == "break" else read(client))
            if how in ("cancel", "end"):
                await asyncio.to_thread(eventually, lambda: subscribers(redis, keys) == 1, "it is subscribed")
                reading.cancel() if how == "cancel" else steered.finish()
            await asyncio.wait([reading])
            if how == "break":  # the interpreter closes what nobody has any more
                await asyncio.to_thread(eventually, lambda: not client._open()[1]._watched, "nobody watches any more")
            assert not client._open()[1]._watched
            await asyncio.to_thread(eventually, lambda: subscribers(redis, keys) == 0, "nobody is subscribed any more")

    run(test)


@pytest.mark.parametrize("how", ["break", "close"])
def test_a_stream_of_the_sync_client_that_ends_early_leaves_no_subscription(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys, how: str
) -> None:
    running(director.agent())
    client.send("42", "wait", key="mine")
    director.run("42").send("a")
    if how == "break":
        for _ in client.ask("42", "wait", stream=True, key="mine"):
            break
    else:
        outputs = client.ask("42", "wait", stream=True, key="mine")
        assert next(outputs).body == "a"
        outputs.close()
    eventually(lambda: not client._client._open()[1]._watched, "nobody watches any more")
    eventually(lambda: subscribers(redis, keys) == 0, "nobody is subscribed any more")


def test_an_ask_that_times_out_while_it_subscribes_leaves_no_subscription(
    monkeypatch: pytest.MonkeyPatch, redis_url: str, agent: str
) -> None:
    async def stuck(_: Wakeups, *words: str | bytes) -> None:
        if words[0] == "SUBSCRIBE":
            await asyncio.Event().wait()

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            with pytest.raises(AskTimeout):
                await client.ask("41", "x", timeout=0.05)
            monkeypatch.setattr(Wakeups, "_tell", stuck)
            with pytest.raises(AskTimeout, match="may or may not be queued"):
                await client.ask("42", "x", timeout=0.05)
            assert not client._open()[1]._watched

    run(test)


# A reply that is gone before it was read. --------------------------------------------------------------------


class Words(Agent):
    """Its reply is its chunks."""

    async def respond(self, message: Message, cycle: Cycle) -> AsyncIterator[Any]:
        for piece in message.body:
            yield piece


async def lost(client: AsyncClient, body: Any, *, stream: bool) -> None:
    """Ask without a limit of time for what was sent with this key; it must be told that the reply is gone."""
    with pytest.raises(ReplyLost):
        await ended(client, "42", body, stream=stream, timeout=None, key="mine")


@pytest.mark.parametrize("stream", [False, True])
def test_an_ask_whose_reply_was_trimmed_before_it_looked_says_so(
    monkeypatch: pytest.MonkeyPatch, running: Running, redis_url: str, agent: str, stream: bool
) -> None:
    """row 31: it never hangs."""
    monkeypatch.setattr(outbox, "LOOK_S", 0.05)
    running(Words)

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            assert await client.ask("42", ["a"], key="mine") == "a"
            await client.ask("42", list(range(MORE_THAN_KEPT)))
            await lost(client, ["a"], stream=stream)

    run(test)


def test_a_reply_from_before_its_question_by_a_clock_that_was_put_back_is_found(
    monkeypatch: pytest.MonkeyPatch, running: Running, redis_url: str, agent: str, redis: redis_py.Redis
) -> None:
    monkeypatch.setattr(outbox, "LOOK_S", 0.05)
    running(Words)

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            assert await client.ask("42", ["a", "b"], key="mine") == "ab"
            seen = f"{Keys(agent).root}:seen:mine"
            message, at_ms, room = str(redis.get(seen)).split()
            redis.set(seen, f"{message} {int(at_ms) + 60_000} {room}", ex=600)  # it was accepted before the clock was put back
            outputs = [output async for output in client.ask("42", ["a", "b"], stream=True, timeout=None, key="mine")]
            assert [output.body for output in outputs] == ["a", "b", None]
            assert await client.ask("42", ["a", "b"], timeout=None, key="mine") == "ab"

    run(test)


def test_a_reader_that_was_away_while_the_reply_was_trimmed_is_told(
    monkeypatch: pytest.MonkeyPatch, running: Running, director: Director, redis_url: str, agent: str
) -> None:
    """row 31"""
    monkeypatch.setattr(outbox, "LOOK_S", 0.05)
    running(director.agent())

    async def many(cycle: Cycle) -> None:
        await asyncio.gather(*[cycle.send(number) for number in range(MORE_THAN_KEPT)])

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            await client.send("42", "wait", key="mine")
            first = await director.arun("42")
            await asyncio.to_thread(first.send, "a")
            outputs = client.ask("42", "wait", stream=True, timeout=None, key="mine")
            assert (await anext(outputs)).body == "a"
            first.finish("b")
            await client.send("42", "wait: another")
            second = await director.arun("42")
            await asyncio.to_thread(second.do, many)
            with pytest.raises(ReplyLost, match="trimmed"):
                await anext(outputs)

    run(test)


def test_a_lost_reply_is_told_also_where_hints_never_cease(
    monkeypatch: pytest.MonkeyPatch, running: Running, director: Director, redis_url: str, agent: str, redis: redis_py.Redis
) -> None:
    """row 31"""
    monkeypatch.setattr(outbox, "LOOK_S", 0.5)
    running(director.agent())
    over = threading.Event()

    def hint() -> None:
        while not over.wait(0.01):
            redis.publish(Keys(agent).outbox("42"), "look")

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            await client.ask("42", "x", key="mine")
            redis.delete(Keys(agent).outbox("42"))
            await lost(client, "x", stream=False)

    hinting = threading.Thread(target=hint)
    hinting.start()
    try:
        run(test)
    finally:
        over.set()
        hinting.join()


@pytest.mark.parametrize("stream", [False, True])
def test_an_ask_is_not_answered_with_what_was_left_of_a_trimmed_reply(
    running: Running, redis_url: str, agent: str, stream: bool
) -> None:
    """row 31"""
    running(Words)
    body = ["a", *"b" * MORE_THAN_KEPT]

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            await client.send("42", body, key="mine")
            await client.ask("42", ["later"])
            await lost(client, body, stream=stream)

    run(test)


def test_a_reply_that_says_all_by_itself_is_answered_though_chunks_before_it_were_trimmed(
    running: Running, director: Director, client: Client
) -> None:
    """row 31"""

    async def many(cycle: Cycle) -> None:
        await asyncio.gather(*[cycle.send(number) for number in range(MORE_THAN_KEPT)])

    running(director.agent())
    client.send("42", "wait", key="mine")
    steered = director.run("42")
    steered.do(many)
    steered.finish("whole")
    wait_output(client, "42", lambda output: output.kind is Kind.REPLY)
    assert client.ask("42", "wait", key="mine") == "whole"


def test_a_message_that_waits_is_not_taken_for_lost_however_often_one_looks(
    monkeypatch: pytest.MonkeyPatch, running: Running, director: Director, redis_url: str, agent: str
) -> None:
    """row 31"""
    looks = 0
    is_queued = outbox.Outbox._is_queued

    async def counted(self: outbox.Outbox, message: int) -> bool:
        nonlocal looks
        found = await is_queued(self, message)
        looks += 1
        return found

    monkeypatch.setattr(outbox, "LOOK_S", 0.01)
    monkeypatch.setattr(outbox.Outbox, "_is_queued", counted)
    running(director.agent())

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            await client.stop("42")
            ask = await asked(client, "42", "hello", timeout=None)
            await asyncio.to_thread(eventually, lambda: looks > 3, "it has looked for its message")
            await client.play("42")
            assert await ask == "hello"

    run(test)
