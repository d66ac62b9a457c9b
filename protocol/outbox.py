"""What a room has sent, as readers get it: once, for ever, or the outputs of one message until it has ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from .errors import RedisRefused, ReplyLost
from .inspection import PageSize
from .log import log
from .records import Kind, Output, entry_id, read_output, text
from .store import Enqueued, Store
from .wakeups import Wakeups

LOOK_S = 5.0  # readers look by themselves this often, should every hint be lost


class Outbox:
    """One room's outbox. ``opened`` answers the reader's connections, or raises that they are closed."""

    def __init__(self, opened: Callable[[], tuple[Store, Wakeups]], room: str) -> None:
        self._opened = opened
        self._size = PageSize()
        self.room = room

    @property
    def _store(self) -> Store:
        return self._opened()[0]

    def watch(self) -> AbstractAsyncContextManager[asyncio.Event]:
        """An event that is set whenever there may be something new: a hint for ``follow`` and ``follow_message``."""
        store, wakeups = self._opened()
        store.pipeline.check_loop()
        return wakeups.watch(store.keys.outbox(self.room))

    async def read(self, start: str) -> AsyncIterator[Output]:
        """What is there from ``start`` on."""
        store = self._store
        while True:
            asked = self._size.count
            entries = await store.pipeline.command("XRANGE", store.keys.outbox(self.room), start, "+", "COUNT", asked)
            self._size.learn(entries)
            for output_id, flat in entries:
                start = f"({text(output_id)}"
                try:
                    output = read_output(output_id, dict(zip(flat[::2], flat[1::2], strict=True)))
                except RedisRefused as error:  # of no greenroom: the others are to be read all the same
                    log.warning("output.unreadable", room=self.room, error=error)
                else:
                    yield output
            if len(entries) < asked:
                return

    async def follow(self, start: str, hint: asyncio.Event) -> AsyncIterator[Output]:
        """What is there from ``start`` on, and what comes, for ever."""
        while True:
            hint.clear()
            async for output in self.read(start):
                start = f"({output.id}"
                yield output
            await _hinted(hint)

    async def follow_message(self, sent: Enqueued, hint: asyncio.Event) -> AsyncGenerator[Output, None]:
        """The outputs of one message as they come, to the final one.

        Raises:
            ReplyLost: it has ended, and how is not in the outbox (any more).
        """
        start, gone, seen = f"{sent.at_ms}-0", False, Counter[int]()
        due = _now() + LOOK_S
        while True:
            hint.clear()
            async for output in self.read(start):
                start = f"({output.id}"
                if output.message != sent.id:
                    continue
                seen[output.ticket] += 1
                if output.kind is Kind.REPLY and output.body is None and seen[output.ticket] < output.seq:
                    raise ReplyLost(
                        f"message {sent.id} of room {self.room} was answered, but not all was read before it was trimmed"
                    )
                yield output
                if output.final:
                    return
            if gone:
                raise ReplyLost(
                    f"message {sent.id} of room {self.room} has ended, but how was trimmed or lost before it was read"
                )
            await _hinted(hint)
            # A message leaves its queue together with the entry that says how it ended: when it is not there, one more look
            # finds that entry, or nobody ever will.
            if _now() >= due:
                gone, due = not await self._is_queued(sent.id), _now() + LOOK_S
                if gone and not seen:  # a clock that was put back, or is behind on a new primary, has it before the start
                    start = "-"

    async def _is_queued(self, message: int) -> bool:
        store, entry = self._store, entry_id(message)
        return bool(await store.pipeline.command("XRANGE", store.keys.messages(self.room), entry, entry))


async def _hinted(hint: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(LOOK_S):
            await hint.wait()
    except TimeoutError:
        pass


def _now() -> float:
    return asyncio.get_running_loop().time()
