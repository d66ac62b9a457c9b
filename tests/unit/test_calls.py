"""Calls of a user's function: where it runs, what it raises, and what becomes of it when nobody waits any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from greenroom.actors.calls import Calls
from greenroom.actors.loop import LoopThread

LIMIT_S = 20.0

Making = Callable[[Callable[..., Any]], Calls]


@pytest.fixture
def making() -> Iterator[Making]:
    control, user = LoopThread("control"), LoopThread("user")
    control.start()
    user.start()
    yield lambda function: Calls(function, control, user)
    user.stop()
    control.stop()


def outcome(calls: Calls, *args: Any) -> BaseException | None:
    return calls.control.run(lambda: calls(*args)).result(LIMIT_S)


def test_coroutine_functions_run_on_the_user_loop_and_others_in_threads(making: Making) -> None:
    names = []

    def plain(word: str) -> None:
        names.append(f"{word} {threading.current_thread().name}")

    async def coroutine(word: str) -> None:
        plain(word)

    assert [outcome(making(plain), "a"), outcome(making(coroutine), "b")] == [None, None]
    assert outcome(making(lambda word: coroutine(word)), "c") is None
    assert names == ["a greenroom-call", "b user", "c user"]


@pytest.mark.parametrize("error", [ValueError(), SystemExit(), KeyboardInterrupt(), asyncio.CancelledError()])
def test_what_it_raises_is_the_answer_and_ends_nothing_else(making: Making, error: BaseException) -> None:
    def plain() -> None:
        raise error

    async def coroutine() -> None:
        raise error

    for function in (plain, coroutine):
        calls = making(function)
        assert outcome(calls) is error
        assert outcome(calls) is error


def test_a_thread_that_cannot_be_started_is_an_error(making: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    calls = making(lambda: None)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert str(outcome(calls)) == "can't start new thread"


def test_a_coroutine_is_cancelled_when_nobody_waits_for_it_any_more(making: Making) -> None:
    began, cancelled = threading.Event(), threading.Event()

    async def hang() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    calls = making(hang)
    waiting = calls.control.run(calls)
    assert began.wait(LIMIT_S)
    waiting.cancel()
    assert cancelled.wait(LIMIT_S)
