"""What tests of actors on a loop share; the fixtures ``loop`` and ``held`` are in ``conftest``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from greenroom.actors.loop import LoopThread

LIMIT_S = 20.0  # within which anything ends


def settle(loop: LoopThread) -> None:
    """Wait until the loop has done all that was posted before, and what that led to at once."""
    for _ in range(20):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop.loop).result(LIMIT_S)


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail
