"""Listeners without a server: registration, and the thread. What a worker tells them: ``integration/test_listeners.py``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from greenroom import ActorSystem, Agent, Cycle, Event, EventKind, InvalidRequest, Message, RedisRefused
from greenroom.actors.loop import LoopThread
from greenroom.protocol.keys import Keys
from greenroom.supervisors.listeners import KINDS, Listeners
from pages import rows

LIMIT_S = 20.0


class Echo(Agent):
    async def respond(self, message: Message, cycle: Cycle) -> Any:
        return message.body


def system() -> ActorSystem:
    return ActorSystem(Echo, agent="a", redis="redis://127.0.0.1:1")


# Registration. ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cycle.dreamt", "signal.applied", "worker.left", "", "CYCLE_FAILED", None, 3])
def test_a_kind_that_no_worker_has_is_refused_and_those_that_it_has_are_named(kind: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        system().on(kind, print)
    assert all(known in str(refused.value) for known in KINDS)


def test_the_kinds_are_those_that_say_whose_they_are_but_for_its_coming_and_going() -> None:
    of_workers = [cells[0].strip("`") for cells in rows("docs/protocol.md", "Events") if "`worker`" in cells[1]]
    assert [kind for kind in of_workers if kind not in ("worker.joined", "worker.left")] == list(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_may_be_given_by_its_name_or_as_itself(kind: EventKind) -> None:
    one = system()
    one.on(kind, print)
    one.on(str(kind.value), print)


class AsyncCallable:
    async def __call__(self, event: Event) -> None: ...


async def coroutine_function(event: Event) -> None: ...


@pytest.mark.parametrize("listener", [coroutine_function, AsyncCallable(), AsyncCallable().__call__])
def test_a_coroutine_function_is_refused_as_a_listener(listener: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^listener: want a plain function"):
        system().on("cycle.failed", listener)


def test_what_cannot_be_called_is_refused_as_a_listener() -> None:
    with pytest.raises(InvalidRequest, match=r"^listener: want a function, got 'me'"):
        system().on("cycle.failed", "me")  # type: ignore[arg-type]  # that it is refused is the point


# The thread. ------------------------------------------------------------------------------------------


@pytest.fixture
def control() -> Iterator[LoopThread]:
    control = LoopThread("test-control")
    control.start()
    yield control
    control.stop()


class Stream:
    """A store of which only the events are asked, and these are none."""

    def __init__(self, error: Exception | None = None) -> None:
        self.keys = Keys("a")
        self.pipeline = SimpleNamespace(command=self._command)
        self._error = error

    def _command(self, *_: object, decode: Callable[[Any], Any]) -> Any:
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        reply.set_result(decode([])) if self._error is None else reply.set_exception(self._error)
        return reply


def opened(control: LoopThread, stream: Any) -> Listeners:
    listeners = Listeners("me", control)
    control.run(lambda: listeners.open(stream)).result(LIMIT_S)
    return listeners


def entry(number: int, worker: bytes = b"me") -> Any:
    return b"%d-0" % number, [b"event", b"cycle.failed", b"worker", worker]


def test_after_the_end_the_rest_of_a_page_is_not_told(control: LoopThread) -> None:
    told: list[str] = []
    reached, go = threading.Event(), threading.Event()

    def hang(event: Event) -> None:
        told.append(event.id)
        reached.set()
        go.wait(LIMIT_S)

    listeners = opened(control, Stream())
    listeners.add("cycle.failed", hang)
    control.post(listeners.tell, [entry(1), entry(2)])
    assert reached.wait(LIMIT_S)
    listeners.close()
    go.set()
    assert listeners._thread is not None
    listeners._thread.join(LIMIT_S)
    assert not listeners._thread.is_alive()
    assert told == ["1-0"]


def test_a_page_is_told_in_its_order_and_what_is_not_this_workers_is_passed_over(control: LoopThread) -> None:
    told: list[str] = []
    last: Future[None] = Future()

    def note(event: Event) -> None:
        told.append(event.id)
        if event.id == "4-0":
            last.set_result(None)

    listeners = opened(control, Stream())
    listeners.add("cycle.failed", note)
    control.post(listeners.tell, [entry(1), entry(2, b"another"), entry(3), entry(4)])
    last.result(LIMIT_S)
    listeners.close()
    assert told == ["1-0", "3-0", "4-0"]


def test_a_registration_that_redis_refuses_raises_and_leaves_nothing(control: LoopThread) -> None:
    listeners = opened(control, Stream(RedisRefused("no permission")))
    with pytest.raises(RedisRefused):
        listeners.add("cycle.failed", print)
    assert not listeners.wanted


def test_a_start_fails_when_redis_refuses_what_was_registered_before(control: LoopThread) -> None:
    listeners: Any = Listeners("me", control)
    listeners.add("cycle.failed", print)
    with pytest.raises(RedisRefused):
        control.run(lambda: listeners.open(Stream(RedisRefused("no permission")))).result(LIMIT_S)


def test_registration_and_removal_after_the_end_do_nothing(control: LoopThread) -> None:
    listeners = opened(control, Stream())
    listeners.close()
    control.stop()
    listeners.add("cycle.failed", print)()
