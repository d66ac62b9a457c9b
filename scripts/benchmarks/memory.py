"""(d) What a room costs in memory: with a cycle in flight, and with nothing to do. Measured in a process of its own."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

from redis import Redis

from greenroom import ActorSystem, Client

from .figures import Figure, below, resident_kib
from .workload import PATIENCE_S, Worker, await_event, fill_elsewhere

AGENT = "bench"
IN_FLIGHT, IDLE = 10_000, 100_000
AIM_IN_FLIGHT_KIB, AIM_IDLE_KIB = 15, 0.05


def memory(url: str, *, quick: bool) -> Iterator[Figure]:
    in_flight, idle = (IN_FLIGHT // 10, IDLE // 10) if quick else (IN_FLIGHT, IDLE)
    each = _elsewhere("in-flight", url, in_flight)
    yield below("d", f"{in_flight:,} cycles in flight", each, "KiB each", AIM_IN_FLIGHT_KIB)
    each = _elsewhere("idle", url, idle)
    yield below("d", f"{idle:,} idle rooms", each, "KiB each", AIM_IDLE_KIB)


def _elsewhere(act: str, url: str, count: int) -> float:
    with Redis.from_url(url) as redis:
        redis.flushall()
    command = [sys.executable, "-P", "-m", "benchmarks.memory", act, url, str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE_S)
    return float(json.loads(done.stdout))


def settled_kib() -> float:
    gc.collect()
    return resident_kib()


def grown_kib(act: str, url: str, count: int) -> float:
    """By how much the memory of this process grows for each of ``count`` rooms."""
    with Client(AGENT, redis=url) as client:
        system = ActorSystem(Worker, agent=AGENT, redis=url, max_rooms=count + 1).start()
        Worker.expect(wait=1)
        client.send("warm", "wait")  # what the first cycle loads and makes is nobody's share
        await_event(Worker.all_waiting, "the first cycle")
        before = settled_kib()
        if act == "idle":
            fill_elsewhere("remember", url, AGENT, count)
        else:
            Worker.expect(wait=count)
            fill_elsewhere("enqueue", url, AGENT, count)
            await_event(Worker.all_waiting, f"{count} cycles in flight")
        grown = (settled_kib() - before) / count
        system.stop(timedelta(0))
    return grown


if __name__ == "__main__":
    _, act, url, count = sys.argv
    print(json.dumps(grown_kib(act, url, int(count))))
