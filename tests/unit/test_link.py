"""A cycle's link when its worker ends: whoever asks is answered."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from greenroom.actors.link import BATCH_BYTES, CycleLink
from greenroom.actors.loop import LoopThread
from greenroom.protocol.errors import CycleEnded
from greenroom.protocol.store import Answer

WAIT_S = 30.0


class SilentStore:
    """Never answers."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: asyncio.get_running_loop().create_future()


def link_on(control: LoopThread, store: Any = None) -> CycleLink:
    store = store or SilentStore()
    return CycleLink(
        control, store, "1", 7, lambda *_: None, lambda: None, interval_s=0.0, shield_warning_s=30.0, remember=False
    )


def ask(link: CycleLink, what: str, *args: Any) -> Future[Any]:
    answered: Future[Any] = Future()

    def done(answer: Any, error: BaseException | None) -> None:
        answered.set_result(answer) if error is None else answered.set_exception(error)

    link.request(done, what, *args)
    return answered


@pytest.mark.parametrize(("what", "args"), [("flush", ()), ("shield", (True,)), ("step", ("name", "begin", b""))])
@pytest.mark.parametrize("pushed", [False, True], ids=["", "behind a chunk"])
def test_what_is_asked_while_the_worker_ends_is_answered(what: str, args: tuple[Any, ...], pushed: bool) -> None:
    """A thread that was left behind would wait for ever."""
    control = LoopThread("control")
    control.start()
    link, reached, go = link_on(control), threading.Event(), threading.Event()

    def block() -> None:
        reached.set()
        go.wait(WAIT_S)

    control.post(block)
    assert reached.wait(WAIT_S)
    control.end()
    if pushed:
        link.push(b"chunk")
    answered = ask(link, what, *args)  # it is in the queue of a loop that will not come round again
    go.set()
    with pytest.raises(CycleEnded):
        answered.result(WAIT_S)
    control.stop()


def test_what_is_asked_after_the_worker_has_ended_is_answered() -> None:
    control = LoopThread("control")
    control.start()
    control.stop()
    with pytest.raises(CycleEnded):
        ask(link_on(control), "step", "name", "begin", b"").result(WAIT_S)


class RecordingStore:
    """Answers each emit, but the first only once it is let go."""

    def __init__(self) -> None:
        self.sizes: list[list[int]] = []
        self.first: asyncio.Future[Answer] | None = None

    def emit(self, room: str, ticket: int, seq: int, *bodies: bytes) -> asyncio.Future[Answer]:
        self.sizes.append([len(body) for body in bodies])
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if self.first is None:
            self.first = answer
        else:
            answer.set_result(Answer("ok", str(seq)))
        return answer


def test_large_chunks_do_not_leave_together() -> None:
    """Nor does a large one with those behind it: a signal of somebody else's would wait for all of them."""
    control, store = LoopThread("control"), RecordingStore()
    control.start()
    link = link_on(control, store)
    for size in (1, BATCH_BYTES - 10, 20, 5, BATCH_BYTES // 2, BATCH_BYTES // 2, 1):
        link.push(b"x" * size)
    flushed = ask(link, "flush")

    def let_go() -> None:
        assert store.first is not None
        store.first.set_result(Answer("ok", "1"))

    control.post(let_go)
    flushed.result(WAIT_S)
    control.stop()
    assert store.sizes == [[1], [BATCH_BYTES - 10], [20, 5, BATCH_BYTES // 2], [BATCH_BYTES // 2, 1]]
