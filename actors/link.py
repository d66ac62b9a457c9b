"""A cycle's way to Redis. Every effect goes there with the cycle's ticket, and Redis refuses those of a cycle that has been
aborted or is not the live one any more, so nothing on the near side needs to be believed or well-behaved.

Chunks are pushed without waiting for an answer: the first leaves at once; those that come while one is under way, or within the
agent's interval, leave together. Whatever else is asked is asked behind them, so their order is that of the code.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from ..protocol.errors import CycleEnded
from ..protocol.store import Answer, Store
from .loop import LoopThread

BATCH, BATCH_BYTES = 64, 256 * 1024  # of chunks that leave together
BACKLOG, BACKLOG_BYTES = 128, 1024 * 1024  # of chunks on their way, from which on the code that makes them waits

OnRefused = Callable[[int, str], None]
Done = Callable[[bytes | str, BaseException | None], None]


class Link(Protocol):
    """What a cycle needs of its link. All of it may be used from any thread."""

    ticket: int
    ended: str  # why nothing more is accepted, once that is known
    acked: int  # how many of the chunks that were pushed Redis has

    def push(self, data: bytes) -> None:
        """Send a chunk, behind those before it; what becomes of it shows with the next request."""

    def request(self, done: Done, what: str, *args: Any) -> None:
        """Ask for something behind all chunks, and have ``done`` called, on any thread, with the answer or what to raise.

        ``flush``; ``shield``, up; ``step``, name, act, result: its answer is the result of a step that is done, or the word.
        """


class CycleLink:
    """The link in the worker's own process. But for ``push`` and ``request`` it is used on the control loop only."""

    def __init__(
        self,
        control: LoopThread,
        store: Store,
        room: str,
        ticket: int,
        on_refused: OnRefused,
        on_long_shield: Callable[[], None],
        *,
        interval_s: float,
        shield_warning_s: float,
        remember: bool,
    ) -> None:
        self._control = control
        self._store = store
        self._room = room
        self._on_refused = on_refused
        self._on_long_shield = on_long_shield
        self._interval_s = interval_s
        self._shield_warning_s = shield_warning_s
        self._seq = 0
        self._buffer: deque[bytes] = deque()
        self._in_flight = False
        self._next_at_s = 0.0  # when the next chunks may leave
        self._behind: list[Callable[[BaseException | None], None]] = []  # what waits until all chunks are through
        self._failure: BaseException | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._remember = remember
        self.sent: list[bytes] = []  # the chunks that Redis has, if somebody may ask
        self.ticket = ticket
        self.ended = ""
        self.acked = 0

    def push(self, data: bytes) -> None:
        self._control.post(self._push, data)

    def request(self, done: Done, what: str, *args: Any) -> None:
        if not self._control.post(self._request, done, what, args):
            done("", CycleEnded("fenced"))  # the worker has ended

    def close(self) -> None:
        """The cycle's code has ended, or is not waited for any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # Chunks. --------------------------------------------------------------------------------------

    def _push(self, data: bytes) -> None:
        self._buffer.append(data)
        self._pump()

    def _pump(self) -> None:
        """Send what is to be sent now."""
        if self._control.ending:  # with the worker, and nothing that is asked now, or in flight, is answered any more
            self.ended, self._in_flight = self.ended or "fenced", False
        if self.ended or self._failure is not None:
            self._buffer.clear()
        if self._in_flight:
            return
        if not self._buffer:
            behind, self._behind = self._behind, []
            if behind:
                failure, self._failure = self._failure, None  # all who wait are told, and then it has been told
                for go_on in behind:
                    go_on(failure)
            return
        loop = self._control.loop
        wait_s = self._next_at_s - loop.time()
        if wait_s > 0 and not self._behind and len(self._buffer) < BATCH:
            if "pump" not in self._timers:
                self._timers["pump"] = loop.call_later(wait_s, self._pump_later)
            return
        self._next_at_s = loop.time() + self._interval_s
        self._emit()

    def _pump_later(self) -> None:
        del self._timers["pump"]
        self._pump()

    def _emit(self) -> None:
        batch = [self._buffer.popleft()]
        size = len(batch[0])
        while self._buffer and len(batch) < BATCH and (size := size + len(self._buffer[0])) < BATCH_BYTES:
            batch.append(self._buffer.popleft())
        self._in_flight = True
        first, self._seq = self._seq + 1, self._seq + len(batch)
        emitted = self._store.emit(self._room, self.ticket, first, *batch)
        emitted.add_done_callback(partial(self._emitted, batch))

    def _emitted(self, batch: list[bytes], future: asyncio.Future[Answer]) -> None:
        self._in_flight = False
        self._failure = self._outcome(future)
        if self._failure is None:
            self.acked += len(batch)
            if self._remember:
                self.sent += batch
        self._pump()

    # What is asked behind them. -------------------------------------------------------------------

    def _request(self, done: Done, what: str, args: tuple[Any, ...]) -> None:
        def go_on(failure: BaseException | None) -> None:
            failure = CycleEnded(self.ended) if self.ended else failure
            if failure is not None or what == "flush":
                done("", failure)
            else:
                self._ask(what, *args).add_done_callback(partial(self._answered, done, what, args))

        self._behind.append(go_on)
        self._pump()

    def _ask(self, what: str, *args: Any) -> asyncio.Future[Any]:
        if what == "shield":
            return self._store.shield(self._room, self.ticket, up=args[0])
        return self._store.step(self._room, self.ticket, *args)

    def _answered(self, done: Done, what: str, args: tuple[Any, ...], future: asyncio.Future[Any]) -> None:
        failure = self._outcome(future)
        if what == "shield":
            self._watch_shield(up=args[0] and failure is None)
        if failure is not None:
            done("", failure)
            return
        answer = future.result()
        word, detail = (answer.word, "") if isinstance(answer, Answer) else answer
        done(detail if word == "done" else word, None)

    def _outcome(self, future: asyncio.Future[Any]) -> BaseException | None:
        if future.cancelled():
            return CycleEnded("fenced")
        if error := future.exception():
            return error
        answer = future.result()
        word = answer.word if isinstance(answer, Answer) else answer[0]
        if word not in ("interrupt", "stop", "fenced"):
            return None
        self.ended = self.ended or word
        self._on_refused(self.ticket, word)
        return CycleEnded(word)

    # Shields. -------------------------------------------------------------------------------------

    def _watch_shield(self, *, up: bool) -> None:
        if timer := self._timers.pop("shield", None):
            timer.cancel()
        if up:
            self.watch_shield()

    def watch_shield(self) -> None:
        """The cycle is shielded from now on: say so if that goes on for too long."""
        self._timers["shield"] = self._control.loop.call_later(self._shield_warning_s, self._on_long_shield)
