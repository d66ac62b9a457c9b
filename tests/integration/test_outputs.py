"""What readers of a room see: chunks at once and numbered, ends that say how, replays that show as such."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgpack
import pytest
import redis as redis_py

from greenroom import AsyncClient, Client, GreenroomError, Kind
from greenroom.protocol import outbox
from greenroom.protocol.connect import connect
from greenroom.protocol.keys import Keys
from greenroom.protocol.wakeups import Wakeups
from integration.agents import WAIT_S, Director, asked, run, wait_output
from integration.conftest import Running


def test_readers_are_told_of_what_is_new_and_need_not_look_by_themselves(
    monkeypatch: pytest.MonkeyPatch, running: Running, director: Director, redis_url: str, agent: str
) -> None:
    """row 23, row 31"""
    monkeypatch.setattr(outbox, "LOOK_S", 3600.0)
    running(director.agent())

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            for number in range(20):
                assert await client.ask(f"room-{number % 3}", number, timeout=WAIT_S) == number

    run(test)


def test_readers_find_what_they_were_not_told_of(
    monkeypatch: pytest.MonkeyPatch, running: Running, director: Director, redis_url: str, agent: str
) -> None:
    """row 31: what Pub/Sub loses costs time, and nothing else."""

    async def deaf(_: Wakeups, connection: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(outbox, "LOOK_S", 0.05)
    monkeypatch.setattr(Wakeups, "_listen", deaf)
    running(director.agent())

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            ask = await asked(client, "42", "wait")
            (await director.arun("42")).finish("found")
            assert await ask == "found"

    run(test)


def test_a_connection_for_hints_that_is_lost_is_not_connected_anew_by_who_watches(
    monkeypatch: pytest.MonkeyPatch, redis_url: str, agent: str
) -> None:
    """Nobody would read it, or close it."""
    listens = asyncio.Event()

    async def deaf(_: Wakeups, connection: object) -> None:
        listens.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Wakeups, "_listen", deaf)

    async def test() -> None:
        redis = connect(redis_url)
        wakeups = Wakeups(redis)
        async with wakeups.watch(f"{agent}:1"):
            await listens.wait()
            lost = wakeups._connection
            assert lost is not None
            await lost.disconnect(nowait=True)
            async with wakeups.watch(f"{agent}:2"):
                assert not lost.is_connected
        await wakeups.close()
        await redis.aclose()

    run(test)


def test_a_chunk_is_there_for_readers_when_send_returns(running: Running, director: Director, client: Client) -> None:
    """row 23"""
    running(director.agent())
    message = client.send("42", "wait")
    steered = director.run("42")
    for number in range(1, 6):
        steered.send(number * 10)
        outputs = list(client.outputs("42"))
        assert [(o.kind, o.seq, o.body, o.message, o.ticket) for o in outputs] == [
            (Kind.CHUNK, n, n * 10, message, steered.ticket) for n in range(1, number + 1)
        ]
    steered.finish("end")
    last = wait_output(client, "42", lambda output: output.kind is Kind.REPLY)
    assert (last.seq, last.body) == (6, "end")


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("how", ["interrupt", "stop", "fail"])
def test_the_stream_of_a_cycle_that_did_not_commit_ends_with_an_entry_that_says_so(
    running: Running, director: Director, client: Client, how: str, threaded: bool
) -> None:
    """row 23"""
    running(director.agent(threaded=threaded))
    client.send("42", "wait")
    first = director.run("42")
    first.send("a")
    first.send("b")
    if how == "fail":
        first.fail(ValueError("broken"))
    else:
        getattr(client, how)("42")
    last = wait_output(client, "42", lambda output: output.kind is not Kind.CHUNK)
    assert (last.ticket, last.seq) == (first.ticket, 3)
    if how == "fail":
        assert (last.kind, last.mode) == (Kind.FAILED, None)
        assert last.error == "ValueError: broken"
    else:
        assert (last.kind, last.mode) == (Kind.ABORTED, how)


def test_a_replay_is_recognisable_as_another_ticket_numbered_from_one(
    running: Running, director: Director, client: Client
) -> None:
    """row 23"""
    running(director.agent())
    message = client.send("42", "wait")
    first = director.run("42")
    first.send("a")
    client.stop("42")
    first.wait_cancelled()
    client.play("42")
    second = director.run("42")
    second.send("a")
    second.finish("end")
    wait_output(client, "42", lambda output: output.kind is Kind.REPLY)
    outputs = list(client.outputs("42"))
    assert {output.message for output in outputs} == {message}
    assert second.ticket > first.ticket
    assert [(o.ticket, o.seq, o.kind) for o in outputs] == [
        (first.ticket, 1, Kind.CHUNK),
        (first.ticket, 2, Kind.ABORTED),
        (second.ticket, 1, Kind.CHUNK),
        (second.ticket, 2, Kind.REPLY),
    ]


def test_readers_may_begin_after_any_output(running: Running, director: Director, client: Client) -> None:
    """row 23"""
    running(director.agent())
    for body in ("a", "b", "c"):
        client.ask("42", body)
    outputs = list(client.outputs("42"))
    for index, output in enumerate(outputs):
        assert [o.body for o in client.outputs("42", after=output.id)] == [o.body for o in outputs[index + 1 :]]


def test_large_and_small_entries_are_all_read_in_their_order(
    client: Client, redis: redis_py.Redis, redis_url: str, keys: Keys
) -> None:
    """In pages of about 1 MiB: Redis holds a whole page in memory until it is sent."""
    sizes = [400_000] * 25 + [10] * 300 + [900_000] * 5 + [10] * 30
    said: dict[Any, Any] = {"room": "42", "attempts": "1", "error": "no", "died_at": "2026-01-02T03:04:05.000Z"}
    for number, size in enumerate(sizes, 1):
        body = msgpack.packb([number, "x" * size])
        redis.xadd(keys.outbox("42"), {"kind": "chunk", "message": "1-0", "ticket": 1, "seq": number, "body": body})
        redis.xadd(keys.dead, {**said, "message": f"{number}-0", "body": body})
    numbers = list(range(1, len(sizes) + 1))
    with redis_py.Redis.from_url(redis_url) as watching:
        watching.config_set("slowlog-log-slower-than", 0)
        watching.config_set("slowlog-max-len", 1_000)
        try:
            watching.slowlog_reset()
            assert [output.body[0] for output in client.outputs("42")] == numbers
            assert [letter.body[0] for letter in client.dead_letters()] == numbers
            asked: Any = watching.slowlog_get(1_000)
        finally:
            watching.config_set("slowlog-log-slower-than", 10_000)
    counts = [int(row["command"].split()[-1]) for row in asked if row["command"].startswith(b"XRANGE")]
    assert {counts[0], counts[-1]} <= {*range(1, 201)}
    assert max(counts) == 200
    assert min(counts) <= 2


READERS: dict[str, Callable[[Client], Iterator[Any]]] = {
    "outputs": lambda client: client.outputs("42", follow=True),
    "events": lambda client: client.events(follow=True),
    "signals": lambda client: client.signals(follow=True),
    "ask": lambda client: client.ask("42", "stream", stream=True),
    "rooms": lambda client: client.rooms(),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_client_is_closed_under_an_open_reader_without_a_word(
    reader: str,
    running: Running,
    director: Director,
    redis_url: str,
    agent: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What it read is not closed by anybody else, and in no order."""
    system = running(director.agent())
    with Client(agent, redis=redis_url) as client:
        client.ask("42", "hello")
        client.play("42")
        client.send("43", "wait")
        director.run("43")
        readings = [READERS[reader](client) for _ in range(8)]  # in which order they are closed is chance
        for reading in readings:
            next(reading)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
    for reading in readings:
        with suppress(GreenroomError):  # what it had read before the end, and then no more
            list(reading)
    system.stop(timedelta(0))


def test_a_loop_ends_under_an_open_reader_without_a_word(
    running: Running, director: Director, redis_url: str, agent: str, caplog: pytest.LogCaptureFixture
) -> None:
    running(director.agent())
    left: list[Any] = []

    async def test() -> None:
        client = AsyncClient(agent, redis=redis_url)
        await client.ask("42", "hello")
        for _ in range(8):
            reading = client.outputs("42", follow=True)
            await anext(reading)
            left.append(reading)
        await client.close()

    run(test)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
