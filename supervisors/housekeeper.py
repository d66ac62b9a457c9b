"""The housekeeper: what is kept longer than the agent's retention says goes, a little at a time."""

from __future__ import annotations

import asyncio

from ..protocol.errors import RedisError
from ..protocol.log import log
from .service import Service
from .worker import Worker

ROUND_S = 10.0  # between two rounds
PAUSE_S = 0.02  # between two calls of a round, of up to a hundred rooms or letters each: others want Redis more


class Housekeeper(Service):
    """Every worker has one; what one has swept, the others find gone."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker.context.control)
        self._worker = worker

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            try:
                await self._worker.retain()  # a Redis that has lost its last writes has lost this, too
                await self._sweep()
            except RedisError as error:
                log.warning("housekeeper.failed", error=error)

    async def _sweep(self) -> None:
        store, passed, forgotten, more = self._worker.context.store, 0, 0, True
        while more:
            swept = await store.sweep(passed)
            for letter in swept.dropped:
                died_of = letter.error.partition(":")[0]  # its words may be a message's; the event in Redis has them
                log.warning("message.dropped", room=letter.room, message=letter.message, dead=letter.id, error=died_of)
            forgotten += swept.forgotten
            passed, more = swept.passed, swept.more
            if more:
                await asyncio.sleep(PAUSE_S)
        if forgotten:
            log.info("rooms.forgotten", rooms=forgotten)
