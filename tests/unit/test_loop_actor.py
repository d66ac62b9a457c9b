"""Pykka's actors on an event loop: the same from outside, and a failure that ends one actor alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pykka
import pytest

from greenroom.actors.loop import LoopThread
from greenroom.actors.loop_actor import BUDGET, LoopActor, monitor, tell
from greenroom.actors.mailbox import Control
from unit.looping import LIMIT_S, raising, settle


class Urgent(Control):
    """Travels in the control lane, and fails the actor with ``error``."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class Recorder(LoopActor):
    """Keeps what it is sent; a callable is called, and its result is the answer."""

    public = "an attribute"

    def __init__(self, loop: LoopThread, *, fails_in: str = "", error: BaseException | None = None) -> None:
        super().__init__(loop)
        self.seen: list[Any] = []
        self.hooks: list[str] = []
        self.thread = ""
        self._fails_in = fails_in
        self._error = error or ValueError("told to fail")

    def _hook(self, name: str) -> None:
        self.hooks.append(name)
        if self._fails_in == name:
            raise self._error

    def on_start(self) -> None:
        self.thread = threading.current_thread().name
        self._hook("start")

    def on_stop(self) -> None:
        self._hook("stop")

    def on_failure(self, *_: object) -> None:
        self._hook("failure")

    def on_receive(self, message: Any) -> Any:
        if callable(message):
            return message()
        if isinstance(message, Urgent) and message.error is not None:
            raise message.error
        self.seen.append(message)
        return len(self.seen)

    def double(self, number: int) -> int:
        return 2 * number


class Exits:
    """What a monitor was told."""

    def __init__(self) -> None:
        self.told: list[BaseException | None] = []
        self.any = threading.Event()

    def __call__(self, failure: BaseException | None) -> None:
        self.told.append(failure)
        self.any.set()

    def one(self) -> BaseException | None:
        """Wait for the end, and answer how it was."""
        assert self.any.wait(LIMIT_S), "nobody told the end"
        assert len(self.told) == 1
        return self.told[0]


def watched(ref: pykka.ActorRef[Any]) -> Exits:
    exits = Exits()
    monitor(ref, exits)
    return exits


# As in Pykka. -----------------------------------------------------------------------------------------------


def test_tell_ask_and_stop_from_another_thread(loop: LoopThread) -> None:
    ref = Recorder.start(loop)
    ref.tell("a")
    assert ref.ask("b", timeout=LIMIT_S) == 2
    assert ref.ask(lambda: threading.current_thread().name, timeout=LIMIT_S) == "test-loop"
    assert ref.stop(timeout=LIMIT_S) is True
    assert not ref.is_alive()
    assert ref.stop(timeout=LIMIT_S) is False


def test_a_proxy_reads_sets_and_calls(loop: LoopThread) -> None:
    ref = Recorder.start(loop)
    proxy: Any = ref.proxy()
    assert proxy.public.get(timeout=LIMIT_S) == "an attribute"
    assert proxy.double(21).get(timeout=LIMIT_S) == 42
    proxy.public = "changed"
    assert proxy.public.get(timeout=LIMIT_S) == "changed"
    proxy.stop().get(timeout=LIMIT_S)
    assert ref.actor_stopped.wait(LIMIT_S)


def test_the_registry_knows_living_actors_only(loop: LoopThread) -> None:
    ref = Recorder.start(loop)
    assert pykka.ActorRegistry.get_by_urn(ref.actor_urn) is ref
    assert pykka.ActorRegistry.get_by_class(Recorder) == [ref]
    ref.stop(timeout=LIMIT_S)
    assert pykka.ActorRegistry.get_by_urn(ref.actor_urn) is None


def test_the_registry_stops_all(loop: LoopThread) -> None:
    refs = [Recorder.start(loop) for _ in range(5)]
    assert pykka.ActorRegistry.stop_all(timeout=LIMIT_S) == [True] * 5
    assert not any(ref.is_alive() for ref in refs)


def test_hooks_run_on_the_loop_in_their_order(loop: LoopThread) -> None:
    ref = Recorder.start(loop)
    actor = ref._actor_weakref()
    ref.stop(timeout=LIMIT_S)
    assert actor is not None
    assert actor.thread == "test-loop"
    assert actor.hooks == ["start", "stop"]


def test_messages_are_handled_in_order_control_before_them(loop: LoopThread, held: Callable[[], None]) -> None:
    ref = Recorder.start(loop)
    actor = ref._actor_weakref()
    assert actor is not None
    ref.tell("m1")
    ref.tell("m2")
    urgent = Urgent()
    ref.tell(urgent)
    last = ref.ask("m3", block=False)
    held()
    last.get(timeout=LIMIT_S)
    assert actor.seen == [urgent, "m1", "m2", "m3"]
    ref.stop(timeout=LIMIT_S)


def test_no_message_is_handled_while_another_is(loop: LoopThread) -> None:
    inside: list[int] = []
    most = [0]

    def handle() -> None:
        inside.append(1)
        most[0] = max(most[0], len(inside))
        inside.pop()

    def pour() -> None:
        for _ in range(300):
            ref.tell(handle)

    ref = Recorder.start(loop)
    threads = [threading.Thread(target=pour) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    ref.ask(handle, timeout=LIMIT_S)
    assert most == [1]
    ref.stop(timeout=LIMIT_S)


def test_an_actor_that_tells_itself_neither_recurses_nor_keeps_others_from_their_turn(
    loop: LoopThread, held: Callable[[], None]
) -> None:
    first, second = Recorder.start(loop), Recorder.start(loop)
    left = [50 * BUDGET]

    def again() -> None:
        left[0] -= 1
        if left[0]:
            first.tell(again)

    first.tell(again)
    seen_by_second = second.ask(lambda: left[0], block=False)
    held()
    assert seen_by_second.get(timeout=LIMIT_S) > 0, "the second actor had to wait for the first one's end"
    first.stop(timeout=LIMIT_S)
    second.stop(timeout=LIMIT_S)


def test_an_ask_to_a_dead_actor_raises(loop: LoopThread) -> None:
    ref = Recorder.start(loop)
    ref.stop(timeout=LIMIT_S)
    with pytest.raises(pykka.ActorDeadError):
        ref.ask("m", timeout=LIMIT_S)
    with pytest.raises(pykka.ActorDeadError):
        ref.tell("m")
    assert tell(ref, "m") is False
    assert tell(None, "m") is False


def test_what_waits_in_the_mailbox_at_the_end_is_answered_with_an_error(loop: LoopThread, held: Callable[[], None]) -> None:
    ref = Recorder.start(loop)
    ref.tell(Urgent())
    stop = ref.stop(block=False)
    answer = ref.ask("too late", block=False)
    again = ref.stop(block=False)
    held()
    with pytest.raises(pykka.ActorDeadError):
        answer.get(timeout=LIMIT_S)
    assert stop.get(timeout=LIMIT_S) is True
    assert again.get(timeout=LIMIT_S) is True


def test_asks_that_race_with_the_end_are_all_answered(loop: LoopThread) -> None:
    for _ in range(30):
        ref = Recorder.start(loop)
        outcomes: list[str] = []

        def ask(ref: pykka.ActorRef[Recorder] = ref, outcomes: list[str] = outcomes) -> None:
            try:
                ref.ask("m", timeout=LIMIT_S)
                outcomes.append("answered")
            except pykka.ActorDeadError:
                outcomes.append("dead")

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads[:3]:
            thread.start()
        ref.stop(block=False)
        for thread in threads[3:]:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        assert len(outcomes) == 6, "an ask hangs"


# Failures. --------------------------------------------------------------------------------------------------

ERRORS = [ValueError("boom"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_failing_handler_ends_its_actor_alone(loop: LoopThread, error: BaseException) -> None:
    ref, other = Recorder.start(loop), Recorder.start(loop)
    exits = watched(ref)
    actor = ref._actor_weakref()
    ref.tell(raising(error))
    assert exits.one() is error
    assert actor is not None
    assert actor.hooks == ["start", "failure"]
    assert not ref.is_alive()
    assert other.ask("still there", timeout=LIMIT_S) == 1
    other.stop(timeout=LIMIT_S)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_failing_ask_tells_the_asker_and_the_actor_lives_on(loop: LoopThread, error: BaseException) -> None:
    ref = Recorder.start(loop)
    with pytest.raises(type(error)):
        ref.ask(raising(error), timeout=LIMIT_S)
    assert ref.ask("m", timeout=LIMIT_S) == 1
    ref.stop(timeout=LIMIT_S)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("hook", ["start", "stop"])
def test_a_failing_hook_is_a_failure(loop: LoopThread, held: Callable[[], None], hook: str, error: BaseException) -> None:
    ref, other = Recorder.start(loop, fails_in=hook, error=error), Recorder.start(loop)
    exits = watched(ref)  # before it ends: who is dead already cannot say how
    ref.stop(block=False)
    held()
    assert exits.one() is error
    assert not ref.is_alive()
    assert other.ask("still there", timeout=LIMIT_S) == 1
    other.stop(timeout=LIMIT_S)


def test_a_failing_on_failure_hides_nothing(loop: LoopThread) -> None:
    ref = Recorder.start(loop, fails_in="failure")
    exits = watched(ref)
    error = RuntimeError("the first")
    ref.tell(raising(error))
    assert exits.one() is error


def test_after_a_failing_start_nothing_is_handled(loop: LoopThread, held: Callable[[], None]) -> None:
    ref = Recorder.start(loop, fails_in="start")
    actor = ref._actor_weakref()
    answer = ref.ask("m", block=False)
    held()
    with pytest.raises(pykka.ActorDeadError):
        answer.get(timeout=LIMIT_S)
    assert actor is not None
    assert actor.seen == []


# Monitors. --------------------------------------------------------------------------------------------------


def test_a_monitor_is_told_a_normal_end_once(loop: LoopThread) -> None:
    ref = Recorder.start(loop)
    exits = watched(ref)
    ref.stop(timeout=LIMIT_S)
    assert exits.one() is None
    settle(loop)
    assert exits.told == [None]


def test_a_monitor_of_a_dead_actor_is_told_at_once(loop: LoopThread) -> None:
    ref = Recorder.start(loop)
    ref.stop(timeout=LIMIT_S)
    assert watched(ref).told == [None]


def test_a_monitor_that_arrives_with_the_end_is_told_once(loop: LoopThread, held: Callable[[], None]) -> None:
    ref = Recorder.start(loop)
    ref.stop(block=False)
    exits = watched(ref)  # behind the stop
    held()
    assert exits.one() is None
    settle(loop)
    assert len(exits.told) == 1


@pytest.mark.parametrize("before", [*range(BUDGET - 3, BUDGET + 2), 2 * BUDGET - 2, 2 * BUDGET - 1])
@pytest.mark.parametrize("how", ["stop", "failure"])
def test_the_end_is_told_wherever_in_a_turn_it_comes(loop: LoopThread, held: Callable[[], None], before: int, how: str) -> None:
    ref = Recorder.start(loop)
    exits = watched(ref)
    for _ in range(before):
        ref.tell(Urgent())
    error = ValueError("boom")
    if how == "stop":
        ref.stop(block=False)
    else:
        ref.tell(Urgent(error))
    held()
    assert exits.one() is (None if how == "stop" else error)


@pytest.mark.parametrize("error", [ValueError("a bad monitor"), SystemExit(3)], ids=["ValueError", "SystemExit"])
def test_every_monitor_is_told_also_after_one_that_raises(loop: LoopThread, error: BaseException) -> None:
    ref = Recorder.start(loop)
    monitor(ref, lambda failure: raising(error)())
    exits = watched(ref)
    ref.stop(timeout=LIMIT_S)
    assert exits.one() is None


def test_an_actor_whose_loop_has_ended_is_dead_for_whoever_asks() -> None:
    loop = LoopThread("test-stopped")
    loop.start()
    asked, told, stopped = (Recorder.start(loop) for _ in range(3))
    settle(loop)
    loop.stop()
    with pytest.raises(pykka.ActorDeadError):
        asked.ask("m", timeout=LIMIT_S)
    told.tell("m")
    assert not told.is_alive()
    assert stopped.stop(timeout=LIMIT_S) is True
    assert not any(ref in pykka.ActorRegistry.get_all() for ref in (asked, told, stopped))
