"""An event loop on a thread of its own, and the crossing into it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from ..protocol.crossing import hand_over
from ..protocol.log import bound, log, told

T = TypeVar("T")

JOIN_S = 2.0  # how long a loop that is stopped may take before it is left behind


class LoopThread:
    """A thread that runs one event loop. ``post`` is the cheap way in: one wake-up carries all that waits.

    What is posted runs in a context of the loop's own: what a handler binds in its context is none of the next one's.

    ``fields`` are what all log lines of this thread have.
    """

    def __init__(self, name: str, *, daemon: bool = True, fields: Mapping[str, object] | None = None) -> None:
        self.name = name
        self.fields = fields or {}
        self.loop: asyncio.AbstractEventLoop  # from start on
        self._thread = threading.Thread(target=self._serve, name=name, daemon=daemon)
        self._made: Future[asyncio.AbstractEventLoop] = Future()
        self._context = contextvars.Context()
        self._posted: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._woken = False
        self._stopping = False
        self._ended = False

    def start(self) -> None:
        try:
            self._thread.start()
            self._made.result()
        except BaseException:  # Ctrl-C may come when it runs already
            self.end()
            raise

    def stop(self) -> None:
        """End the loop: its tasks are cancelled, given a moment, and the thread is joined.

        A task that blocks the loop or swallows its cancellation cannot hold the caller up for longer than that: the thread
        is a daemon's and is left behind.
        """
        if not self._thread.is_alive():
            return
        self.end()
        self._thread.join(JOIN_S)
        if self._thread.is_alive():
            log.warning("loop.stuck", **self.fields, thread=self.name)

    def end(self) -> None:
        """As ``stop``, without waiting for it; also from the loop itself."""
        self._made.add_done_callback(self._have_finish)

    def _have_finish(self, made: Future[asyncio.AbstractEventLoop]) -> None:
        with suppress(RuntimeError, OSError):  # it has ended already, or could not be made
            made.result().call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        self._stopping = True  # not earlier: a stop that is still to come would end the clean-up
        self.loop.stop()

    def _serve(self) -> None:
        try:
            self.loop = asyncio.new_event_loop()  # here: on the main thread Ctrl-C would break it where it is half made
        except BaseException as error:
            self._made.set_exception(error)
            return
        asyncio.set_event_loop(self.loop)
        self._made.set_result(self.loop)
        with bound(**self.fields):
            self._run_until_stopped()

    def _run_until_stopped(self) -> None:
        try:
            while not self._stopping:
                self._run_on()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            cleaned_up = self.loop.create_task(self._clean_up(tasks))
            cleaned_up.add_done_callback(lambda _: self.loop.stop())
            while not cleaned_up.done():  # one of the tasks may exit, or stop the loop: the others are given their moment
                self._run_on()
        finally:
            self._ended = True
            self._drain()  # what was posted before anyone could know
            self.loop.close()

    async def _clean_up(self, tasks: set[asyncio.Task[Any]]) -> None:
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        await self.loop.shutdown_asyncgens()

    def _run_on(self) -> None:
        """Run until the loop is stopped. A SystemExit or KeyboardInterrupt of a task, which asyncio lets through, ends that
        task alone: what else runs on the loop has no part in it.
        """
        try:
            self.loop.run_forever()
        except BaseException as error:
            log.error("loop.task_exited", thread=self.name, **told(error))

    @property
    def ident(self) -> int | None:
        """The thread's id; None before its start."""
        return self._thread.ident

    @property
    def ending(self) -> bool:
        """Whether it has been told to end: what is posted now is still called, but not what that schedules."""
        return self._stopping

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.get_ident() == self._thread.ident

    def post(self, callback: Callable[..., Any], *args: Any) -> bool:
        """Have ``callback(*args)`` called on the loop, in the order of posting; answer whether it lives. From any thread."""
        if self._ended:
            return False
        self._posted.append((callback, args))
        if not self._woken:
            self._woken = True
            try:
                if self.is_current:
                    self.loop.call_soon(self._drain, context=self._context)
                else:
                    self.loop.call_soon_threadsafe(self._drain, context=self._context)
            except RuntimeError:
                return False
        return True

    def every(self, period_s: float, callback: Callable[[], object]) -> None:
        """Have ``callback()`` called on the loop, at once and every ``period_s`` seconds, for as long as it turns."""

        def again() -> None:
            self.loop.call_later(period_s, again)
            callback()

        self.post(again)

    def _drain(self) -> None:
        # Reset before taking: whoever posts from here on wakes the loop once more, so nothing stays behind.
        self._woken = False
        for _ in range(len(self._posted)):
            callback, args = self._posted.popleft()
            try:
                callback(*args)
            except BaseException:  # also a CancelledError: those behind it would wait for the next wake-up
                log.exception(
                    "loop.callback_failed",
                    thread=self.name,
                    callback=getattr(callback, "__qualname__", type(callback).__name__),
                )

    def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run the coroutine that ``call`` makes on the loop; its future is for the calling thread."""
        answer = Future[T]()
        hand_over(self.loop, call, answer)
        return answer
