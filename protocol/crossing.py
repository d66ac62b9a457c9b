"""From a thread into the event loop of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def hand_over(loop: asyncio.AbstractEventLoop, call: Callable[[], Coroutine[Any, Any, T]], answer: Future[T]) -> None:
    """Have what ``call()`` gives run on ``loop``, and ``answer`` done with it. An ``answer`` that is cancelled cancels it.

    The coroutine is made over there. One that is made by the caller, and that Ctrl-C keeps from being handed over, is never
    awaited, of which Python complains; ``asyncio.run_coroutine_threadsafe`` has no other.
    """
    loop.call_soon_threadsafe(_begin, loop, call, answer)


def _begin(loop: asyncio.AbstractEventLoop, call: Callable[[], Coroutine[Any, Any, T]], answer: Future[T]) -> None:
    if answer.cancelled():
        return
    task = loop.create_task(call())

    def ended(_: asyncio.Task[T]) -> None:
        if task.cancelled():
            answer.cancel()
        error = None if task.cancelled() else task.exception()
        if not answer.set_running_or_notify_cancel():
            return  # nobody waits for it
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    def given_up(_: Future[T]) -> None:
        if answer.cancelled() and not task.done():
            loop.call_soon_threadsafe(task.cancel)

    task.add_done_callback(ended)
    answer.add_done_callback(given_up)
