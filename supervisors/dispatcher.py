"""The dispatcher: rooms that are ready go to the room supervisor, as many as there are slots."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from ..protocol.connect import Outage, answering, back_off, open_connection
from ..protocol.errors import RedisError as GreenroomRedisError
from ..protocol.log import log
from ..protocol.store import read_ready
from .rooms import Activate
from .service import Service
from .worker import PAGE, Worker

STABLE_S = 10.0  # a part that has run for so long starts its back-off anew
ADOPT_S = 0.5  # how often dead workers are looked for: their rooms wait for the lease and this, and no longer
RESCAN_LEASES = 2  # how many leases lie between two looks at what this worker owns


class Dispatcher(Service):
    """Takes new work from the ready stream, and rooms that this worker owns already: after a restart, after a lost connection
    (an answer with entries may have been lost with it), and those that it adopts from dead workers.
    """

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker.context.control)
        self._worker = worker
        self._store = worker.context.store
        self._resume_at = 0.0

    async def run(self) -> None:
        self._worker.rescan.set()
        async with asyncio.TaskGroup() as parts:
            parts.create_task(self._forever(self._read))
            parts.create_task(self._forever(self._recover))

    async def _forever(self, part: Callable[[Outage], Awaitable[None]]) -> None:
        failures, outage = 0, Outage()
        while True:
            started = asyncio.get_running_loop().time()
            try:
                await part(outage)
            except (RedisError, OSError, TimeoutError, GreenroomRedisError) as error:
                if outage.is_news(error):
                    log.warning("dispatcher.lost", error=str(error))
                self._worker.rescan.set()
            failures = failures + 1 if asyncio.get_running_loop().time() - started < STABLE_S else 0
            await back_off(failures)

    async def _read(self, outage: Outage) -> None:
        """Hand over what is ready, as many rooms as there are free slots."""
        async with open_connection(self._store.redis) as connection:
            self._worker.context.counts.connected["ready"] += 1
            while True:
                free = await self._worker.context.slots.wait_free()
                await self._read_new(connection, min(free, PAGE))
                outage.over()

    async def _recover(self, outage: Outage) -> None:
        """Adopt rooms of dead workers, and resume what this worker owns, at its own pace beside the new work."""
        worker, rescan_s = self._worker, self._worker.lease_s * RESCAN_LEASES
        rescan_at = 0.0
        while True:
            free = await worker.context.slots.wait_free()
            moved = await self._store.adopt(worker.name, min(free, PAGE))
            outage.over()
            now = asyncio.get_running_loop().time()
            if moved or worker.rescan.is_set() or now >= rescan_at:
                rescan_at = now + rescan_s
                await self._rescan()
            if not moved:
                with suppress(TimeoutError):
                    async with asyncio.timeout(ADOPT_S):
                        await worker.rescan.wait()

    async def _read_new(self, connection: AbstractConnection, count: int) -> None:
        block_ms = max(50, int(self._worker.lease_s * 250))
        group = ("XREADGROUP", "GROUP", "supervisors", self._worker.name, "COUNT", count, "BLOCK", block_ms)
        await connection.send_command(*group, "STREAMS", self._store.keys.ready, ">", check_health=False)
        async with answering(block_ms / 1000 * 2 + 10):
            reply = await connection.read_response()
        await self._activate(read_ready(reply))

    async def _rescan(self) -> None:
        """Start each room that this worker owns and that is not at work here, in stages: as slots are free, and no more than
        ``recovery_rate`` a second, so that a restart does not call a thousand models at once.

        There should be none but after a restart or a lost connection. But a worker of this name that was superseded may have
        been handed entries and died before it claimed them, so all are looked at now and then.
        """
        worker = self._worker
        worker.rescan.clear()
        after = "0-0"
        while page := await self._store.pending(worker.name, after, PAGE):
            for ready, room in page:
                if worker.context.active.get(room) != ready:
                    await self._keep_pace()
                    await worker.context.slots.wait_free()
                    await self._activate([(ready, room)])
            after = page[-1][0]

    async def _drop(self, ready: str) -> None:
        """Claim an entry that names no room: it is no room's own, and so dropped."""
        context = self._worker.context
        claim = partial(self._store.claim, "", worker=context.worker, incarnation=context.incarnation)
        await claim(ready=ready, request=f"drop:{ready}", terms=context.spec.terms)

    async def _keep_pace(self) -> None:
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, self._resume_at - now))
        self._resume_at = max(now, self._resume_at) + 1 / self._worker.recovery_rate

    async def _activate(self, entries: list[tuple[str, str]]) -> None:
        for ready, room in entries:
            if room:
                self._worker.tell_rooms(Activate(ready, room))
            else:
                await self._drop(ready)
        # The room supervisor takes a slot for each: it must have done so before they are counted again.
        rooms = self._worker.rooms
        while rooms is not None and rooms.is_alive() and not rooms.actor_inbox.empty():  # noqa: ASYNC110  # a turn or two
            await asyncio.sleep(0)
