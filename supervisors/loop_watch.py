"""The loop watch: notices an agent that blocks its event loop, and shows where it stands."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from ..actors.loop import LoopThread
from ..protocol.log import log
from .dump import stack_of
from .service import Service
from .worker import Worker

EVERY_S = 0.5  # between an answer and the next ping
BLOCKED_S = 1.0  # a loop that has not answered for so long is blocked
STEPS = 4
DEPTH = 15  # frames of the stack


class LoopWatch(Service):
    """Pings the user loop. One warning when it does not answer, with what runs on it at that instant, one when it does again.

    A blocked loop holds up the other coroutines of this process and nothing else: signals act, leases are held.
    """

    def __init__(self, worker: Worker, user: LoopThread) -> None:
        super().__init__(worker.context.control)
        self._worker = worker
        self._user = user

    async def run(self) -> None:
        while True:
            await self._ping()
            await asyncio.sleep(EVERY_S)

    async def _ping(self) -> None:
        lag = self._worker.context.counts.lag
        answered, asked_s = asyncio.Event(), time.monotonic()
        if not self._user.post(partial(self.loop.post, answered.set)):
            return
        lag.asked()
        try:
            if not await self._answers(answered):
                self._warn(asked_s)
                await answered.wait()
                log.warning("loop.free", blocked_s=_since(asked_s))
            lag.answered()
        finally:
            lag.forget()

    @staticmethod
    async def _answers(answered: asyncio.Event) -> bool:
        """Whether it does in time. Counted in steps: a process that was suspended wakes to find every deadline past."""
        for _ in range(STEPS):
            try:
                async with asyncio.timeout(BLOCKED_S / STEPS):
                    await answered.wait()
                return True
            except TimeoutError:
                continue
        return False

    def _warn(self, asked_s: float) -> None:
        culprit, stack = self._culprit(), stack_of(self._user.ident, DEPTH)
        log.warning("loop.blocked", **culprit, blocked_s=_since(asked_s), stack=stack)

    def _culprit(self) -> dict[str, object]:
        """The task that runs on the loop, if one does, and its cycle, if it is that one's: a child task has another name."""
        task = asyncio.current_task(self._user.loop)
        if task is None:
            return {}
        name = task.get_name()
        return {**self._cycle_of(name), "task": name}

    def _cycle_of(self, name: str) -> dict[str, object]:
        rooms = self._worker.rooms._actor_weakref() if self._worker.rooms is not None else None
        for room in rooms.at_work() if rooms is not None else ():
            if room.machine.grant is not None and name == f"greenroom-cycle-{room.machine.grant.ticket}":
                return room.names()
        return {}


def _since(asked_s: float) -> float:
    return round(time.monotonic() - asked_s, 1)
