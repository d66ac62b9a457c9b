"""A cycle's link when its worker ends: whoever asks is answered."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from greenroom.actors.link import CycleLink
from greenroom.actors.loop import LoopThread
from greenroom.protocol.errors import CycleEnded

WAIT_S = 30.0


class SilentStore:
    """Never answers."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: asyncio.get_running_loop().create_future()


def link_on(control: LoopThread) -> CycleLink:
    store: Any = SilentStore()
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
