"""What goes wrong, at random: workers are killed, suspended, drained and replaced; Redis is killed and its connections cut."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from greenroom.protocol.keys import Keys
from greenroom.protocol.records import text
from greenroom.protocol.server import RedisServer
from greenroom.supervisors.process import ExitCode

from .fleet import AGENT, LEASE_S, Fleet, Place, Process
from .ledger import Death, Ledger, now_ms

LOOK_S = 0.5  # for which Redis is asked what a killed worker left behind, before that is given up
AWAKE_S = 0.5  # for which the rooms of a worker that was suspended are kept busy when it runs on
START_S = 20.0  # within which a worker that is to replace another must have started
REJOIN_S = 2.5  # within which all workers have connected to a Redis that is back: they try again after 2 s at the latest


Pause = Callable[[float], Awaitable[bool]]  # waits; answers whether the run goes on


class Faults:
    """Faults of one run. ``over`` says that no new one is to begin; what is under way is put right first."""

    def __init__(self, ledger: Ledger, fleet: Fleet, server: RedisServer, redis: Redis, seed: int, over: asyncio.Event) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._server = server
        self._redis = redis
        self._seed = seed
        self._over = over
        self._keys = Keys(AGENT)
        # Rooms whose worker is suspended. Senders keep them busy, so that it wakes up beside a newer cycle of the same room.
        self.hot = set[str]()

    async def run(self) -> None:
        """Let things go wrong until ``over``."""
        async with asyncio.TaskGroup() as group:
            for place in self._fleet.places:
                group.create_task(self._trouble_worker(place, random.Random(f"{self._seed} worker {place.number}")))
            group.create_task(self._trouble_redis(random.Random(f"{self._seed} redis")))

    async def pause(self, seconds: float) -> bool:
        """Wait, but not beyond the end of the run; answer whether it goes on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()
        return not self._over.is_set()

    async def _trouble_worker(self, place: Place, dice: random.Random) -> None:
        faults: dict[Callable[[Place, random.Random], Awaitable[None]], int] = {
            self._kill: 3,
            self._kill_and_rename: 3,
            self._suspend: 3,
            self._drain: 2,
            self._usurp: 1,
        }
        while True:
            fault = dice.choices(list(faults), list(faults.values()))[0]
            if not await self.pause(dice.uniform(2.0, 7.0)):
                return
            async with place.lock:
                await fault(place, dice)

    # Workers. -------------------------------------------------------------------------------------

    async def _kill(self, place: Place, dice: random.Random) -> None:
        if await self._kill_worker(place, same_name=True):
            await place.start()

    async def _kill_and_rename(self, place: Place, dice: random.Random) -> None:
        if await self._kill_worker(place, same_name=False):
            place.generation += 1
            await self.pause(LEASE_S)
            await place.start()

    async def _kill_worker(self, place: Place, *, same_name: bool) -> bool:
        at_ms = now_ms()
        if (process := await place.end(signal.SIGKILL, -signal.SIGKILL)) is None:
            return False
        self._ledger.did("kills", process.name)
        self._ledger.add_death(Death(process.name, at_ms, same_name, tuple(await self._left_by(process.name))))
        return True

    async def _left_by(self, worker: str) -> list[tuple[str, int]]:
        """The cycles (room, ticket) that Redis takes for live on a worker that is dead or suspended; none if Redis is away."""
        found = []
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(LOOK_S):
                live: Any = await self._redis.zrange(self._keys.processing, 0, -1, withscores=True)
                for room, ticket in live:
                    if await self._redis.hget(self._keys.room(text(room)), "owner") == worker.encode():
                        found.append((text(room), int(ticket)))
        return found

    async def _suspend(self, place: Place, dice: random.Random) -> None:
        process = place.process
        if process is None or not process.runs:
            return
        with self._ledger.trouble(process.name):
            process.suspended = True
            process.signal(signal.SIGSTOP)
            self._ledger.did("suspensions", process.name)
            hot = {room for room, _ in await self._left_by(process.name)}
            self.hot.update(hot)
            await self.pause(LEASE_S * dice.uniform(0.5, 2.5))
            place.resume()
        await self.pause(AWAKE_S)
        self.hot.difference_update(hot)

    async def _drain(self, place: Place, dice: random.Random) -> None:
        if process := await place.end(signal.SIGTERM, ExitCode.OK):
            self._ledger.did("drains", process.name)
            await place.start()

    async def _usurp(self, place: Place, dice: random.Random) -> None:
        """A second worker of the same name starts while the first is suspended: the first must give way when it wakes."""
        first = place.process
        if first is None or not first.runs or not first.started:
            return
        first.suspended, first.expected = True, ExitCode.SUPERSEDED
        with self._ledger.trouble(first.name):
            await self._replace(first, place)

    async def _replace(self, first: Process, place: Place) -> None:
        first.signal(signal.SIGSTOP)
        self._ledger.did("usurpations", first.name)
        second = await place.start()
        await self._ledger.wait_for(lambda: second.started or not second.runs, START_S)
        first.signal(signal.SIGCONT)
        ends = [asyncio.create_task(process.child.wait()) for process in (first, second)]
        await asyncio.wait(ends, timeout=START_S if second.started else 0, return_when=asyncio.FIRST_COMPLETED)
        if first.runs and not (second.started and second.runs):  # Redis was away, say: there is nobody to give way to
            first.expected = -signal.SIGKILL
            first.signal(signal.SIGKILL)
        for end in ends:
            end.cancel()
        await self._fleet.join(first)

    # Redis. ---------------------------------------------------------------------------------------

    async def _trouble_redis(self, dice: random.Random) -> None:
        while True:
            kill, down_s = dice.random() < 0.4, dice.choice([0.0, 0.5, 1.0, LEASE_S * 1.5])
            if not await self.pause(dice.uniform(4.0, 10.0)):
                return
            await (self._kill_redis(down_s) if kill else self._cut())

    async def _kill_redis(self, down_s: float) -> None:
        url = self._server.url
        self._ledger.did("Redis kills", f"down for {down_s} s")
        with self._ledger.trouble(None, REJOIN_S):
            await asyncio.to_thread(self._server.kill)
            await self.pause(down_s)
            await asyncio.to_thread(self._server.start)
        if self._server.url != url:
            raise RuntimeError(f"Redis could not have its port back: it is at {self._server.url} instead of {url}")

    async def _cut(self) -> None:
        with self._ledger.trouble(None), contextlib.suppress(RedisError, OSError):
            for kind in ("normal", "pubsub"):
                await self._redis.client_kill_filter(_type=kind, skipme=kind == "normal")
            self._ledger.did("connection cuts")
