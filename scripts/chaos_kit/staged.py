"""Staged recovery: a worker is killed with a thousand rooms in processing; the next one of its name resumes them at its pace.

Which bound of the pace is certain, on however busy a machine? The worker lets 1/pace pass from one room to the next and never
makes up for lost time. But what is seen is when Redis grants them, and what was asked for while Redis stood still is granted
all at once. So two things are demanded; that it is no slower is none of them:

- Since the worker joined, never more was granted than the pace allows for that time: no grant comes before its claim.
- In no second was more granted than the pace allows for that second and for the longest silence of Redis before it, and half
  as much again: clearly more.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo.record import place
from redis.asyncio import Redis

from greenroom import AsyncClient, Kind
from greenroom.protocol.keys import Keys
from greenroom.protocol.records import text

from .account import Account, settle
from .agent import Plan
from .fleet import Fleet, Options, Place
from .ledger import Ledger, Sent
from .ledger import Place as Moment
from .snapshot import take_snapshot

ROOMS, PACE = 1000, 200.0  # rooms a second
OPTIONS = Options(agent="staged", lease_s=60.0, max_rooms=ROOMS, recovery_rate=PACE)  # nobody loses its lease meanwhile
PLAN = Plan(n=1, chunks=0, pause_ms=0, hangs=1, fails=0, collapses=0, exits=0, rejects=False, shields=False, hostile=False)
PATIENCE_S = 120.0  # for each step, which takes some seconds at the most
LOOK_S = 0.05
PROBE_S = 0.01
SPARE = 5  # rooms: two for the beginning, the rest for clocks that count ms
MARGIN = 1.5


@dataclass(slots=True)
class Staged:
    """What was seen. ``resumed_ms``: when each second attempt was granted, in order, by the server's clock; ``joined_ms``: when
    their worker joined; ``silent_s``: the longest time for which Redis answered nobody.
    """

    pace: float
    in_processing: int = 0
    joined_ms: int = 0
    resumed_ms: list[int] = field(default_factory=list)
    silent_s: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def line(self) -> str:
        """All of it in a line."""
        words = f"staged resume: {self.in_processing:,} rooms in processing, stated pace {self.pace:,.0f} a second; "
        times = self.resumed_ms
        if len(times) < 2 or times[-1] == times[0]:
            return words + f"{len(times):,} resumed"
        seconds = (times[-1] - times[0]) / 1000
        rate, most = (len(times) - 1) / seconds, most_in_a_second(times)
        return words + f"resumed in {seconds:.1f} s, {rate:,.0f} a second, at most {most:,} in any second"

    def check(self, account: Account) -> None:
        """See that every message was committed by its second attempt, and at no clearly higher pace than stated."""
        self.wrong += [f"staged resume: {finding}" for finding in account.wrong]
        if not account.ends["committed"] == account.crashes == account.sent == self.in_processing == len(self.resumed_ms):
            done = f"{account.ends['committed']} committed, {account.crashes} crashed, {self.in_processing} in processing"
            self.wrong.append(f"staged resume: of {account.sent} messages {done}: want each of them, once")
        allowed = SPARE + MARGIN * self.pace * (1 + self.silent_s)
        if (most := most_in_a_second(self.resumed_ms)) > allowed:
            self.wrong.append(f"staged resume: {most} rooms in one second, at a stated pace of {self.pace:g} a second")
        for number, at_ms in enumerate(self.resumed_ms, 1):
            since_s = (at_ms - self.joined_ms) / 1000
            if number > SPARE + self.pace * since_s:
                self.wrong.append(
                    f"staged resume: {number} rooms within {since_s:.3f} s, at a stated pace of {self.pace:g} a second"
                )
                return


def most_in_a_second(times_ms: Sequence[int]) -> int:
    """How many of these times, which are in order, lie within any one second."""
    most = first = 0
    for last, at_ms in enumerate(times_ms):
        while times_ms[first] <= at_ms - 1000:
            first += 1
        most = max(most, last - first + 1)
    return most


async def resume_in_stages(url: str, folder: Path, redis: Redis) -> Staged:
    """Do it with an agent and workers of its own, and account for every message."""
    await asyncio.to_thread(folder.mkdir)
    ledger, found, keys = Ledger(folder / "ledger.jsonl"), Staged(PACE), Keys(OPTIONS.agent)
    fleet = Fleet(ledger, url, folder, places=1, options=OPTIONS)
    try:
        async with AsyncClient(keys.agent, redis=url) as client:
            await _send(ledger, client)
            await _crash_and_resume(ledger, fleet.places[0], redis, keys, found)
            await fleet.stop()
            await _account(ledger, client, redis, keys, found)
    finally:
        fleet.kill_now()
        ledger.close()
    return found


async def _send(ledger: Ledger, client: AsyncClient) -> None:
    rooms = [f"s{number:04}" for number in range(1, ROOMS + 1)]
    for room, message in zip(rooms, await asyncio.gather(*(client.send(room, PLAN) for room in rooms)), strict=True):
        ledger.add_sent(Sent(room, message, "", "staged"))


async def _crash_and_resume(ledger: Ledger, worker: Place, redis: Any, keys: Keys, found: Staged) -> None:
    async def all_in_processing() -> bool:
        return bool(await redis.zcard(keys.processing) == ROOMS)

    async def all_ended() -> bool:
        return not await redis.xlen(keys.ready)

    async with worker.lock:
        await worker.start()
    await _wait_for(ledger, "all rooms are in processing", all_in_processing)
    async with worker.lock:
        await worker.end(signal.SIGKILL, -signal.SIGKILL)
        found.in_processing = await redis.zcard(keys.processing)
        async with _listening(redis, found):
            await worker.start()
            await _wait_for(ledger, "all rooms are resumed and have ended", all_ended)


async def _wait_for(ledger: Ledger, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if await condition():
                    return
                await asyncio.sleep(LOOK_S)
    ledger.complain(f"staged resume: waited {PATIENCE_S:.0f} s in vain until {what}")


@asynccontextmanager
async def _listening(redis: Any, found: Staged) -> AsyncIterator[None]:
    """Measure for how long Redis answers nobody at the most: this process' own pauses count as Redis', which does no harm."""

    async def listen() -> None:
        answered_s = time.monotonic()
        while True:
            await redis.ping()
            now_s = time.monotonic()
            found.silent_s = max(found.silent_s, now_s - answered_s)
            answered_s = now_s
            await asyncio.sleep(PROBE_S)

    task = asyncio.create_task(listen())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _account(ledger: Ledger, client: AsyncClient, redis: Any, keys: Keys, found: Staged) -> None:
    """Every message was committed, once, by its second attempt; and at what times that was granted."""

    async def read(room: str, _: Moment) -> None:
        async for output in client.outputs(room):
            ledger.add_output(room, output)

    shot = await take_snapshot(redis, keys, (sent.room for sent in ledger.sent), read)
    for entry, row in await redis.xrange(keys.events):
        if text(row[b"event"]) == "worker.joined":
            found.joined_ms = place(text(entry))[0]  # the last to join is the one that resumes
    # A dead cycle's entry is closed in the same act as the next attempt is granted.
    seen = [output for outputs in ledger.outputs.values() for output in outputs]
    found.resumed_ms = sorted(output.place[0] for output in seen if output.kind is Kind.FAILED)
    found.check(settle(ledger, shot))
