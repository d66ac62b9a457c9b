"""How many rooms may be at work at once: whoever waits out a back-off holds no slot."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Slots:
    """Counts slots, on the control loop only."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0
        self._waiting: deque[Callable[[], bool]] = deque()
        self._free = asyncio.Event()
        self._free.set()

    @property
    def free(self) -> int:
        return max(0, self.most - self.used)

    def take(self) -> None:
        """Take a slot, also when none is free: for work that must go on."""
        self.used += 1
        if self.used >= self.most:
            self._free.clear()

    def give(self) -> None:
        """Give a slot back; the first who waits and still wants one gets it."""
        self.used -= 1
        self._serve()

    def ask(self, on_free: Callable[[], bool]) -> None:
        """Take a slot as soon as one is free and call ``on_free``, which answers whether it is still wanted."""
        self._waiting.append(on_free)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self.used < self.most:
            if self._waiting.popleft()():
                self.take()
        if self.used < self.most:
            self._free.set()

    async def wait_free(self) -> int:
        """Wait until at least one slot is free; answer how many are."""
        while not self.free:  # woken, somebody else may have been faster
            await self._free.wait()
        return self.free
