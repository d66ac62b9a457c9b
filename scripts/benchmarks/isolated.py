"""(g) What a cycle costs in a child process, and how long a child outlives the stop of its cycle."""

from __future__ import annotations

import asyncio
import logging
import os
import statistics
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from redis import Redis

from greenroom import ActorSystem, Agent, Client, Cycle, Message, ThreadCycle
from greenroom.protocol.keys import Keys

from .figures import Figure, below, percentile
from .workload import PATIENCE_S, enqueue

AGENT, ROOM = "bench", "room"
CYCLES, STOPS = 2000, 60
QUICK_CYCLES, QUICK_STOPS = 200, 6
LOOK_S = 0.0002
GRACE = timedelta(milliseconds=100)  # for code that does not end by itself


class Coroutine(Agent):
    async def respond(self, message: Message, cycle: Cycle) -> Any:
        cycle.state["n"] = cycle.state.get("n", 0) + 1
        return cycle.state["n"]


class Threaded(Agent):
    def respond(self, message: Message, cycle: ThreadCycle) -> Any:
        cycle.state["n"] = cycle.state.get("n", 0) + 1
        return cycle.state["n"]


class Isolated(Coroutine):
    isolation = "process"


class Sleeping(Agent):
    """Says in which process it is, and sleeps."""

    isolation = "process"
    max_processes = 1  # so that none is being started while another is stopped

    async def respond(self, message: Message, cycle: Cycle) -> None:
        await cycle.stream(os.getpid())
        await asyncio.sleep(PATIENCE_S)


class Busy(Sleeping):
    """And blocks its loop, so that it cannot be told anything."""

    abort_timeout = GRACE

    async def respond(self, message: Message, cycle: Cycle) -> None:
        await cycle.stream(os.getpid())
        time.sleep(PATIENCE_S)  # noqa: ASYNC251  # that is what it does


def isolated(url: str, *, quick: bool, repeats: int) -> Iterator[Figure]:
    logging.getLogger("greenroom").setLevel(logging.ERROR)  # it warns of each that has to be killed
    cycles, stops = (QUICK_CYCLES, QUICK_STOPS) if quick else (CYCLES, STOPS)
    yield from _costs(url, cycles, repeats)
    yield from _deaths(url, Sleeping, stops, "ends when told")
    yield from _deaths(url, Busy, stops, f"killed after {GRACE / timedelta(milliseconds=1):g} ms")


# What a cycle costs. ---------------------------------------------------------------------------------


def _costs(url: str, cycles: int, repeats: int) -> Iterator[Figure]:
    kinds: dict[str, type[Agent]] = {"coroutine": Coroutine, "thread": Threaded, "process": Isolated}
    costs: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(repeats):
        for kind, agent_class in kinds.items():
            costs[kind].append(_cost_us(url, agent_class, cycles))
    for kind, values in costs.items():
        yield below("g", f"1 room x {cycles:,}, {kind}", statistics.median(values), "us each")
    for kind in ("coroutine", "thread"):
        ratios = [isolated / other for isolated, other in zip(costs["process"], costs[kind], strict=True)]
        yield below("g", f"process / {kind}", statistics.median(ratios), "")


def _cost_us(url: str, agent_class: type[Agent], cycles: int) -> float:
    """Of one cycle of a room that has so many messages waiting, in a worker that is warm."""
    queue = Keys(AGENT).messages(ROOM)
    with Redis.from_url(url) as redis:
        redis.flushall()
        with Client(AGENT, redis=url) as client, ActorSystem(agent_class, agent=AGENT, redis=url):
            client.ask("warm", "up")
            client.pause(ROOM)
            asyncio.run(enqueue(url, AGENT, [ROOM], cycles))
            start = time.perf_counter()
            client.play(ROOM)
            while redis.xlen(queue) and time.perf_counter() - start < PATIENCE_S:
                time.sleep(LOOK_S * 10)
            return (time.perf_counter() - start) / cycles * 1e6


# How long a child lives on. --------------------------------------------------------------------------


def _deaths(url: str, agent_class: type[Agent], stops: int, what: str) -> Iterator[Figure]:
    with Redis.from_url(url) as redis:
        redis.flushall()
    with Client(AGENT, redis=url) as client, ActorSystem(agent_class, agent=AGENT, redis=url):
        times_ms = [_death_ms(client, f"{ROOM}-{number}") for number in range(stops)]
    for percent in (50, 99):
        notes = f"n={stops}" if percent == 50 else ""
        yield below("g", f"stop to death, {what}, p{percent}", percentile(times_ms, percent), "ms", note=notes)


def _death_ms(client: Client, room: str) -> float:
    """From the call that stops the room's cycle until its child is dead and gone, and nobody's zombie."""
    client.send(room, "go")
    pid = next(output.body for output in client.outputs(room, follow=True))
    died: list[float] = []
    watch = threading.Thread(target=lambda: died.append(_death_of(pid)))
    watch.start()
    start = time.perf_counter()
    client.stop(room)
    watch.join()
    return (died[0] - start) * 1000


def _death_of(pid: int) -> float:
    deadline = time.perf_counter() + PATIENCE_S
    while time.perf_counter() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return time.perf_counter()
        time.sleep(LOOK_S)
    raise TimeoutError(f"waited {PATIENCE_S:.0f} s in vain for the end of process {pid}")
