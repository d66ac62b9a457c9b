"""What a handler sees of its cycle, and how its effects reach Redis.

A handler runs on the user loop or in a thread; every effect crosses to the control loop, goes to Redis with the cycle's ticket,
and its answer crosses back. Redis refuses the effects of a cycle that has been aborted or is not the live one any more, so
nothing here needs to be believed or well-behaved.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from ..protocol import codec
from ..protocol.errors import CycleEnded
from ..protocol.records import Message
from ..protocol.store import DELETE_STATE, KEEP_STATE, Answer, Grant, Store, set_state
from .loop import LoopThread

OnRefused = Callable[[int, str], None]
Done = Callable[[BaseException | None], None]


class CycleLink:
    """A cycle's way to Redis. ``begin`` may be called from any thread; the rest runs on the control loop."""

    __slots__ = ("_control", "_on_refused", "_room", "_seq", "_store", "ended", "ticket")

    def __init__(self, control: LoopThread, store: Store, room: str, ticket: int, on_refused: OnRefused) -> None:
        self._control = control
        self._store = store
        self._room = room
        self._on_refused = on_refused
        self._seq = 0
        self.ticket = ticket
        self.ended = ""  # why nothing more is accepted, once that is known

    def begin(self, effect: Callable[[], asyncio.Future[Answer]], done: Done) -> None:
        """Start an effect, and call ``done`` on the control loop with None or what to raise."""
        if not self._control.post(self._begin, effect, done):
            done(CycleEnded("fenced"))  # the worker has ended

    def _begin(self, effect: Callable[[], asyncio.Future[Answer]], done: Done) -> None:
        if self.ended:
            done(CycleEnded(self.ended))
            return
        effect().add_done_callback(lambda future: done(self._outcome(future)))

    def _outcome(self, future: asyncio.Future[Answer]) -> BaseException | None:
        if future.cancelled():
            return CycleEnded("fenced")
        if error := future.exception():
            return error
        word = future.result().word
        if word == "ok":
            return None
        self.ended = self.ended or word
        self._on_refused(self.ticket, word)
        return CycleEnded(word)

    def emit(self, data: bytes) -> asyncio.Future[Answer]:
        self._seq += 1
        return self._store.emit(self._room, self.ticket, self._seq, data)

    def shield(self, *, up: bool) -> asyncio.Future[Answer]:
        return self._store.shield(self._room, self.ticket, up=up)


class BaseCycle:
    """What both kinds of cycle have.

    Attributes:
        message: what is to be answered.
        state: the room's durable state, yours to change: it is committed with the message, or not at all.
    """

    def __init__(self, grant: Grant, state: bytes | None, link: CycleLink) -> None:
        self.message: Message = grant.message
        self.state: dict[str, Any] = codec.decode(state) if state else {}
        self._stored = state
        self._link = link
        self._shields = 0

    @property
    def room(self) -> str:
        return self.message.room

    @property
    def ticket(self) -> int:
        """The cycle's fencing token."""
        return self._link.ticket

    @property
    def cancelled(self) -> bool:
        """Whether the cycle has been told to end. It stays so."""
        return bool(self._link.ended)

    def state_argument(self) -> bytes:
        """For the runner: what commit is to do with the state."""
        if not self.state:
            return DELETE_STATE if self._stored else KEEP_STATE
        data = codec.encode(self.state)
        return KEEP_STATE if data == self._stored else set_state(data)


class Cycle(BaseCycle):
    """A cycle of an agent that runs on the event loop. One loop's tasks may use it, also several at a time."""

    async def _effect(self, effect: Callable[[], asyncio.Future[Answer]]) -> None:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if not answered.done():
                answered.set_result(None) if error is None else answered.set_exception(error)

        def done(error: BaseException | None) -> None:
            with suppress(RuntimeError):  # the loop has ended with whoever waited
                loop.call_soon_threadsafe(settle, error)

        self._link.begin(effect, done)
        await answered

    async def send(self, body: Any) -> None:
        """Send a chunk: readers have it when this returns.

        Raises:
            InvalidBody: it cannot be stored.
            CycleEnded: the cycle has been aborted or lost; nothing was sent.
        """
        data = codec.encode(body)
        await self._effect(lambda: self._link.emit(data))

    @asynccontextmanager
    async def shield(self) -> AsyncIterator[None]:
        """A block that interrupt and stop wait for. It may be nested; the outermost end lets them act.

        Raises:
            CycleEnded: at the start, aborted before the shield was up: the block does not run; at the end, by what waited.
        """
        if self._shields == 0:
            await self._effect(lambda: self._link.shield(up=True))
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
            if self._shields == 0:
                await self._effect(lambda: self._link.shield(up=False))


class ThreadCycle(BaseCycle):
    """A cycle of an agent that runs in a thread: the same, with calls that block."""

    def _effect(self, effect: Callable[[], asyncio.Future[Answer]]) -> None:
        answered: concurrent.futures.Future[None] = concurrent.futures.Future()

        def done(error: BaseException | None) -> None:
            answered.set_result(None) if error is None else answered.set_exception(error)

        self._link.begin(effect, done)
        answered.result()

    def send(self, body: Any) -> None:
        """As ``Cycle.send``."""
        data = codec.encode(body)
        self._effect(lambda: self._link.emit(data))

    @contextmanager
    def shield(self) -> Iterator[None]:
        """As ``Cycle.shield``."""
        if self._shields == 0:
            self._effect(lambda: self._link.shield(up=True))
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
            if self._shields == 0:
                self._effect(lambda: self._link.shield(up=False))
