"""Chunks: at once, in order, numbered; together when they come fast; none held back, none piled up (row 23)."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py

from greenroom import Agent, Client, Cycle, CycleEnded, Kind, Message, Mode, Outcome, RedisRefused, ThreadCycle
from greenroom.actors.link import BACKLOG, BACKLOG_BYTES, BATCH
from greenroom.protocol.keys import Keys
from greenroom.supervisors.system import ActorSystem
from integration.agents import WAIT_S, Director, StoreGate, cut_off, eventually, settled, wait_for, wait_output
from integration.conftest import Running

BOTH = pytest.mark.parametrize("threaded", [False, True], ids=["async generator", "generator"])
NEVER = timedelta(hours=1)  # an interval that no test outlives

Part = str | int | Callable[[Any], Any]


def talker(threaded: bool, *script: Part, **options: Any) -> type[Agent]:
    """A generator that goes through the script, if its message is "talk": what can be called it calls with its cycle, and
    waits for it; all else it yields.
    """

    class OnLoop(Agent):
        async def respond(self, message: Message, cycle: Cycle) -> AsyncIterator[Any]:
            for part in script if message.body == "talk" else (message.body,):
                if callable(part):
                    done = part(cycle)
                    if inspect.isawaitable(done):
                        await done
                else:
                    yield part

    class InThread(Agent):
        def respond(self, message: Message, cycle: ThreadCycle) -> Iterator[Any]:
            for part in script if message.body == "talk" else (message.body,):
                if callable(part):
                    part(cycle)
                else:
                    yield part

    return type("Talker", (InThread if threaded else OnLoop,), {"max_attempts": 1, **options})


class Pause:
    """A place in a script where the handler waits to be told to go on."""

    def __init__(self, threaded: bool) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self._threaded = threaded

    def __call__(self, _: object) -> Awaitable[None] | None:
        if self._threaded:
            self._wait()
            return None
        return asyncio.to_thread(self._wait)

    def _wait(self) -> None:
        self.reached.set()
        wait_for(self.go, "the handler may go on")

    def wait(self) -> None:
        wait_for(self.reached, "the handler comes to its pause")


def emits(gate: StoreGate) -> list[int]:
    """How many chunks left the room in each of the calls so far."""
    return [len(args) - 3 for name, args in gate.calls if name == "emit" and args[0] == "1"]


def said(client: Client) -> list[Any]:
    return [output.body for output in client.outputs("1") if output.kind is Kind.CHUNK]


def ends(client: Client, kind: Kind) -> list[Any]:
    """Wait for the end of the room's stream; answer the chunks before it."""
    wait_output(client, "1", lambda output: output.kind is kind)
    return said(client)


@BOTH
@pytest.mark.parametrize("interval_ms", [0, 20])
def test_fast_tokens_are_read_in_order_and_numbered_without_a_gap(
    interval_ms: int, threaded: bool, running: Running, client: Client
) -> None:
    running(talker(threaded, *range(500), chunk_interval=timedelta(milliseconds=interval_ms)))
    client.send("1", "talk")
    assert ends(client, Kind.REPLY) == list(range(500))
    assert [output.seq for output in client.outputs("1")] == list(range(1, 502))


@BOTH
def test_the_first_chunk_leaves_at_once_and_those_within_the_interval_leave_together(
    threaded: bool, running: Running, client: Client
) -> None:
    first, second = Pause(threaded), Pause(threaded)
    gate = StoreGate.of(running(talker(threaded, "a", first, "b", "c", "d", second, chunk_interval=NEVER)))
    client.send("1", "talk")
    wait_output(client, "1", lambda output: output.body == "a")
    first.go.set()
    second.wait()
    assert client.ask("2", "there was time") == "there was time"
    assert said(client) == ["a"]
    second.go.set()
    assert ends(client, Kind.REPLY) == ["a", "b", "c", "d"]
    assert emits(gate) == [1, 3]


@BOTH
def test_many_chunks_leave_in_few_calls_none_of_which_is_large(threaded: bool, running: Running, client: Client) -> None:
    gate = StoreGate.of(running(talker(threaded, *range(500), chunk_interval=NEVER)))
    client.send("1", "talk")
    assert ends(client, Kind.REPLY) == list(range(500))
    assert sum(emits(gate)) == 500
    assert max(emits(gate)) <= BATCH
    assert len(emits(gate)) <= 500 / BATCH + BACKLOG / BATCH + 2  # a full buffer, and each wait for the backlog, sends


@BOTH
def test_a_chunk_leaves_when_its_interval_is_over_while_the_handler_is_busy(
    threaded: bool, running: Running, client: Client
) -> None:
    busy = Pause(threaded)
    running(talker(threaded, "a", "b", busy, chunk_interval=timedelta(milliseconds=50)))
    client.send("1", "talk")
    wait_output(client, "1", lambda output: output.body == "b")
    busy.go.set()


@BOTH
def test_without_an_interval_each_chunk_leaves_at_once(threaded: bool, running: Running, client: Client) -> None:
    pauses = [Pause(threaded) for _ in range(3)]
    running(talker(threaded, "a", pauses[0], "b", pauses[1], "c", pauses[2], chunk_interval=timedelta(0)))
    client.send("1", "talk")
    for pause, body in zip(pauses, "abc", strict=True):
        wait_output(client, "1", lambda output, body=body: output.body == body)  # type: ignore[misc]
        pause.go.set()


# Nothing held back. ---------------------------------------------------------------------------------------------


def failing(error: BaseException) -> Callable[[Any], Any]:
    def fail(_: object) -> None:
        raise error

    return fail


@BOTH
@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(3)], ids=["raises", "exits"])
def test_what_was_yielded_before_a_failure_is_sent(
    error: BaseException, threaded: bool, running: Running, client: Client
) -> None:
    running(talker(threaded, "a", "b", "c", failing(error), chunk_interval=NEVER))
    client.send("1", "talk")
    assert ends(client, Kind.FAILED) == ["a", "b", "c"]


@BOTH
def test_what_was_not_sent_when_the_interrupt_came_is_never_sent(threaded: bool, running: Running, client: Client) -> None:
    """row 6"""
    busy = Pause(threaded)
    running(talker(threaded, "a", "b", busy, "c", chunk_interval=NEVER))
    client.send("1", "talk")
    busy.wait()
    wait_output(client, "1", lambda output: output.body == "a")
    client.interrupt("1")
    busy.go.set()
    assert ends(client, Kind.ABORTED) == ["a"]
    assert client.ask("1", "next") == "next"
    assert said(client) == ["a", "next"]


def there(redis: redis_py.Redis, keys: Keys, seen: list[Any]) -> Callable[[Any], Any]:
    """A part of a script that notes how many outputs Redis has at that moment."""
    return lambda _: seen.append(redis.xlen(keys.outbox("1")))


@BOTH
def test_send_and_flush_return_when_readers_have_all_that_was_yielded_before(
    threaded: bool, running: Running, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    seen: list[Any] = []
    look = there(redis, keys, seen)
    send, flush = (lambda cycle: cycle.send("c")), (lambda cycle: cycle.flush())
    running(talker(threaded, "a", "b", send, look, "d", "e", flush, look, chunk_interval=NEVER))
    client.send("1", "talk")
    assert ends(client, Kind.REPLY) == ["a", "b", "c", "d", "e"]
    assert seen == [3, 5]


@BOTH
def test_a_step_begins_and_a_shield_goes_up_behind_what_was_yielded_before(
    threaded: bool, running: Running, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    seen: list[Any] = []
    look = there(redis, keys, seen)

    async def shielded(cycle: Cycle) -> None:
        async with cycle.shield():
            look(cycle)

    def shielded_in_thread(cycle: ThreadCycle) -> None:
        with cycle.shield():
            look(cycle)

    script = ("a", "b", lambda cycle: cycle.step("looks", look, None), "c", "d", shielded_in_thread if threaded else shielded)
    running(talker(threaded, *script, chunk_interval=NEVER))
    client.send("1", "talk")
    assert ends(client, Kind.REPLY) == ["a", "b", "c", "d"]
    assert seen == [2, 4]


@BOTH
def test_chunks_that_are_yielded_in_a_shield_arrive_although_a_stop_waits_for_its_end(
    threaded: bool, running: Running, client: Client
) -> None:
    """row 21"""
    inside = Pause(threaded)

    class OnLoop(Agent):
        chunk_interval = NEVER

        async def respond(self, message: Message, cycle: Cycle) -> AsyncIterator[str]:
            async with cycle.shield():
                yield "a"
                await asyncio.to_thread(inside._wait)
                yield "b"
                yield "c"
            yield "never sent"

    class InThread(Agent):
        chunk_interval = NEVER

        def respond(self, message: Message, cycle: ThreadCycle) -> Iterator[str]:
            with cycle.shield():
                yield "a"
                inside._wait()
                yield "b"
                yield "c"
            yield "never sent"

    running(InThread if threaded else OnLoop)
    client.send("1", "talk")
    inside.wait()
    assert client.stop("1")[0].outcome is Outcome.DEFERRED
    inside.go.set()
    assert ends(client, Kind.ABORTED) == ["a", "b", "c"]
    assert list(client.outputs("1"))[-1].mode == Mode.STOP


# A slow Redis, and one that refuses. ----------------------------------------------------------------------------


@BOTH
def test_a_generator_waits_at_the_backlog_while_redis_is_slow(threaded: bool, running: Running, client: Client) -> None:
    made: list[int] = []
    script: list[Part] = []
    for number in range(400):
        script += [lambda _, number=number: made.append(number), number]  # type: ignore[misc]
    system = running(talker(threaded, *script, chunk_interval=timedelta(0)))
    hold = StoreGate.of(system).before("emit")
    client.send("1", "talk")
    hold.wait()
    eventually(lambda: len(made) >= BACKLOG, "the backlog is full")
    turns(system)
    assert len(made) == BACKLOG
    hold.release()
    assert ends(client, Kind.REPLY) == list(range(400))


@BOTH
def test_a_generator_of_large_chunks_waits_long_before_their_number_is_large(
    threaded: bool, running: Running, client: Client
) -> None:
    made: list[int] = []
    chunk = "x" * (BACKLOG_BYTES // 4)
    script: list[Part] = []
    for number in range(20):
        script += [lambda _, number=number: made.append(number), chunk]  # type: ignore[misc]
    system = running(talker(threaded, *script, chunk_interval=timedelta(0)))
    hold = StoreGate.of(system).before("emit")
    client.send("1", "talk")
    hold.wait()
    eventually(lambda: len(made) >= 4, "the backlog is full")
    turns(system)
    assert len(made) == 4
    hold.release()
    assert ends(client, Kind.REPLY) == [chunk] * 20
    assert len(made) == 20


def turns(system: ActorSystem) -> None:
    """Let both loops, and other threads, come round often enough for whoever does not wait to go on."""

    async def turn() -> None:
        for _ in range(100):
            await asyncio.sleep(0)

    for loop in (system._user, system._control) * 5:
        loop.run(turn).result(WAIT_S)


@pytest.mark.parametrize("threaded", [False, True], ids=["coroutine", "function"])
def test_a_chunk_that_redis_refuses_is_told_to_all_who_wait_behind_it_and_the_cycle_may_go_on(
    threaded: bool, running: Running, director: Director, client: Client
) -> None:
    gate = StoreGate.of(running(director.agent(threaded=threaded)))
    client.send("1", "wait")
    run = director.run("1")
    hold = gate.before("emit")

    async def both(cycle: Cycle) -> Any:
        return await asyncio.gather(cycle.send("a"), cycle.send("b"), return_exceptions=True)

    def both_in_threads(cycle: ThreadCycle) -> Any:
        raised: list[BaseException] = []

        def send(body: str) -> None:
            try:
                cycle.send(body)
            except RedisRefused as error:
                raised.append(error)

        threads = [threading.Thread(target=send, args=(body,)) for body in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        return raised

    answered = run.begin(both_in_threads if threaded else both)
    hold.wait()
    link = run.cycle._link
    eventually(lambda: len(link._behind) == 2, "both wait")  # type: ignore[attr-defined]  # a CycleLink
    hold.release(RedisRefused("out of memory"))
    assert [type(error) for error in answered.result(WAIT_S)] == [RedisRefused, RedisRefused]
    run.send("c")
    run.finish("done")
    assert settled(client, "1", run.ticket).body == "done"
    assert said(client) == ["c"]


@BOTH
def test_a_chunk_that_cannot_be_stored_fails_the_attempt(threaded: bool, running: Running, client: Client) -> None:
    running(talker(threaded, "a", lambda cycle: cycle.stream(object()), "b", chunk_interval=NEVER))
    client.send("1", "talk")
    assert ends(client, Kind.FAILED) == ["a"]
    [failed] = [output for output in client.outputs("1") if output.kind is Kind.FAILED]
    assert "cannot be stored" in (failed.error or "")


@BOTH
def test_a_stream_is_refused_in_its_middle_once_the_interrupt_is_in_redis(
    threaded: bool, running: Running, client: Client
) -> None:
    """row 6: also when nobody has told the worker"""
    middle, raised = Pause(threaded), threading.Event()

    async def goes_on(cycle: Cycle) -> None:
        try:
            while True:
                await cycle.stream("b")
                await asyncio.sleep(0)
        except (CycleEnded, asyncio.CancelledError):
            raised.set()
            raise

    def goes_on_in_thread(cycle: ThreadCycle) -> None:
        try:
            while True:
                cycle.stream("b")
        except CycleEnded:
            raised.set()
            raise

    go_on = goes_on_in_thread if threaded else goes_on
    cut_off(running(talker(threaded, "a", middle, go_on, chunk_interval=timedelta(0))))
    client.send("1", "talk")
    middle.wait()
    wait_output(client, "1", lambda output: output.body == "a")
    client.interrupt("1")
    middle.go.set()
    wait_for(raised, "the stream is refused")
    assert ends(client, Kind.ABORTED) == ["a"]
