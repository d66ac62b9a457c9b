"""What clients promise: an ask ends with its own reply or says why not, and costs two connections whatever is asked."""

from __future__ import annotations

import asyncio
import gc
import socketserver
import threading
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py

from greenroom import (
    Agent,
    AskTimeout,
    AsyncClient,
    Client,
    Cycle,
    DeadLettered,
    Discarded,
    GreenroomError,
    Interrupted,
    InvalidRequest,
    Kind,
    Message,
    RedisError,
    RedisUnavailable,
    Reject,
    ThreadCycle,
)
from greenroom.protocol import outbox
from greenroom.protocol.keys import Keys
from integration.agents import WAIT_S, Director, asked, eventually, run
from integration.conftest import Running
from integration.receiver import Relaying

# What an ask answers (row 31). -------------------------------------------------------------------------------


class Shapes(Agent):
    async def respond(self, message: Message, cycle: Cycle) -> Any:
        if message.body == "sends":
            await cycle.send("a")
            await cycle.send("b")
            return None
        if message.body == "sends and returns":
            await cycle.send("a")
            return {"n": 1}
        return None


class Words(Agent):
    async def respond(self, message: Message, cycle: Cycle) -> Any:
        for piece in message.body:
            yield piece


class ThreadWords(Agent):
    def respond(self, message: Message, cycle: ThreadCycle) -> Any:
        yield from message.body


@pytest.mark.parametrize(
    ("body", "reply"), [("nothing", None), ("sends", "ab"), ("sends and returns", {"n": 1})], ids=lambda value: str(value)
)
def test_an_ask_answers_what_was_returned_or_else_sent(running: Running, client: Client, body: str, reply: Any) -> None:
    """row 31"""
    running(Shapes)
    assert client.ask("42", body) == reply


@pytest.mark.parametrize("agent_class", [Words, ThreadWords])
@pytest.mark.parametrize(("body", "reply"), [(["a", "b", "c"], "abc"), ([1, "b"], [1, "b"]), ([], None)], ids=str)
def test_an_ask_answers_what_was_yielded_text_joined(
    running: Running, client: Client, agent_class: type[Agent], body: list[Any], reply: Any
) -> None:
    """row 31"""
    running(agent_class)
    assert client.ask("42", body) == reply


def test_an_ask_answers_the_reply_of_its_own_message_among_many(
    running: Running, director: Director, redis_url: str, agent: str
) -> None:
    """row 31"""
    running(director.agent())

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            bodies = [f"{room}/{number}" for number in range(20) for room in range(5)]
            replies = await asyncio.gather(*[client.ask(body[0], body) for body in bodies])
            assert replies == bodies

    run(test)


def test_an_ask_answers_the_chunks_of_the_run_that_committed_not_of_one_that_failed(
    running: Running, director: Director, redis_url: str, agent: str
) -> None:
    """row 31, row 23"""
    running(director.agent())

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            ask = await asked(client, "42", "wait")
            first = await director.arun("42")
            await asyncio.to_thread(first.send, "half an ans")
            first.fail()
            second = await director.arun("42")
            await asyncio.to_thread(second.send, "a whole answer")
            second.finish()
            assert await ask == "a whole answer"

    run(test)


def test_an_ask_waits_through_stop_and_play(running: Running, director: Director, redis_url: str, agent: str) -> None:
    """row 31"""
    running(director.agent())

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            ask = await asked(client, "42", "wait")
            first = await director.arun("42")
            await client.stop("42")
            await asyncio.to_thread(first.wait_cancelled)
            await client.play("42")
            (await director.arun("42")).finish("after play")
            assert await ask == "after play"

    run(test)


def test_an_ask_of_an_interrupted_message_raises_interrupted(
    running: Running, director: Director, redis_url: str, agent: str
) -> None:
    """row 31"""
    running(director.agent())

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            ask = await asked(client, "42", "wait")
            await director.arun("42")
            await client.interrupt("42")
            with pytest.raises(Interrupted):
                await ask

    run(test)


@pytest.mark.parametrize(
    "error", [RuntimeError("once too often"), Reject("once too often")], ids=lambda error: type(error).__name__
)
def test_an_ask_of_a_dead_letter_raises_dead_lettered_with_the_error(
    running: Running, director: Director, redis_url: str, agent: str, error: Exception
) -> None:
    """row 31"""
    running(director.agent(max_attempts=1))

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            ask = await asked(client, "42", "wait")
            (await director.arun("42")).fail(error)
            with pytest.raises(DeadLettered, match="once too often"):
                await ask

    run(test)


def test_an_ask_of_a_discarded_message_raises_discarded(redis_url: str, agent: str) -> None:
    """row 31"""

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            message = await client.send("42", "first", key="mine")
            ask = asyncio.create_task(client.ask("42", "first", key="mine"))
            await asyncio.sleep(0)
            await client.discard("42", message)
            with pytest.raises(Discarded):
                await ask

    run(test)


@pytest.mark.parametrize("timeout", [0.0, 0.05])
def test_an_ask_that_nobody_answers_times_out_and_the_message_stays(redis_url: str, agent: str, timeout: float) -> None:
    """row 31"""

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            await client.send("42", "before")
            with pytest.raises(AskTimeout, match="stays in its queue"):
                await client.ask("42", "hello", timeout=max(timeout, 0.05))
            assert (await client.status("42")).waiting == 2

    run(test)


def test_an_ask_with_a_key_that_was_answered_long_ago_answers_the_same_at_once(
    running: Running, director: Director, client: Client
) -> None:
    """row 31"""
    running(director.agent())
    assert client.ask("42", "first", key="mine") == "first"
    assert client.ask("42", "other")
    assert client.ask("42", "second", key="mine", timeout=WAIT_S) == "first"
    assert director.bodies("42") == ["first", "other"]


def test_the_rooms_of_both_clients_have_their_last_output(
    running: Running, director: Director, client: Client, redis_url: str, agent: str
) -> None:
    """row 31"""
    running(director.agent())
    room = client.room("42")
    assert room.last_output() is None
    assert room.ask("hello") == "hello"
    last = room.last_output()
    assert last is not None
    assert (last.kind, last.body) == (Kind.REPLY, "hello")

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            assert await client.room("42").last_output() == last

    run(test)


def test_a_cancelled_ask_leaves_nothing_behind(running: Running, director: Director, redis_url: str, agent: str) -> None:
    """row 31"""
    running(director.agent())

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            ask = await asked(client, "42", "wait")
            run = await director.arun("42")
            ask.cancel()
            await asyncio.wait([ask])
            run.finish()
            assert await client.ask("42", "next") == "next"
            assert not client._open()[1]._watched

    run(test)


# An ask never hangs. -----------------------------------------------------------------------------------------


def test_closing_the_client_ends_its_asks_and_opens_nothing_again(redis_url: str, agent: str, redis: redis_py.Redis) -> None:
    """row 31"""
    known = connections(redis)

    async def test() -> None:
        client = AsyncClient(agent, redis=redis_url)
        asks = [await asked(client, str(room), "x", timeout=None) for room in range(3)]
        await client.close()
        for ask in asks:
            with pytest.raises(GreenroomError, match="closed"):
                await ask
        with pytest.raises(GreenroomError, match="closed") as raised:
            await client.send("42", "x")
        assert not isinstance(raised.value, RedisUnavailable), "to try again is of no use"
        await client.close()

    run(test)
    eventually(lambda: connections(redis) <= known, "every connection is closed")


def test_closing_the_sync_client_ends_the_asks_of_other_threads(
    monkeypatch: pytest.MonkeyPatch, redis_url: str, agent: str
) -> None:
    """row 31"""
    monkeypatch.setattr(outbox, "LOOK_S", 3600.0)
    client = Client(agent, redis=redis_url)
    ended: list[BaseException] = []

    def ask() -> None:
        try:
            client.ask("42", "x", timeout=None)
        except BaseException as error:
            ended.append(error)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: client.status("42").waiting == 3, "all three ask")
    client.close()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive(), "an ask hangs in a closed client"
    assert [isinstance(error, GreenroomError) for error in ended] == [True] * 3
    with pytest.raises(GreenroomError, match="closed"):
        client.send("42", "x")
    client.close()


def test_the_sync_client_leaves_no_thread(redis_url: str, agent: str) -> None:
    with Client(agent, redis=redis_url) as client:
        client.send("42", "x")
        assert any(thread.name == "greenroom-client" for thread in threading.enumerate())
    assert not any(thread.name == "greenroom-client" for thread in threading.enumerate())


def test_following_is_given_up_with_its_loop(running: Running, director: Director, client: Client) -> None:
    running(director.agent())
    client.ask("42", "x")
    for output in client.outputs("42", follow=True):
        assert output.kind is Kind.REPLY
        break
    eventually(lambda: not client._client._open()[1]._watched, "nobody watches any more")


# Connections. ------------------------------------------------------------------------------------------------


def connections(redis: redis_py.Redis) -> set[str]:
    return {row["id"] for row in redis.client_list()}


def test_a_thousand_asks_at_once_share_two_connections(
    running: Running, director: Director, redis_url: str, agent: str, redis: redis_py.Redis
) -> None:
    """row 31"""
    running(director.agent())
    most = [0]

    def count() -> int:
        return sum(1 for row in redis.client_list() if row["name"] == agent)

    async def test() -> None:
        async with AsyncClient(agent, redis=f"{redis_url}?client_name={agent}") as client:
            asks = [asyncio.create_task(client.ask(f"room-{n % 250}", n, timeout=None)) for n in range(1000)]
            while not all(ask.done() for ask in asks):
                most[0] = max(most[0], await asyncio.to_thread(count))
            assert [await ask for ask in asks] == list(range(1000))

    run(test)
    assert most == [2]


def test_followers_survive_that_every_connection_is_killed(
    running: Running, director: Director, client: Client, redis: redis_py.Redis
) -> None:
    """row 40, row 23"""
    running(director.agent())
    client.send("42", "wait")
    steered = director.run("42")
    seen: list[Any] = []
    done = threading.Event()

    def follow() -> None:
        for output in client.outputs("42", follow=True):
            seen.append(output.body)
            if output.kind is Kind.REPLY:
                done.set()
                return

    threading.Thread(target=follow, daemon=True).start()
    for number in range(10):
        steered.send(number)
        redis.client_kill_filter(_type="normal", skipme=True)
        redis.client_kill_filter(_type="pubsub")
    steered.finish("end")
    assert done.wait(WAIT_S)
    assert seen == [*range(10), "end"]


def test_an_unused_client_connects_to_nothing(redis_url: str, agent: str, redis: redis_py.Redis) -> None:
    known = connections(redis)
    with Client(agent, redis=redis_url):
        assert connections(redis) <= known

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url):
            pass

    run(test)


def test_a_call_gives_up_after_the_clients_timeout_when_redis_cannot_be_reached(agent: str) -> None:
    """row 31"""

    async def test() -> None:
        async with AsyncClient(agent, redis="redis://127.0.0.1:1/0", timeout=0.2) as client:
            calls: list[Coroutine[Any, Any, Any]] = [
                client.ask("42", "x", timeout=None),
                client.send("42", "x"),
                client.stop("42"),
                client.status("42"),
                client.overview(),
            ]
            for answer in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(answer, RedisUnavailable)

    run(test)


def test_a_request_is_known_for_longer_than_it_is_repeated(
    relaying: Relaying, redis_url: str, redis: redis_py.Redis, keys: Keys, agent: str
) -> None:
    """Else one whose answer was lost would, after a long outage, be told that there is no such message."""
    relaying().stop()
    with Client(agent, redis=redis_url, timeout=500) as patient:
        patient.discard("42", patient.send("42", "hello"))
        letters: Any = [redis.xadd(keys.dead, {"room": "43", "message": "1-0", "body": "x"}) for _ in range(2)]
        patient.requeue(letters[0])
        patient.drop(letters[1])
        patient.forget_relay("relay")
    known = list(redis.scan_iter(f"{keys.root.replace('{', '[{]')}:seen:*"))
    assert len(known) == 5
    assert min(redis.ttl(key) for key in known) > 500


def test_no_more_rooms_are_told_than_are_wanted_over_all_pages(client: Client) -> None:
    client.stop(*(f"room-{number}" for number in range(450)))
    assert [len(list(client.rooms(limit=limit))) for limit in (0, 1, 199, 200, 201, 399, 450, 451)] == [
        *(0, 1, 199, 200, 201, 399, 450, 450)
    ]
    in_order = sorted(f"room-{number}" for number in range(450))
    assert [room.room for room in client.rooms(sort="room", limit=250)] == in_order[:250]


def test_an_async_client_that_is_used_on_another_loop_says_so_and_goes_on_on_its_own(redis_url: str, agent: str) -> None:
    async def elsewhere(client: AsyncClient) -> None:
        for call in (client.overview(), client.send("42", "x"), client.ask("42", "x"), client.close()):
            async with asyncio.timeout(WAIT_S):
                with pytest.raises(GreenroomError, match="in use on another event loop: make one for each loop"):
                    await call

    async def test() -> None:
        async with AsyncClient(agent, redis=redis_url) as client:
            await client.send("42", "hello")
            await asyncio.to_thread(asyncio.run, elsewhere(client))
            assert (await client.status("42")).waiting == 1

    run(test)


# What cannot be used. -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.stop("42", reason="\ud800"),
        lambda client: client.stop("42", by="\ud800"),
        lambda client: client.stop("42", reason="x" * 1025),
        lambda client: client.ask("42", "x", timeout=timedelta(seconds=1)),
        lambda client: client.ask("42", "x", timeout=-1),
        lambda client: client.interrupt("42", message=-1),
        lambda client: client.interrupt("42", message="1-0"),
        lambda client: client.interrupt("42", message=10**30),
        lambda client: client.discard("42", 0),
        lambda client: client.discard("42", "+"),
        lambda client: client.discard("42", True),
        lambda client: list(client.rooms(worker="\ud800")),
        lambda client: list(client.rooms(worker=5)),
        lambda client: list(client.rooms(limit="5")),
        lambda client: list(client.rooms(limit=1.5)),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused_and_nothing_is_asked(call: Callable[[Any], object], agent: str) -> None:
    with Client(agent, redis="redis://127.0.0.1:1", timeout=600) as client, pytest.raises(InvalidRequest):
        call(client)


@pytest.mark.parametrize(
    "wrong",
    [
        {"by": "\ud800"},
        {"timeout": float("nan")},
        {"timeout": -1},
        {"timeout": None},
        {"queue_limit": 0},
        {"queue_limit": "many"},
        {"redis": None},
        {"redis": b"redis://127.0.0.1"},
    ],
    ids=str,
)
def test_a_client_that_cannot_work_is_refused(wrong: dict[str, Any], agent: str) -> None:
    with pytest.raises(InvalidRequest):
        Client(agent, **{"redis": "redis://127.0.0.1:1", **wrong})


def test_a_client_that_is_forgotten_ends_its_thread_without_a_word(
    redis_url: str, agent: str, caplog: pytest.LogCaptureFixture
) -> None:
    def threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "greenroom-client"}

    def use() -> None:
        forgotten = Client(agent, redis=redis_url)
        forgotten.play("42")
        next(forgotten.signals(follow=True))

    before = threads()
    for _ in range(3):
        use()
    gc.collect()
    for thread in threads() - before:
        thread.join(60)
        assert not thread.is_alive()
    gc.collect()
    assert caplog.messages == []


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], str]]:
    """Starts what is no Redis: it answers the first words of each connection with the same bytes. Answers its URL."""

    class Handler(socketserver.BaseRequestHandler):
        answer = b""

        def handle(self) -> None:
            self.request.recv(1)
            self.request.sendall(self.answer)

    servers: list[socketserver.ThreadingTCPServer] = []

    def start(answer: bytes) -> str:
        handler = type("Answering", (Handler,), {"answer": answer})
        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return f"redis://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-x\r\n", b"\x00\xff", b":1\r\n" * 50, b""])
def test_what_is_no_redis_ends_a_call_within_its_patience(
    answer: bytes, answering: Callable[[bytes], str], agent: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It was waited for, for ever."""
    with Client(agent, redis=answering(answer), timeout=0.2) as client, pytest.raises(RedisError):
        client.overview()
    assert len(caplog.messages) == 1, "said once"
