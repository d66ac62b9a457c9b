"""Services: actors whose work is a coroutine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pykka

from greenroom.actors.loop import LoopThread
from greenroom.actors.loop_actor import monitor
from greenroom.supervisors.service import Service
from unit.looping import LIMIT_S


class Working(Service):
    def __init__(self, loop: LoopThread, work: Callable[[], Any]) -> None:
        super().__init__(loop)
        self._work = work

    async def run(self) -> None:
        await self._work()


def end_of(ref: pykka.ActorRef[Any]) -> Callable[[], BaseException | None]:
    told: list[BaseException | None] = []
    ended = threading.Event()

    def on_exit(failure: BaseException | None) -> None:
        told.append(failure)
        ended.set()

    monitor(ref, on_exit)

    def wait() -> BaseException | None:
        assert ended.wait(LIMIT_S)
        assert len(told) == 1
        return told[0]

    return wait


def test_a_service_fails_with_its_coroutine_and_ends_with_it(loop: LoopThread) -> None:
    error = ValueError("boom")

    async def fail() -> None:
        raise error

    async def end() -> None:
        return

    assert end_of(Working.start(loop, fail))() is error
    assert end_of(Working.start(loop, end))() is None


def test_a_stopped_service_cancels_its_coroutine(loop: LoopThread) -> None:
    began, cancelled = threading.Event(), threading.Event()

    async def forever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    ref = Working.start(loop, forever)
    wait = end_of(ref)
    assert began.wait(LIMIT_S)
    ref.stop(timeout=LIMIT_S)
    assert cancelled.wait(LIMIT_S)
    assert wait() is None
