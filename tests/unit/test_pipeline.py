"""The pipeline against a real Redis: order, repetition after a lost connection or forgotten scripts, whose error is whose."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import redis as redis_py

from greenroom import RedisRefused, RedisUnavailable
from greenroom.protocol import pipeline as pipeline_module
from greenroom.protocol.connect import connect, open_connection
from greenroom.protocol.keys import Keys
from greenroom.protocol.pipeline import BATCH, Pipeline
from greenroom.protocol.scripts import scripts
from greenroom.protocol.server import RedisServer
from greenroom.protocol.store import Enqueued, Store

from helpers import free_port

LIMIT_S = 60.0


@asynccontextmanager
async def pipelined(url: str, root: str = "greenroom:{x}", *, patience_s: float | None = None) -> AsyncIterator[Pipeline]:
    redis = connect(url)
    pipeline = Pipeline(redis, root, patience_s=patience_s)
    try:
        async with asyncio.timeout(LIMIT_S):
            yield pipeline
    finally:
        await pipeline.close()
        await redis.aclose()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


@pytest.fixture
def key(agent: str) -> str:
    """A key of this test's own."""
    return f"test:{agent}"


@pytest.fixture
def plain(redis_url: str) -> Iterator[redis_py.Redis]:
    with redis_py.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


def kill_others(plain: redis_py.Redis) -> int:
    """End every connection but this one."""
    return int(plain.client_kill_filter(_type="normal", skipme=True))


@pytest.mark.parametrize("count", [1, BATCH - 1, BATCH, BATCH + 1, 20 * BATCH + 7])
def test_requests_are_executed_in_the_order_in_which_they_were_made(redis_url: str, key: str, count: int) -> None:
    async def test() -> None:
        async with pipelined(redis_url) as pipeline:
            replies = [pipeline.command("RPUSH", key, number) for number in range(count)]
            assert await asyncio.gather(*replies) == list(range(1, count + 1))
            stored = await pipeline.command("LRANGE", key, 0, -1)
        assert stored == [str(number).encode() for number in range(count)]

    run(test)


def test_a_request_is_decoded_and_a_decoder_that_fails_is_its_callers_trouble(redis_url: str, key: str) -> None:
    def fail(_: Any) -> int:
        raise ValueError("cannot read this")

    async def test() -> None:
        async with pipelined(redis_url) as pipeline:
            good = pipeline.command("INCR", key, decode=lambda reply: reply * 10)
            bad = pipeline.command("INCR", key, decode=fail)
            after = pipeline.command("INCR", key)
            assert await good == 10
            with pytest.raises(ValueError, match="cannot read"):
                await bad
            assert await after == 3
            assert pipeline.reconnects == 0

    run(test)


def test_an_error_reply_goes_to_its_caller_only(redis_url: str, key: str) -> None:
    async def test() -> None:
        async with pipelined(redis_url) as pipeline:
            first = pipeline.command("SET", key, "text")
            wrong = pipeline.command("LPUSH", key, "x")
            unknown = pipeline.command("NOSUCHCOMMAND")
            last = pipeline.command("GET", key)
            assert await first == b"OK"
            for refused in (wrong, unknown):
                with pytest.raises(RedisRefused):
                    await refused
            assert await last == b"text"
            assert pipeline.connected
            assert pipeline.reconnects == 0

    run(test)


def test_a_request_nobody_waits_for_any_more_disturbs_nothing(redis_url: str, key: str) -> None:
    async def test() -> None:
        async with pipelined(redis_url) as pipeline:
            replies = [pipeline.command("INCR", key) for _ in range(3 * BATCH)]
            for reply in replies[::2]:
                reply.cancel()
            await asyncio.wait(replies)
            sent = await pipeline.command("GET", key)
            assert int(sent) == sum(1 for reply in replies if not reply.cancelled())

    run(test)


def test_scripts_are_sent_again_in_their_order_after_the_connection_was_killed(
    redis_url: str, agent: str, plain: redis_py.Redis
) -> None:
    """row 40"""
    keys = Keys(agent)

    async def test() -> None:
        redis = connect(redis_url)
        store = Store(redis, keys)
        answers: list[asyncio.Future[Any]] = []
        async with asyncio.timeout(LIMIT_S):
            for number in range(400):
                answers.append(store.enqueue("42", b"%d" % number, key=f"k{number}", key_ttl_s=60, limit=10_000))
                if number % 40 == 20:
                    await asyncio.sleep(0)
                    await asyncio.to_thread(kill_others, plain)
            done = await asyncio.gather(*answers)
        assert all(isinstance(answer, Enqueued) for answer in done)
        assert [answer.id for answer in done] == sorted(answer.id for answer in done)
        assert store.pipeline.reconnects >= 1
        await store.close()
        await redis.aclose()

    run(test)
    entries: Any = plain.xrange(keys.messages("42"))
    assert [row["body"] for _, row in entries] == [str(number) for number in range(400)]  # none lost, none twice


def test_scripts_that_the_server_forgot_are_loaded_again(redis_url: str, agent: str, plain: redis_py.Redis) -> None:
    async def test() -> None:
        redis = connect(redis_url)
        store = Store(redis, Keys(agent))
        sent = 0
        async with asyncio.timeout(LIMIT_S):
            for _ in range(5):
                answers = []
                for _ in range(150):
                    answers.append(store.enqueue("42", b"%d" % sent, key=f"k{sent}", key_ttl_s=60, limit=10_000))
                    sent += 1
                await asyncio.to_thread(plain.script_flush)
                await asyncio.gather(*answers)
        await store.close()
        await redis.aclose()

    run(test)
    entries: Any = plain.xrange(Keys(agent).messages("42"))
    assert [row["body"] for _, row in entries] == [str(number) for number in range(750)]


def test_every_script_is_loaded_before_the_first_request(redis_url: str, key: str, plain: redis_py.Redis) -> None:
    async def test() -> None:
        async with pipelined(redis_url) as pipeline:
            await pipeline.command("PING")

    plain.script_flush()
    run(test)
    assert plain.script_exists(*[script.sha for script in scripts().values()]) == [True] * len(scripts())


def test_after_its_patience_a_request_fails_and_the_next_one_tries_again() -> None:
    """row 40"""

    async def test() -> None:
        async with pipelined(f"redis://127.0.0.1:{free_port()}/0", patience_s=0.2) as pipeline:
            for _ in range(2):
                replies = [pipeline.command("PING") for _ in range(3)]
                for reply in replies:
                    with pytest.raises(RedisUnavailable, match="cannot be reached"):
                        await reply
                assert not pipeline.connected

    run(test)


def test_a_server_that_comes_back_within_the_patience_is_used(redis_dir: Any) -> None:
    """row 40"""

    async def test() -> None:
        server = RedisServer(redis_dir)
        await asyncio.to_thread(server.start)
        try:
            async with pipelined(server.url, patience_s=LIMIT_S) as pipeline:
                assert await pipeline.command("INCR", "n") == 1
                await asyncio.to_thread(server.kill)
                replies = [pipeline.command("INCR", "n") for _ in range(3)]
                await asyncio.to_thread(server.start)
                assert (await asyncio.gather(*replies))[-1] >= 4
                assert pipeline.reconnects == 1
        finally:
            await asyncio.to_thread(server.stop)

    run(test)


def test_without_a_limit_to_its_patience_it_waits(redis_dir: Any) -> None:
    """row 40"""

    async def test() -> None:
        server = RedisServer(redis_dir)
        await asyncio.to_thread(server.start)
        url = server.url
        await asyncio.to_thread(server.stop)
        async with pipelined(url) as pipeline:
            reply = pipeline.command("PING")
            await asyncio.wait([reply], timeout=0.5)
            assert not reply.done()
            await asyncio.to_thread(server.start)
            try:
                assert await reply == b"PONG"
            finally:
                await asyncio.to_thread(server.stop)

    run(test)


def test_a_wrong_password_is_refused_at_once_whatever_the_patience(redis_dir: Any) -> None:
    """row 45"""

    async def test() -> None:
        with RedisServer(redis_dir, extra=["--user", "other", "on", ">right", "~*", "&*", "+@all"]) as server:
            url = f"redis://other:wrong@127.0.0.1:{server.port}/0"
            async with pipelined(url) as pipeline:
                with pytest.raises(RedisRefused, match="refuses access"):
                    await pipeline.command("PING")

    run(test)


def test_close_fails_what_waits_and_what_comes(redis_url: str) -> None:
    async def test() -> None:
        redis = connect(f"redis://127.0.0.1:{free_port()}/0")
        pipeline = Pipeline(redis, "greenroom:{x}")
        waiting = pipeline.command("PING")
        await pipeline.close()
        with pytest.raises(RedisUnavailable, match="closed"):
            await waiting
        with pytest.raises(RedisUnavailable, match="closed"):
            await pipeline.command("PING")
        await pipeline.close()
        await redis.aclose()

    run(test)


def test_a_closed_pipeline_leaves_no_connection(redis_url: str, plain: redis_py.Redis) -> None:
    async def test() -> None:
        async with pipelined(redis_url) as pipeline:
            name = await pipeline.command("CLIENT", "ID")
        await asyncio.to_thread(gone, str(name))

    def gone(name: str) -> None:
        while any(row["id"] == name for row in plain.client_list()):
            pass

    run(test)


def test_a_server_that_does_not_answer_is_named_as_that(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, redis_url: str, key: str
) -> None:
    monkeypatch.setattr(pipeline_module, "REPLY_TIMEOUT_S", 1)

    async def test() -> None:
        async with pipelined(redis_url, patience_s=0) as pipeline:
            with pytest.raises(RedisUnavailable, match="no answer within 1 s"):
                await pipeline.command("BLPOP", key, 0)

    run(test)
    assert 'event=redis.lost error="no answer within 1 s"' in caplog.text


def test_what_was_given_up_on_does_not_arrive_later() -> None:
    """A server that reads nothing, as behind a network that is gone: once it reads again, others have repeated the requests."""
    size = 4 * 1024 * 1024
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    def greet(there: socket.socket) -> None:
        there.settimeout(LIMIT_S)
        while b"x" * 100 not in (said := there.recv(4096)):
            there.sendall(b"+OK\r\n" * said.count(b"*"))

    def read_on(there: socket.socket) -> int:
        found = 0
        with suppress(ConnectionResetError):
            while data := there.recv(65536):
                found += len(data)
        return found

    async def send(url: str) -> None:
        redis = connect(url)
        async with open_connection(redis) as connection:
            await connection.send_packed_command([b"x" * size], check_health=False)
            await asyncio.Event().wait()

    async def test() -> None:
        async with asyncio.timeout(LIMIT_S):
            sending = asyncio.create_task(send(f"redis://127.0.0.1:{listening.getsockname()[1]}/0"))
            there, _ = await asyncio.to_thread(listening.accept)
            with there:
                await asyncio.to_thread(greet, there)
                sending.cancel()
                await asyncio.wait([sending])
                assert await asyncio.to_thread(read_on, there) < size / 2

    with listening:
        run(test)
