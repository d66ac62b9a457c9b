"""The event loop on a thread of its own: what is posted runs in order, and nothing ends it but stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest

from greenroom.actors.loop import LoopThread
from unit.looping import LIMIT_S, raising, settle


def test_what_is_posted_runs_in_order_from_any_thread(loop: LoopThread) -> None:
    ran: list[int] = []
    for number in range(1000):
        loop.post(ran.append, number)
    settle(loop)
    assert ran == list(range(1000))


def test_posts_of_one_moment_share_one_wake_up(loop: LoopThread, held: Callable[[], None]) -> None:
    wake_ups: list[int] = []
    plain = loop.loop.call_soon_threadsafe

    def counting(*args: Any, **options: Any) -> asyncio.Handle:
        wake_ups.append(1)
        return plain(*args, **options)

    loop.loop.call_soon_threadsafe = counting  # type: ignore[method-assign, assignment]  # to count the wake-ups
    for _ in range(100):
        loop.post(int)
    assert len(wake_ups) <= 1
    held()
    settle(loop)


def test_a_failing_callback_does_not_hold_up_the_next(loop: LoopThread) -> None:
    ran = threading.Event()
    loop.post(raising(ValueError("boom")))
    loop.post(ran.set)
    assert ran.wait(LIMIT_S)


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()], ids=["SystemExit", "CancelledError"])
def test_a_callback_that_raises_no_common_error_does_not_hold_up_the_next(
    loop: LoopThread, held: Callable[[], None], error: BaseException
) -> None:
    ran = threading.Event()

    def fail() -> None:
        raise error

    loop.post(fail)
    loop.post(ran.set)
    held()  # both are in one turn, and nothing is posted after them
    assert ran.wait(LIMIT_S)


def test_many_threads_posting_lose_nothing(loop: LoopThread) -> None:
    counts = [0] * 8

    def count(index: int) -> None:
        counts[index] += 1

    def work(index: int) -> None:
        for _ in range(2000):
            loop.post(count, index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    settle(loop)
    assert counts == [2000] * 8


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["SystemExit", "KeyboardInterrupt"])
def test_a_task_that_exits_does_not_end_the_loop(loop: LoopThread, error: BaseException) -> None:
    async def leave() -> None:
        raise error

    spawned: list[asyncio.Task[None]] = []
    loop.post(lambda: spawned.append(loop.loop.create_task(leave())))
    settle(loop)
    assert spawned[0].exception() is error


def test_stop_cancels_what_runs_and_joins_the_thread() -> None:
    loop = LoopThread("test-stopped")
    loop.start()
    cancelled = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    loop.run(forever)
    settle(loop)
    loop.stop()
    assert cancelled.is_set()
    assert not any(thread.name == "test-stopped" for thread in threading.enumerate())
    loop.post(pytest.fail, "ran after the end")  # is dropped, and raises nothing
    loop.stop()


@pytest.mark.parametrize("exits", [True, False], ids=["exits", "stops the loop"])
def test_a_task_that_ends_badly_at_the_stop_takes_nothing_from_the_others(exits: bool) -> None:
    loop = LoopThread("test-stopped-badly")
    loop.start()
    cleaned_up = threading.Event()

    async def end_badly() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if exits:
                raise SystemExit(3) from None
            asyncio.get_running_loop().stop()
            raise

    async def clean_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):  # turns of the loop
                await asyncio.sleep(0)
            cleaned_up.set()

    spawned: list[asyncio.Task[None]] = []
    for work in (end_badly, clean_up):
        loop.post(lambda work=work: spawned.append(loop.loop.create_task(work())))
    settle(loop)
    settle(loop)
    loop.stop()
    assert cleaned_up.is_set()
    assert loop.loop.is_closed()
    if exits:
        assert isinstance(spawned[0].exception(), SystemExit)


def test_a_loop_that_is_stopped_before_it_runs_still_cleans_up() -> None:
    go = threading.Event()

    class Late(LoopThread):
        def _run_until_stopped(self) -> None:
            go.wait(LIMIT_S)
            super()._run_until_stopped()

    async def forever() -> None:
        await asyncio.Event().wait()

    loop = Late("test-late")
    loop.start()
    task = loop.run(forever)
    posted = len(ready(loop))
    stopper = threading.Thread(target=loop.stop)
    stopper.start()
    while len(ready(loop)) == posted:
        pass
    go.set()
    stopper.join(LIMIT_S)
    with pytest.raises(CancelledError):
        task.result(LIMIT_S)
    assert loop.loop.is_closed()


def ready(loop: LoopThread) -> Any:
    """What the event loop is to do next."""
    plain: Any = loop.loop
    return plain._ready
