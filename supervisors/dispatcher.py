"""The dispatcher: rooms that are ready go to the room supervisor, as many as there are slots."""

from __future__ import annotations

import asyncio

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from ..protocol.connect import back_off, open_connection
from ..protocol.errors import RedisRefused
from ..protocol.log import log
from ..protocol.store import read_ready
from .rooms import Activate, Owned
from .service import Service
from .worker import Worker

PAGE = 100
RESCAN_LEASES = 2  # how many leases lie between two looks at what this worker owns


class Dispatcher(Service):
    """Takes new work from the ready stream, and rooms that this worker owns already: after a restart, after a lost connection
    (an answer with entries may have been lost with it), and those that it adopts from dead workers.
    """

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker.context.control)
        self._worker = worker
        self._store = worker.context.store
        self._adopt_at = 0.0
        self._rescan_at = 0.0

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                async with open_connection(self._store.redis) as connection:
                    while True:
                        await self._turn(connection)
                        failures = 0
            except (RedisError, OSError, TimeoutError, RedisRefused) as error:
                log.warning("dispatcher.lost", error=str(error))
                self._worker.rescan = True
            await back_off(failures)
            failures += 1

    async def _turn(self, connection: AbstractConnection) -> None:
        worker = self._worker
        now = asyncio.get_running_loop().time()
        if worker.rescan or now >= self._rescan_at:
            self._rescan_at = now + worker.lease_s * RESCAN_LEASES
            await self._rescan()
        free = await worker.context.slots.wait_free()
        if now >= self._adopt_at:
            self._adopt_at = now + worker.lease_s / 2
            if await self._store.adopt(worker.name, min(free, PAGE)):
                self._adopt_at = now
                worker.rescan = True
                return
        await self._read_new(connection, min(free, PAGE))

    async def _read_new(self, connection: AbstractConnection, count: int) -> None:
        block_ms = max(50, int(self._worker.lease_s * 250))
        group = ("XREADGROUP", "GROUP", "supervisors", self._worker.name, "COUNT", count, "BLOCK", block_ms)
        await connection.send_command(*group, "STREAMS", self._store.keys.ready, ">", check_health=False)
        async with asyncio.timeout(block_ms / 1000 * 2 + 10):
            reply = await connection.read_response()
        await self._activate(read_ready(reply))

    async def _rescan(self) -> None:
        """Start each room that this worker owns and that is not at work here, in stages: as slots are free.

        There should be none but after a restart or a lost connection. But a worker of this name that was superseded may have
        been handed entries and died before it claimed them, so all are looked at now and then.
        """
        worker = self._worker
        worker.rescan, lapsed, worker.lapsed = False, worker.lapsed, False
        if lapsed:
            await self._tell_owned()
        after = "0-0"
        while page := await self._store.pending(worker.name, after, PAGE):
            for ready, room in page:
                if worker.context.active.get(room) != ready:
                    await worker.context.slots.wait_free()
                    await self._activate([(ready, room)])
            after = page[-1][0]

    async def _tell_owned(self) -> None:
        owned, after = set[str](), "0-0"
        while page := await self._store.pending(self._worker.name, after, PAGE):
            owned.update(ready for ready, _ in page)
            after = page[-1][0]
        self._worker.tell_rooms(Owned(owned))

    async def _activate(self, entries: list[tuple[str, str]]) -> None:
        for ready, room in entries:
            self._worker.tell_rooms(Activate(ready, room))
        # The room supervisor takes a slot for each: it must have done so before they are counted again.
        rooms = self._worker.rooms
        while rooms is not None and rooms.is_alive() and not rooms.actor_inbox.empty():  # noqa: ASYNC110  # a turn or two
            await asyncio.sleep(0)
