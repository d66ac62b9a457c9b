"""Plain functions run in threads: one each, a daemon's, so that a run-away holds up neither others nor the process's end."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from ..protocol.log import bound_as_here

T = TypeVar("T")


def start_thread(name: str, work: Callable[[], object]) -> None:
    """Run ``work``, in the caller's context, in a thread of its own. Its log lines have the fields of the caller's."""
    context, work = contextvars.copy_context(), bound_as_here(work)
    threading.Thread(target=context.run, args=(work,), name=name, daemon=True).start()


async def in_thread(name: str, work: Callable[[], T]) -> T:
    """What ``work`` returns or raises, from a thread of its own. Cancelled, this ends at once, and the thread runs on."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[T] = loop.create_future()
    start_thread(name, partial(_answer, loop, [answered], work))
    try:
        return await answered
    finally:
        del answered  # an error has this frame in its traceback: see _answer


def _answer(loop: asyncio.AbstractEventLoop, waiting: list[asyncio.Future[T]], work: Callable[[], T]) -> None:
    answered = waiting.pop()  # not an argument: whoever calls this, and is in the traceback too, would still have it
    result: Any = None
    error: BaseException | None = None
    try:
        result = work()
    except StopIteration as stop:  # a future refuses it
        error = RuntimeError(f"raised {stop!r}")
    except BaseException as raised:
        error = raised
    with suppress(RuntimeError):  # the loop has ended with whoever waited
        loop.call_soon_threadsafe(_settle, answered, result, error)
    # An error refers to the frames that it came through, and to all that they refer to, the user's too. If one of them refers
    # to the error, they live until the garbage collector comes, and end on whichever thread that is.
    del answered, result, error


def _settle(answered: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if not answered.done():
        answered.set_result(result) if error is None else answered.set_exception(error)


async def call(name: str, function: Callable[..., Any], *args: Any) -> Any:
    """What a function of a user's answers: a coroutine function's on this loop, a plain one's from a thread of its own."""
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    result = await in_thread(name, partial(function, *args))
    return await result if inspect.isawaitable(result) else result
