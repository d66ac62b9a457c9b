"""(f) What a step and a chunk cost a cycle, and how many chunks a second many rooms stream at once."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, ClassVar

from redis import Redis

from greenroom import ActorSystem, Agent, Client, Cycle, Message

from .figures import Figure, above, below
from .throughput import Shape, measure_system
from .workload import Worker

AGENT = "bench"
CALLS, ROOMS, EACH, CHUNKS = 2000, 500, 40, 200
QUICK_CALLS, QUICK_ROOMS, QUICK_CHUNKS = 200, 50, 100


async def nothing() -> None:
    """What a step does here."""


class OneByOne(Agent):
    """Does one thing so many times, each when the one before is done, and replies with the µs that each took."""

    async def respond(self, message: Message, cycle: Cycle) -> float:
        what, count = message.body
        start = time.perf_counter()
        for number in range(count):
            await (cycle.step(str(number), nothing) if what == "step" else cycle.send("token"))
        return (time.perf_counter() - start) / count * 1e6


class Stepping(Worker):
    """As a worker that works, with a step before."""

    async def respond(self, message: Message, cycle: Cycle) -> Any:
        await cycle.step("step", nothing)
        return await super().respond(message, cycle)


class Sending(Worker):
    """With a chunk before."""

    async def respond(self, message: Message, cycle: Cycle) -> Any:
        await cycle.stream("token")
        return await super().respond(message, cycle)


class Streaming(Worker):
    """With as many chunks as fast as they are taken: as a model would make them, with others at work between two."""

    chunk_interval = timedelta(0)
    chunks: ClassVar[int]

    async def respond(self, message: Message, cycle: Cycle) -> Any:
        type(self).first_at = type(self).first_at or time.perf_counter()
        for _ in range(self.chunks):
            await cycle.stream("token")
            await asyncio.sleep(0)
        return await super().respond(message, cycle)


class StreamingTogether(Streaming):
    """With the interval that an agent has by default."""

    chunk_interval = Agent.chunk_interval


def inside(url: str, *, quick: bool, repeats: int) -> Iterator[Figure]:
    calls, rooms, chunks = (QUICK_CALLS, QUICK_ROOMS, QUICK_CHUNKS) if quick else (CALLS, ROOMS, CHUNKS)
    yield from _one_by_one(url, calls)
    yield from _with_and_without(url, Shape(rooms, EACH), repeats)
    yield from _streaming(url, rooms, chunks, repeats)


def _one_by_one(url: str, calls: int) -> Iterator[Figure]:
    """In a cycle that has the worker and Redis for itself: two round trips and one."""
    with Redis.from_url(url) as redis:
        redis.flushall()
    with ActorSystem(OneByOne, agent=AGENT, redis=url), Client(AGENT, redis=url) as client:
        for what, named in (("step", "a step, one after the other"), ("chunk", "a chunk sent, one after the other")):
            client.ask(what, [what, calls // 10])  # the first ones pay for what is loaded and made
            yield below("f", named, client.ask(what, [what, calls]), "us each")


def _with_and_without(url: str, shape: Shape, repeats: int) -> Iterator[Figure]:
    """In many rooms at once; taken in turns, so that a busy machine disturbs all alike."""
    kinds = {"nothing": Worker, "a step": Stepping, "a chunk": Sending}
    rates: dict[str, list[float]] = {named: [] for named in kinds}
    for _ in range(repeats):
        for named, worker in kinds.items():
            rates[named].append(measure_system(url, shape, worker))
    for named in kinds:
        yield above("f", f"{shape}, {named} in each", statistics.median(rates[named]), "msg/s")
    for named in ("a step", "a chunk"):
        pairs = list(zip(rates[named], rates["nothing"], strict=True))
        cost_us = statistics.median((1 / rate - 1 / without) * 1e6 for rate, without in pairs)
        ratio = statistics.median(rate / without for rate, without in pairs)
        yield below("f", f"{named} in each, beside none", cost_us, "us each", note=f"{ratio:.2f} of the messages a second")


def _streaming(url: str, rooms: int, chunks: int, repeats: int) -> Iterator[Figure]:
    Streaming.chunks = chunks
    interval_ms = StreamingTogether.chunk_interval / timedelta(milliseconds=1)
    for worker, named in ((Streaming, "as soon as they can"), (StreamingTogether, f"those of {interval_ms:g} ms together")):
        rate = statistics.median(measure_system(url, Shape(rooms, 1), worker) * chunks for _ in range(repeats))
        yield above("f", f"{rooms} rooms x {chunks} chunks, {named}", rate, "chunk/s")
