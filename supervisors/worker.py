"""What the parts of one worker share, and its lease."""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pykka

from ..actors.loop_actor import tell
from ..actors.room import RoomContext
from ..protocol.errors import GreenroomError, NewerVersion, RedisEmptied, RedisUnavailable, Superseded
from ..protocol.log import log
from ..protocol.retention import Retention
from ..protocol.store import Beat
from .rooms import Owned, RoomSupervisor
from .service import Service

BEATS_A_LEASE = 3
PATIENCE_STEPS = 10
PAGE = 100  # entries of the pending list that are read at once


@dataclass(slots=True)
class Worker:
    """One worker: its rooms' context, its lease, and the parts of it that the others talk to. Control loop only."""

    context: RoomContext
    lease_s: float
    on_fatal: Callable[[GreenroomError], None]
    control_seen: str | None = None  # how far the control stream was read, over restarts of the listener
    recovery_rate: float = 100.0  # rooms a second that are resumed after a restart or a take-over
    rescan: asyncio.Event = field(default_factory=asyncio.Event)  # the dispatcher is to look through what this worker owns
    rooms: pykka.ActorRef[RoomSupervisor] | None = None
    redis_patience_s: float | None = None  # how long Redis may be unreachable; None: for ever
    held_until_s: float = 0.0  # until when the lease is certainly held, by the monotonic clock
    instance: str = ""
    ahead_s: float = 0.0  # how far the server's time is ahead of the monotonic clock here
    counted: tuple[int, int] = (0, 0)  # the last entry of the control stream that was counted
    about: dict[str, str] = field(default_factory=dict)
    retention: Retention = field(default_factory=Retention)

    @property
    def name(self) -> str:
        return self.context.worker

    def tell_rooms(self, message: Any) -> None:
        tell(self.rooms, message)

    def heard(self, entry: str, upto: int, mode: str, outcome: str) -> None:
        """Count a signal that the control stream tells of, and how long ago Redis accepted it: by Redis' clock, to within half
        the round trip of a heartbeat. What was accepted before this worker joined, or is read once more, does not count.
        """
        at_ms, number = map(int, entry.split("-"))
        counts = self.context.counts
        if upto < self.context.incarnation or (at_ms, number) <= self.counted or (mode, outcome) not in counts.signals:
            return
        self.counted = at_ms, number
        counts.signals[mode, outcome] += 1
        counts.signal_s.observe(max(0.0, time.monotonic() + self.ahead_s - at_ms / 1000))

    async def beat(self) -> Beat:
        """Join, or renew the lease.

        Raises:
            Superseded: a newer worker of this name exists.
            RedisEmptied: this is not the Redis that the worker joined, or it has lost its data.
            NewerVersion: the agent's data is of a newer version.
        """
        context, asked_s = self.context, time.monotonic()
        beat = await context.store.heartbeat(
            context.worker,
            context.incarnation or None,
            lease_ms=int(self.lease_s * 1000),
            instance=self.instance or uuid.uuid4().hex,
            about=self._about(),
        )
        if beat.word == "superseded":
            raise Superseded(
                f"a newer worker named {context.worker} has taken over: give each worker a name of its own, or end the other"
            )
        if beat.word == "emptied":
            raise RedisEmptied(
                "Redis has lost this agent's data, stops included: restore it or accept the loss, then start the worker again"
            )
        context.incarnation, self.instance = beat.incarnation, beat.instance
        self.held_until_s = asked_s + self.lease_s
        self.ahead_s = beat.at_ms / 1000 - (asked_s + time.monotonic()) / 2
        return beat

    def _about(self) -> dict[str, str]:
        # Nothing is trimmed from the control stream that a live worker has not read.
        place = {} if self.control_seen is None else {"control": self.control_seen}
        slots, lag_ms = self.context.slots, round(self.context.counts.lag.most_s() * 1000)
        return {**self.about, "rooms": str(slots.used), "slots": str(slots.most), "lag_ms": str(lag_ms), **place}

    async def retain(self) -> None:
        """Say what is kept, unless a newer worker has."""
        await self.context.store.retain(self.name, self.context.incarnation, self.retention)


def describe_process() -> dict[str, str]:
    """What a worker's heartbeat says about its process."""
    return {"pid": str(os.getpid()), "host": socket.gethostname()}


class WorkerLease(Service):
    """Renews the lease. A newer worker of this name ends this one; a lease that had run out has the rooms looked through."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker.context.control)
        self._worker = worker

    async def run(self) -> None:
        worker = self._worker
        while True:
            try:
                beat = await self._beat()
            except (Superseded, RedisEmptied) as error:
                worker.on_fatal(error)
                return
            except NewerVersion as error:
                worker.on_fatal(error)
                await asyncio.Event().wait()  # until it is stopped: by its end it would have the rooms, which drain, restarted
            if beat is None:
                worker.on_fatal(RedisUnavailable(f"Redis has been unreachable for more than {worker.redis_patience_s:g} s"))
                return
            if beat.word == "lapsed":
                worker.context.counts.leases_lost += 1
                log.warning("worker.lapsed", lease_s=worker.lease_s)
                await self._let_go_of_lost()
                worker.rescan.set()
            await asyncio.sleep(worker.lease_s / BEATS_A_LEASE)

    async def _beat(self) -> Beat | None:
        """Renew the lease; answer None when Redis has not answered within the patience with it.

        It is counted in steps: a process that was suspended wakes to find every deadline past, and Redis' answer not read yet.
        """
        patience_s = self._worker.redis_patience_s
        if patience_s is None:
            return await self._worker.beat()
        beat = asyncio.ensure_future(self._worker.beat())
        try:
            for _ in range(PATIENCE_STEPS):
                await asyncio.wait([beat], timeout=patience_s / PATIENCE_STEPS)
                if beat.done():
                    return beat.result()
        finally:
            beat.cancel()
        return None

    async def _let_go_of_lost(self) -> None:
        """Tell the rooms which entries this worker still owns: those with another one were taken over."""
        owned, after = set[str](), "0-0"
        while page := await self._worker.context.store.pending(self._worker.name, after, PAGE):
            owned.update(ready for ready, _ in page)
            after = page[-1][0]
        self._worker.tell_rooms(Owned(owned))
