"""What a handler sees of its cycle.

A handler runs on the user loop, in a thread or in a child process; what it asks for crosses to the control loop of its worker,
goes to Redis with the cycle's ticket, and the answer crosses back.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from ..protocol import codec
from ..protocol.errors import CycleEnded, GreenroomError, InvalidRequest, OutcomeUnknown
from ..protocol.records import Message
from .link import BACKLOG, BACKLOG_BYTES, Link
from .steps import IfUnknown, Steps
from .threads import call

T = TypeVar("T")
Ask = Callable[..., T]


class BaseCycle:
    """What both kinds of cycle have.

    Attributes:
        message: what is to be answered.
        state: the room's durable state, yours to change: it is committed with the message, or not at all.
    """

    def __init__(self, agent: str, message: Message, state: Any, link: Link, *, shielded: bool = False) -> None:
        """``shielded``: the cycle is, for its whole life."""
        self.message = message
        self.state = state
        self._link = link
        self._steps = Steps(agent, message.id)
        self._lock = threading.Lock()
        self._pushed = 0
        self._bytes = self._flushed_bytes = 0  # that were pushed, and that were through when a flush was
        self._shields = int(shielded)  # the blocks that are in it, or on their way in
        self._shielded = shielded  # whether the shield is up

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

    def checkpoint(self) -> None:
        """For code that works for long without sending.

        Raises:
            CycleEnded: the cycle has been told to end.
        """
        if self._link.ended:
            raise CycleEnded(self._link.ended)

    def _push(self, body: Any) -> bool:
        """Send a chunk; answer whether so many are on their way that whoever makes them has to wait."""
        data = codec.encode(body, what="the chunk")
        self.checkpoint()
        with self._lock:
            self._pushed += 1
            self._bytes += len(data)
            self._link.push(data)
        return self._pushed - self._link.acked >= BACKLOG or self._bytes - self._flushed_bytes >= BACKLOG_BYTES

    # Blocks may overlap, in tasks or in threads: one counts from before it asks for the shield until after it needs it, and its
    # counting and asking are one act, so that no other's end takes down what this one has been told is up.

    def _enter_shield(self, ask: Ask[T]) -> T | None:
        """Count one more block, and ask for the shield unless it is up."""
        with self._lock:
            self._shields += 1
            return None if self._shielded else ask("shield", True)

    def _leave_shield(self, ask: Ask[T]) -> T | None:
        """Count one block less, and after the last have the shield taken down."""
        with self._lock:
            self._shields -= 1
            if self._shields:
                return None
            self._shielded = False
            return ask("shield", False)

    def _give_up_shield(self) -> None:
        """The block does not begin; the shield may have come up for it all the same, or may still."""
        self._leave_shield(partial(self._link.request, _tell_nobody))


class Cycle(BaseCycle):
    """A cycle of an agent that runs on the event loop. One loop's tasks may use it, also several at a time."""

    def _ask(self, what: str, *args: Any) -> asyncio.Future[bytes | str]:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[bytes | str] = loop.create_future()

        def settle(answer: bytes | str, error: BaseException | None) -> None:
            if not answered.done():
                answered.set_result(answer) if error is None else answered.set_exception(error)

        def done(answer: bytes | str, error: BaseException | None) -> None:
            with suppress(RuntimeError):  # the loop has ended with whoever waited
                loop.call_soon_threadsafe(settle, answer, error)

        self._link.request(done, what, *args)
        return answered

    async def flush(self) -> None:
        """Wait until readers have all chunks so far.

        Raises:
            CycleEnded: the cycle has been aborted or lost.
        """
        size = self._bytes
        if self._pushed > self._link.acked:
            await self._ask("flush")
        self._flushed_bytes = max(self._flushed_bytes, size)

    async def send(self, body: Any) -> None:
        """Send a chunk: readers have it, and what was yielded before it, when this returns.

        Raises:
            InvalidBody: it cannot be stored.
            CycleEnded: the cycle has been aborted or lost; nothing was sent.
        """
        self._push(body)
        await self.flush()

    async def stream(self, chunk: Any) -> None:
        """Send a chunk as one that is yielded is sent: it leaves together with those that come within ``Agent.chunk_interval``.
        This waits only while Redis is slow.

        Raises:
            InvalidBody: it cannot be stored.
            CycleEnded: the cycle has been aborted or lost.
        """
        if self._push(chunk):
            await self.flush()

    async def step(self, name: str, function: Callable[..., Any], *args: Any, if_unknown: IfUnknown | None = None) -> Any:
        """Do something once for this message: its result is on record, and a replay answers with that.

        ``function(*args)`` may be a coroutine function or a plain one, which runs in a thread; one with a parameter
        ``idempotency_key`` is handed a key that stays the same however often the message is replayed. What it raises is raised
        here, and the step counts as not done. The result comes back as msgpack has it: tuples as lists.

        Args:
            name: unique within the message; parallel steps are fine.
            if_unknown: what to do if the step began before, in this cycle or an earlier one, and did not say how it ended:
                do it ``again``, the default for functions marked ``idempotent``, or ``raise`` OutcomeUnknown, for others.

        Raises:
            OutcomeUnknown: see above; nothing was done.
            InvalidRequest: the name cannot be used, or is used twice.
            InvalidBody: it was done, but its result cannot be stored: its outcome counts as unknown.
            CycleEnded: the cycle has been aborted or lost: before the step began, or its result is not on record.
        """
        act = self._steps.begin(name, function, if_unknown)
        with self._steps.beginning(name):
            answer = await self._ask("step", name, act, b"")
            if answer == "unknown":
                raise self._steps.unknown(name)
        if isinstance(answer, bytes):
            return codec.decode(answer)
        with self._steps.running(name):
            try:
                result = await call(f"greenroom-step-{name}", self._steps.bind(name, function, args))
            except OutcomeUnknown:
                raise
            except Exception:
                with suppress(GreenroomError):
                    await self._ask("step", name, "failed", b"")
                    self._steps.forget(name)
                raise
            data = codec.encode(result, what=f"the result of step {name}")
            await self._ask("step", name, "done", data)
        return codec.decode(data)

    @asynccontextmanager
    async def shield(self) -> AsyncIterator[None]:
        """A block that interrupt and stop wait for. It may be nested; the outermost end lets them act.

        Raises:
            CycleEnded: at the start, aborted before the shield was up: the block does not run; at the end, by what waited,
                unless the block raises something itself.
        """
        if (answered := self._enter_shield(self._ask)) is not None:
            try:
                await answered
            except BaseException:
                self._give_up_shield()
                raise
            finally:
                del answered  # its error has this frame in its traceback
            self._shielded = True
        try:
            yield
        except BaseException:  # first of all what the block has raised, a cancellation above all
            with suppress(GreenroomError):
                await self._end_shield()
            raise
        await self._end_shield()

    async def _end_shield(self) -> None:
        if (answered := self._leave_shield(self._ask)) is not None:
            try:
                await answered
            finally:
                del answered


class ThreadCycle(BaseCycle):
    """A cycle of an agent that runs in a thread: the same, with calls that block. Threads of its own may use it, too."""

    def _ask(self, what: str, *args: Any) -> concurrent.futures.Future[bytes | str]:
        answered: concurrent.futures.Future[bytes | str] = concurrent.futures.Future()

        def done(answer: bytes | str, error: BaseException | None) -> None:
            answered.set_result(answer) if error is None else answered.set_exception(error)

        self._link.request(done, what, *args)
        return answered

    def flush(self) -> None:
        """As ``Cycle.flush``."""
        size = self._bytes
        if self._pushed > self._link.acked:
            self._ask("flush").result()
        self._flushed_bytes = max(self._flushed_bytes, size)

    def send(self, body: Any) -> None:
        """As ``Cycle.send``."""
        self._push(body)
        self.flush()

    def stream(self, chunk: Any) -> None:
        """As ``Cycle.stream``."""
        if self._push(chunk):
            self.flush()

    def step(self, name: str, function: Callable[..., Any], *args: Any, if_unknown: IfUnknown | None = None) -> Any:
        """As ``Cycle.step``, for plain functions; it runs in the thread that calls."""
        if inspect.iscoroutinefunction(function):
            raise InvalidRequest(f"step {name!r}: {function!r} is a coroutine function, and there is no loop in this thread")
        act = self._steps.begin(name, function, if_unknown)
        with self._steps.beginning(name):
            answer = self._ask("step", name, act, b"").result()
            if answer == "unknown":
                raise self._steps.unknown(name)
        if isinstance(answer, bytes):
            return codec.decode(answer)
        with self._steps.running(name):
            try:
                result = self._steps.bind(name, function, args)()
            except OutcomeUnknown:
                raise
            except Exception:
                with suppress(GreenroomError):
                    self._ask("step", name, "failed", b"").result()
                    self._steps.forget(name)
                raise
            data = codec.encode(result, what=f"the result of step {name}")
            self._ask("step", name, "done", data).result()
        return codec.decode(data)

    @contextmanager
    def shield(self) -> Iterator[None]:
        """As ``Cycle.shield``."""
        if (answered := self._enter_shield(self._ask)) is not None:
            try:
                answered.result()
            except BaseException:
                self._give_up_shield()
                raise
            finally:
                del answered
            self._shielded = True
        try:
            yield
        except BaseException:
            with suppress(GreenroomError):
                self._end_shield()
            raise
        self._end_shield()

    def _end_shield(self) -> None:
        if (answered := self._leave_shield(self._ask)) is not None:
            try:
                answered.result()
            finally:
                del answered


def _tell_nobody(answer: bytes | str, error: BaseException | None) -> None:
    """Nobody waits for it."""
