"""(e) How long rooms are without a worker after theirs was killed, until what was in processing is replayed."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self

from redis import Redis

from greenroom import Agent, Cycle, Message
from greenroom.protocol.keys import Keys
from greenroom.supervisors.system import DEFAULT_LEASE
from greenroom.supervisors.worker import BEATS_A_LEASE

from .figures import Figure, below, percentile
from .workload import PATIENCE_S, enqueue, room_names

ROOMS = 5  # of each worker that is killed
RESTARTS, LANES, TAKE_OVERS = 100, 6, 4  # lanes: agents whose workers are killed at the same time; rounds in each
QUICK_RESTARTS, QUICK_LANES, QUICK_TAKE_OVERS = 3, 2, 1
LEASE_S = DEFAULT_LEASE.total_seconds()
AIM_MS = int((LEASE_S + 1) * 1000)  # of a take-over by another worker
LOOK_S = 0.01


class Hanging(Agent):
    """Never ends a cycle, so that whoever kills its worker knows what is in processing."""

    max_attempts = 1_000_000

    async def respond(self, message: Message, cycle: Cycle) -> None:
        await asyncio.Event().wait()


def recovery(url: str, *, quick: bool) -> Iterator[Figure]:
    """Workers as people run them, ``greenroom run`` with the default lease: started again at once, and not started again."""
    restarts = QUICK_RESTARTS if quick else RESTARTS
    lanes, rounds = (QUICK_LANES, QUICK_TAKE_OVERS) if quick else (LANES, TAKE_OVERS)
    with Redis.from_url(url) as redis:
        redis.flushall()
    from_kill, from_start = _restart(url, restarts)
    yield from _figures("same name, from its start", from_start, f"n={restarts}")
    yield from _figures("same name, from the kill", from_kill)
    with ThreadPoolExecutor(lanes) as pool:
        times = [ms for found in pool.map(partial(_take_over, url, rounds), range(lanes)) for ms in found]
    note = f"n={len(times)} {lanes * rounds} kills, lease {LEASE_S:g} s"
    yield from _figures("another worker, from the kill", times, note, AIM_MS)


def _figures(what: str, times_ms: list[float], note: str = "", aim: float | None = None) -> Iterator[Figure]:
    for percent in (50, 99, 100):
        name = "max" if percent == 100 else f"p{percent}"
        limit = aim if percent == 100 else None
        notes = note if percent == 50 else ""
        yield below("e", f"replay, {what}, {name}", percentile(times_ms, percent), "ms", limit, notes)


def _restart(url: str, rounds: int) -> tuple[list[float], list[float]]:
    """The ms to the first room that is replayed, from the kill and from the start of the next process of the same name."""
    from_kill, from_start = [], []
    with Lane(url, "restart") as lane:
        worker = lane.start("worker")
        lane.fill()
        for _ in range(rounds):
            killed_ms = lane.kill(worker)
            started_ms = _now_ms()
            worker = lane.start("worker")
            first_ms = min(lane.replays())
            from_kill.append(first_ms - killed_ms)
            from_start.append(first_ms - started_ms)
    return from_kill, from_start


def _take_over(url: str, rounds: int, number: int) -> list[float]:
    """The ms from each kill to each room's replay by the other worker, which is the next to be killed."""
    found: list[float] = []
    with Lane(url, f"take-over-{number}") as lane:
        worker = lane.start("worker-0")
        lane.fill()
        for heir in range(1, rounds + 1):
            other = lane.start(f"worker-{heir}")
            lane.wait_joined(f"worker-{heir}")
            time.sleep(random.uniform(0, LEASE_S / BEATS_A_LEASE))  # so that the kill meets every moment between two beats
            killed_ms = lane.kill(worker)
            found += [at_ms - killed_ms for at_ms in lane.replays()]
            worker = other
    return found


def _now_ms() -> float:
    return time.time() * 1000  # this machine's clock, which is also the server's


class Lane:
    """One agent, some rooms, and its workers, each a process; all of them end with it."""

    def __init__(self, url: str, agent: str) -> None:
        self._url = url
        self._keys = Keys(agent)
        self._redis: Any = Redis.from_url(url)  # its types know no bytes
        self._seen = "0-0"  # of the events
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.kill()
            process.wait()
        self._redis.close()

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Start a worker; it has not joined yet."""
        command = [sys.executable, "-P", "-m", "greenroom", "run", f"{__name__}:Hanging"]
        options = ["--agent", self._keys.agent, "--redis", self._url, "--name", name, "--grace", "0"]
        process = subprocess.Popen([*command, *options, "--log-level", "error"], stdin=subprocess.DEVNULL)
        self._running.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> float:
        """Kill a worker; answer when, in ms."""
        self._check_running()
        self._running.remove(process)
        killed_ms = _now_ms()
        process.kill()
        process.wait()
        return killed_ms

    def _check_running(self) -> None:
        for process in self._running:
            if process.poll() is not None:
                raise RuntimeError(f"a worker of {self._keys.agent} has ended by itself, with {process.returncode}")

    def fill(self) -> None:
        """Have a cycle in each room, on the one worker that runs."""
        asyncio.run(enqueue(self._url, self._keys.agent, room_names(ROOMS), 1))
        self._wait("all cycles are in flight", lambda: self._redis.zcard(self._keys.processing) == ROOMS)

    def wait_joined(self, name: str) -> None:
        self._wait(f"{name} has joined", lambda: self._redis.exists(self._keys.worker(name)))

    def _wait(self, what: str, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            self._check_running()
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {PATIENCE_S:.0f} s in vain until {what}")
            time.sleep(LOOK_S)

    def replays(self) -> list[float]:
        """When each room's message was granted again, in ms: the act that does so notes the crash of the cycle before."""
        found: list[float] = []

        def all_found() -> bool:
            reply = self._redis.xread({self._keys.events: self._seen})
            for entry, row in reply[0][1] if reply else []:
                self._seen = entry
                if row[b"event"] == b"cycle.crashed":
                    found.append(float(entry.partition(b"-")[0]))
            return len(found) == ROOMS

        self._wait("all rooms are replayed", all_found)
        return found
