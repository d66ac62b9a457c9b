"""(a) Messages a second through an actor system, and (b) the same scripts from a bare loop: what the actors cost."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from redis import Redis

from greenroom import ActorSystem
from greenroom.protocol.connect import connect
from greenroom.protocol.keys import Keys
from greenroom.protocol.store import Grant, Store, Terms, read_ready, set_state

from .figures import Figure, above
from .workload import PATIENCE_S, Worker, await_event, enqueue, room_names

MAX_ROOMS = 1000  # as an actor system has by default
PAGE = 100
AIM_RATE, AIM_RATIO = 10_000, 0.5
LOOK_S = 0.005


@dataclass(frozen=True, slots=True)
class Shape:
    rooms: int
    each: int

    @property
    def messages(self) -> int:
        return self.rooms * self.each

    def __str__(self) -> str:
        return f"{self.rooms:,} room{'s' if self.rooms > 1 else ''} x {self.each:,}"


SHAPES = (Shape(500, 40), Shape(20_000, 1), Shape(1, 5_000))
QUICK_SHAPES = (Shape(50, 40), Shape(2_000, 1), Shape(1, 500))


def prepare(url: str, agent: str, shape: Shape) -> None:
    with Redis.from_url(url) as redis:
        redis.flushall()
    asyncio.run(enqueue(url, agent, room_names(shape.rooms), shape.each))


def measure_system(url: str, shape: Shape, worker: type[Worker] = Worker) -> float:
    """Messages a second, from the first handler's start to the last commit."""
    keys = Keys("bench")
    prepare(url, keys.agent, shape)
    worker.expect(work=shape.messages)
    with Redis.from_url(url) as redis, ActorSystem(worker, agent=keys.agent, redis=url, max_rooms=MAX_ROOMS):
        await_event(worker.all_worked, f"{shape}: {shape.messages} messages")
        deadline = time.perf_counter() + PATIENCE_S
        while redis.zcard(keys.processing) and time.perf_counter() < deadline:
            time.sleep(LOOK_S)
        return shape.messages / (time.perf_counter() - worker.first_at)


async def _drive(store: Store, incarnation: int, ready: str, room: str, terms: Terms) -> None:
    answer = await store.claim(room, worker="bare", incarnation=incarnation, ready=ready, request=ready, terms=terms)
    while isinstance(answer, Grant):
        state = set_state(b"\x81\xa1n\x01")
        answer = await store.commit(room, answer.ticket, state=state, reply=b"\x01", take_next=True, terms=terms)


async def _bare(url: str, keys: Keys) -> float:
    redis, terms = connect(url), Terms()
    store = Store(redis, keys)
    beat = await store.heartbeat("bare", None, lease_ms=600_000, instance="bench", about={})
    group = ("XREADGROUP", "GROUP", "supervisors", "bare", "COUNT", PAGE, "STREAMS", keys.ready, ">")
    start = time.perf_counter()
    running: set[asyncio.Task[None]] = set()
    while entries := read_ready(await store.pipeline.command(*group)):
        running |= {asyncio.create_task(_drive(store, beat.incarnation, ready, room, terms)) for ready, room in entries}
        while len(running) > MAX_ROOMS - PAGE:
            running -= (await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))[0]
    await asyncio.gather(*running)
    seconds = time.perf_counter() - start
    await store.close()
    await redis.aclose()
    return seconds


def measure_ceiling(url: str, shape: Shape) -> float:
    """Messages a second of one event loop that does nothing but claim and commit, as many at a time as it may."""
    keys = Keys("bench")
    prepare(url, keys.agent, shape)
    return shape.messages / asyncio.run(_bare(url, keys))


def throughput(url: str, sections: set[str], *, quick: bool, repeats: int) -> Iterator[Figure]:
    """Both, taken in turns so that a busy machine disturbs both alike; medians, and the ratio of each pair of runs."""
    for shape in QUICK_SHAPES if quick else SHAPES:
        rates, ceilings = [], []
        for _ in range(repeats):
            if "a" in sections:
                rates.append(measure_system(url, shape))
            if "b" in sections:
                ceilings.append(measure_ceiling(url, shape))
        yield from _figures(shape, rates, ceilings)


def _figures(shape: Shape, rates: list[float], ceilings: list[float]) -> Iterator[Figure]:
    one_room = shape.rooms == 1  # its messages wait for one another: a round trip each, and no aim
    if rates:
        aim = None if one_room else AIM_RATE
        yield above("a", f"{shape}", statistics.median(rates), "msg/s", aim, _spread(rates))
    if ceilings:
        yield above("b", f"{shape}, bare loop", statistics.median(ceilings), "msg/s", note=_spread(ceilings))
    if rates and ceilings:
        ratios = [rate / ceiling for rate, ceiling in zip(rates, ceilings, strict=True)]
        aim_ratio = None if one_room else AIM_RATIO
        yield above("b", f"{shape}, system / bare loop", statistics.median(ratios), "", aim_ratio, _spread(ratios))


def _spread(values: list[float]) -> str:
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    return f"{low:,.0f} .. {high:,.0f}" if high >= 100 else f"{low:.2f} .. {high:.2f}"
