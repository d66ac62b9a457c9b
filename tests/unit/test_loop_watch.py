"""The loop watch, on two loops and without a server. How it looks in a worker: ``integration/test_loop_watch.py``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from greenroom.actors.counts import Counts
from greenroom.actors.loop import LoopThread
from greenroom.supervisors.loop_watch import BLOCKED_S, LoopWatch
from integration.agents import blocked, eventually


@pytest.fixture
def loops() -> Iterator[tuple[LoopThread, LoopThread]]:
    """The control loop and the user loop, with a watch between them."""
    control, user = LoopThread("test-control"), LoopThread("test-user")
    control.start()
    user.start()
    worker: Any = SimpleNamespace(name="worker", rooms=None, context=SimpleNamespace(control=control, counts=Counts()))
    watch = LoopWatch.start(worker, user)
    yield control, user
    watch.stop()
    user.stop()
    control.stop()


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if f"event={event} " in record.getMessage()]


def hog(blocks_s: float) -> None:
    threading.Event().wait(blocks_s)


def test_a_block_is_told_once_with_the_stack_and_once_that_it_is_over(
    loops: tuple[LoopThread, LoopThread], caplog: pytest.LogCaptureFixture
) -> None:
    _, user = loops
    for number in (1, 2):
        user.post(hog, 3 * BLOCKED_S)
        eventually(lambda: len(lines(caplog, "loop.free")) == number, "it is over")  # noqa: B023  # called here only
        told = lines(caplog, "loop.blocked")
        assert len(told) == number
        assert "event=loop.blocked blocked_s=" in told[-1].splitlines()[0]
        assert "in hog" in told[-1]
        assert "threading.Event().wait(blocks_s)" in told[-1]


def test_a_process_that_was_suspended_is_not_told_of_a_block(
    loops: tuple[LoopThread, LoopThread], caplog: pytest.LogCaptureFixture
) -> None:
    """When it wakes, the deadline of the ping in flight is past, but the user loop has had no chance to answer."""
    control, user = loops
    answered = threading.Event()
    with blocked(user):
        eventually(lambda: user._posted, "a ping is in flight")
        with blocked(control):
            threading.Event().wait(1.5 * BLOCKED_S)  # the suspension
    user.post(control.post, answered.set)
    assert answered.wait(20)
    eventually(lambda: not user._posted, "it has answered")
    assert lines(caplog, "loop.blocked") == []
