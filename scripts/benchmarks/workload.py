"""The agents that are measured, and what fills Redis with work for them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from typing import Any, ClassVar

from greenroom import Agent, Cycle, Message
from greenroom.protocol.connect import connect
from greenroom.protocol.keys import Keys
from greenroom.protocol.store import Store

WAIT = "wait"  # the body of a message whose cycle waits until it is interrupted
PATIENCE_S = 300.0  # no step of a benchmark takes longer: give up, rather than hang
BODIES = {WAIT: b"\xa4wait", "work": b"\xa4work"}  # as msgpack


class Worker(Agent):
    """Counts its cycles: one that works replies and changes its state, one that waits says when it was cancelled.

    What a benchmark reads is on the class, which a worker process has one of; ``expect`` begins anew.
    """

    worked: ClassVar[int]
    waiting: ClassVar[int]
    first_at: ClassVar[float]
    last_at_ns: ClassVar[int]
    cancelled_at_ns: ClassVar[dict[str, int]]
    all_worked: ClassVar[threading.Event]
    all_waiting: ClassVar[threading.Event]
    _to_work: ClassVar[int]
    _to_wait: ClassVar[int]

    @classmethod
    def expect(cls, *, work: int = 0, wait: int = 0) -> None:
        """Set ``all_worked`` and ``all_waiting`` after this many cycles of each kind have begun."""
        cls.worked, cls.waiting, cls.first_at, cls.last_at_ns, cls.cancelled_at_ns = 0, 0, 0.0, 0, {}
        cls._to_work, cls._to_wait = work, wait
        cls.all_worked, cls.all_waiting = threading.Event(), threading.Event()

    async def respond(self, message: Message, cycle: Cycle) -> Any:
        if message.body == WAIT:
            return await self._wait(message.room)
        kind = type(self)
        kind.first_at = kind.first_at or time.perf_counter()
        kind.worked += 1
        cycle.state["n"] = cycle.state.get("n", 0) + 1
        if kind.worked == kind._to_work:
            kind.last_at_ns = time.perf_counter_ns()
            kind.all_worked.set()
        return cycle.state["n"]

    async def _wait(self, room: str) -> None:
        kind = type(self)
        kind.waiting += 1
        if kind.waiting == kind._to_wait:
            kind.all_waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            kind.cancelled_at_ns[room] = time.perf_counter_ns()
            raise


def await_event(event: threading.Event, what: str) -> None:
    """Wait for ``event``.

    Raises:
        TimeoutError: it did not come; it says what was waited for.
    """
    if not event.wait(PATIENCE_S):
        raise TimeoutError(f"waited {PATIENCE_S:.0f} s in vain for {what}")


async def enqueue(url: str, agent: str, rooms: list[str], each: int, body: str = "work") -> None:
    """Put ``each`` messages into each of the rooms."""
    redis = connect(url)
    store = Store(redis, Keys(agent))
    for number in range(each):
        for start in range(0, len(rooms), 1000):
            page = rooms[start : start + 1000]
            keys = [f"{room}:{body}:{number}" for room in page]
            sent = [
                store.enqueue(room, BODIES[body], key=key, key_ttl_s=60, limit=each)
                for room, key in zip(page, keys, strict=True)
            ]
            await asyncio.gather(*sent)
    await store.close()
    await redis.aclose()


async def remember(url: str, agent: str, rooms: list[str]) -> None:
    """Leave each room as one that worked some time ago: it has state, and nothing else."""
    redis, keys = connect(url), Keys(agent)
    for start in range(0, len(rooms), 1000):
        async with redis.pipeline(transaction=False) as pipe:
            for room in rooms[start : start + 1000]:
                pipe.set(keys.state(room), b"\x92\x01\x81\xa1n\x01")
                pipe.zadd(keys.rooms, {room: 1})
            await pipe.execute()
    await redis.aclose()


def room_names(count: int, prefix: str = "room") -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def fill_elsewhere(act: str, url: str, agent: str, count: int) -> None:
    """Run ``enqueue`` (of cycles that wait) or ``remember`` in another process, so that this one's memory stays its own."""
    subprocess.run([sys.executable, "-P", "-m", "benchmarks.workload", act, url, agent, str(count)], check=True)


if __name__ == "__main__":
    _, act, url, agent, count = sys.argv
    names = room_names(int(count))
    asyncio.run(remember(url, agent, names) if act == "remember" else enqueue(url, agent, names, 1, WAIT))
