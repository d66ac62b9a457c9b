"""An actor whose work is a coroutine: it fails when the coroutine does, and stops it when it is stopped."""

from __future__ import annotations

import asyncio
from typing import Any

from ..actors.loop_actor import LoopActor, tell
from ..actors.mailbox import Control


class _RunEnded(Control):
    __slots__ = ("error",)

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Service(LoopActor):
    """Override ``run``."""

    _task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        raise NotImplementedError

    def on_start(self) -> None:
        self._task = asyncio.create_task(self.run(), name=f"greenroom-{type(self).__name__}")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            tell(self.actor_ref, _RunEnded(task.exception()))

    def on_receive(self, message: Any) -> None:
        if isinstance(message, _RunEnded):
            if message.error is not None:
                raise message.error
            self._stop()

    def on_stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def on_failure(self, *_: object) -> None:
        self.on_stop()
