"""(c) How long an interrupt takes, from another process, to reach the handler, and to be answered."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from redis import Redis

from greenroom import ActorSystem, Client

from .figures import Figure, below, percentile
from .throughput import LOOK_S, Shape
from .workload import PATIENCE_S, WAIT, Worker, await_event, enqueue, room_names

AGENT = "bench"
SIGNALS, LOAD = 1000, Shape(500, 300)
QUICK_SIGNALS, QUICK_LOAD = 100, Shape(50, 200)
MOST_GAP_S = 0.004  # between two interrupts, at random: so that they meet every moment of the worker's turns
AIM_IDLE_P50_MS, AIM_SATURATED_P99_MS = 1, 10


@dataclass(frozen=True, slots=True)
class Sample:
    """One interrupt; times in ns of the clock that all processes of this machine share."""

    room: str
    called: int
    answered: int


def latency(url: str, *, quick: bool) -> Iterator[Figure]:
    """The same interrupts, with nothing else to do and with as much as there can be."""
    signals, load = (QUICK_SIGNALS, QUICK_LOAD) if quick else (SIGNALS, LOAD)
    for shape in (None, load):
        samples, cancelled, dropped = _measure(url, signals, shape)
        what = "idle" if shape is None else "saturated"
        heard = [(cancelled[sample.room] - sample.called) / 1e6 for sample in samples if sample.room in cancelled]
        answered = [(sample.answered - sample.called) / 1e6 for sample in samples]
        yield from _figures(what, "to the handler", heard, f"{dropped} after the load" if dropped else "")
        yield from _figures(what, "to the answer", answered, "")


def _figures(what: str, end: str, times_ms: list[float], note: str) -> Iterator[Figure]:
    aims = {("idle", 50): AIM_IDLE_P50_MS, ("saturated", 99): AIM_SATURATED_P99_MS}
    for percent in (50, 99, 100):
        name = "max" if percent == 100 else f"p{percent}"
        aim = aims.get((what, percent)) if end == "to the handler" else None
        notes = f"n={len(times_ms)} {note}" if percent == 50 else ""
        yield below("c", f"interrupt, {what}, {end}, {name}", percentile(times_ms, percent), "ms", aim, notes)


def _measure(url: str, signals: int, load: Shape | None) -> tuple[list[Sample], dict[str, int], int]:
    """Interrupt ``signals`` cycles that wait; answer the samples, when each handler heard, and how many came after the load."""
    targets, loaded = room_names(signals, "target"), room_names(load.rooms if load else 0, "load")
    with Redis.from_url(url) as redis:
        redis.flushall()
    Worker.expect(work=load.messages if load else 0, wait=signals)
    max_rooms = len(targets) + len(loaded)
    with Client(AGENT, redis=url) as client:
        if load:
            client.pause(*loaded)
            asyncio.run(enqueue(url, AGENT, loaded, load.each))
        asyncio.run(enqueue(url, AGENT, targets, 1, WAIT))
        system = ActorSystem(Worker, agent=AGENT, redis=url, max_rooms=max_rooms).start()
        try:
            await_event(Worker.all_waiting, f"{signals} cycles in flight")
            samples = _interrupt_elsewhere(url, targets, client, loaded, load)
            if load:
                await_event(Worker.all_worked, "the end of the load")
                kept = [sample for sample in samples if sample.answered < Worker.last_at_ns]
            else:
                kept = samples
            return kept, dict(Worker.cancelled_at_ns), len(samples) - len(kept)
        finally:
            system.stop(timedelta(0))


def _interrupt_elsewhere(url: str, targets: list[str], client: Client, loaded: list[str], load: Shape | None) -> list[Sample]:
    command = [sys.executable, "-P", "-m", "benchmarks.latency", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()  # it is connected
        if load:
            client.play(*loaded)
            deadline = time.monotonic() + PATIENCE_S
            while Worker.worked < load.messages / 100 and time.monotonic() < deadline:
                time.sleep(LOOK_S)
        out, _ = process.communicate(json.dumps(targets), timeout=PATIENCE_S)
        return [Sample(*row) for row in json.loads(out)]


def interrupt_all(url: str) -> None:
    """The other process: interrupt the rooms that standard input names, one after the other."""
    with Client(AGENT, redis=url) as client:
        client.overview()
        print("connected", flush=True)
        rows = []
        for room in json.load(sys.stdin):
            time.sleep(random.uniform(0, MOST_GAP_S))
            called = time.perf_counter_ns()
            (receipt,) = client.interrupt(room)
            rows.append((room, called, time.perf_counter_ns()))
            assert receipt.outcome == "applied", receipt
        print(json.dumps(rows))


if __name__ == "__main__":
    interrupt_all(sys.argv[1])
