"""Calls one function of the user's: a coroutine function on the user loop, any other in a thread. Never on the control loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from .loop import LoopThread


class Calls:
    """The function, and where it is called."""

    def __init__(self, function: Callable[..., Any], control: LoopThread, user: LoopThread) -> None:
        self.function = function
        self.control = control
        self.user = user
        self.on_loop = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        # Also those that were left behind: collected as garbage, their code would run on whichever thread collects.
        self.tasks: set[asyncio.Task[BaseException | None]] = set()

    async def __call__(self, *args: Any) -> BaseException | None:
        """Call the function, from the control loop; answer what it raised, whatever that is.

        When this is cancelled, so is a coroutine; a thread is left behind.
        """
        call = _Call(self, args)
        self.user.post(call.begin)
        try:
            return await call.ended
        finally:
            if call.ended.cancelled():
                self.user.post(call.cancel)


class _Call:
    def __init__(self, calls: Calls, args: tuple[Any, ...]) -> None:
        self._calls = calls
        self._args = args
        self._task: asyncio.Task[BaseException | None] | None = None
        self.ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        """On the user loop."""
        if self._calls.on_loop:
            self._task = asyncio.create_task(self._on_loop(), name="greenroom-call")
            self._calls.tasks.add(self._task)
            self._task.add_done_callback(self._done)
            return
        try:
            threading.Thread(target=self._in_thread, name="greenroom-call", daemon=True).start()
        except RuntimeError as error:  # the system has no more of them
            self._report(error)

    def cancel(self) -> None:
        """On the user loop."""
        if self._task is not None:
            self._task.cancel()

    async def _on_loop(self) -> BaseException | None:
        try:
            await self._calls.function(*self._args)
        except BaseException as error:  # also SystemExit: it is the function's, and ends nothing else
            return error
        return None

    def _done(self, task: asyncio.Task[BaseException | None]) -> None:
        self._calls.tasks.discard(task)
        self._report(asyncio.CancelledError() if task.cancelled() else task.result())

    def _in_thread(self) -> None:
        error: BaseException | None = None
        try:
            answer = self._calls.function(*self._args)
            if inspect.isawaitable(answer):  # a plain function around a coroutine function: nothing is done until it is awaited
                self._calls.user.run(partial(_wait_for, answer)).result()
        except BaseException as raised:
            error = raised
        self._report(error)

    def _report(self, error: BaseException | None) -> None:
        self._calls.control.post(partial(_settle, self.ended, error))


async def _wait_for(answer: Awaitable[Any]) -> None:
    await answer


def _settle(ended: asyncio.Future[BaseException | None], error: BaseException | None) -> None:
    if not ended.done():
        ended.set_result(error)
