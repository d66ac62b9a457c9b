"""The supervisor of loop actors: who is started again with whom, in which order all stop, and when it gives up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pykka
import pytest

from greenroom import Backoff, BudgetSpent
from greenroom.actors.loop import LoopThread
from greenroom.actors.loop_actor import LoopActor, monitor
from greenroom.supervisors.restart import Restart, RestartPolicy
from greenroom.supervisors.supervisor import ChildSpec, Strategy, Supervisor
from unit.looping import LIMIT_S, settle

from helpers import Mute

AT_ONCE = Backoff(first=timedelta(0), most=timedelta(0))
PATIENT = RestartPolicy(intensity=1000, backoff=AT_ONCE)


class Journal:
    """What children did, in order; ``wait`` waits until an entry has been made so many times."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self._changed = threading.Condition()

    def note(self, entry: str) -> None:
        with self._changed:
            self.entries.append(entry)
            self._changed.notify_all()

    def wait(self, entry: str, count: int = 1) -> None:
        with self._changed:
            met = self._changed.wait_for(lambda: self.entries.count(entry) >= count, LIMIT_S)
            assert met, f"not {count} times {entry}: {self.entries}"

    def since(self, start: int) -> list[str]:
        with self._changed:
            return self.entries[start:]


class Child(LoopActor):
    def __init__(self, loop: LoopThread, name: str, journal: Journal) -> None:
        super().__init__(loop)
        self.name = name
        self.journal = journal

    def on_start(self) -> None:
        self.journal.note(f"+{self.name}")

    def on_stop(self) -> None:
        self.journal.note(f"-{self.name}")

    def on_failure(self, *_: object) -> None:
        self.journal.note(f"!{self.name}")

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, BaseException):
            raise message
        return message


class House:
    """A supervisor and its children, each known by its name."""

    def __init__(self, loop: LoopThread, names: str, **options: Any) -> None:
        restart = options.pop("restart", Restart.PERMANENT)
        self.loop = loop
        self.journal = Journal()
        self.refs: dict[str, pykka.ActorRef[Child]] = {}
        specs = [ChildSpec(name, self._starter(name), restart) for name in names]
        self.failure: BaseException | None = None
        self.ended = threading.Event()
        self.root = Supervisor.start(specs, loop=loop, **{"policy": PATIENT, **options})
        monitor(self.root, self._root_ended)
        for name in names:
            self.journal.wait(f"+{name}")

    def _starter(self, name: str) -> Callable[[], pykka.ActorRef[Child]]:
        def start() -> pykka.ActorRef[Child]:
            self.refs[name] = Child.start(self.loop, name, self.journal)
            return self.refs[name]

        return start

    def _root_ended(self, failure: BaseException | None) -> None:
        self.failure = failure
        self.ended.set()

    def fail(self, name: str, error: BaseException | None = None) -> None:
        self.refs[name].tell(ValueError(f"{name} fails") if error is None else error)

    def settle(self) -> None:
        settle(self.loop)

    def shut_down(self) -> None:
        actor = self.root._actor_weakref()
        assert actor is not None
        self.loop.run(actor.shut_down).result(LIMIT_S)
        assert self.ended.wait(LIMIT_S)


def test_children_start_in_order_and_stop_in_reverse(loop: LoopThread) -> None:
    house = House(loop, "abc")
    house.shut_down()
    assert house.journal.entries == ["+a", "+b", "+c", "-c", "-b", "-a"]
    assert house.failure is None
    assert pykka.ActorRegistry.get_by_class(Child) == []


def test_stopping_a_supervisor_as_any_actor_stops_its_children_in_reverse(loop: LoopThread) -> None:
    house = House(loop, "abc")
    house.root.stop(timeout=LIMIT_S)
    house.journal.wait("-a")
    assert house.journal.entries == ["+a", "+b", "+c", "-c", "-b", "-a"]
    assert house.ended.wait(LIMIT_S)


@pytest.mark.parametrize(
    ("strategy", "fails", "expected"),
    [
        (Strategy.ONE_FOR_ONE, "a", ["!a", "+a"]),
        (Strategy.ONE_FOR_ONE, "b", ["!b", "+b"]),
        (Strategy.ONE_FOR_ONE, "c", ["!c", "+c"]),
        (Strategy.REST_FOR_ONE, "a", ["!a", "-c", "-b", "+a", "+b", "+c"]),
        (Strategy.REST_FOR_ONE, "b", ["!b", "-c", "+b", "+c"]),
        (Strategy.REST_FOR_ONE, "c", ["!c", "+c"]),
        (Strategy.ONE_FOR_ALL, "a", ["!a", "-c", "-b", "+a", "+b", "+c"]),
        (Strategy.ONE_FOR_ALL, "b", ["!b", "-c", "-a", "+a", "+b", "+c"]),
        (Strategy.ONE_FOR_ALL, "c", ["!c", "-b", "-a", "+a", "+b", "+c"]),
    ],
)
def test_who_is_started_again_with_whom(loop: LoopThread, strategy: Strategy, fails: str, expected: list[str]) -> None:
    """row 43"""
    house = House(loop, "abc", strategy=strategy)
    house.fail(fails)
    house.journal.wait(expected[-1], 2)
    house.settle()
    assert house.journal.since(3) == expected
    house.shut_down()


@pytest.mark.parametrize(
    ("restart", "how", "again"),
    [
        (Restart.PERMANENT, "fails", True),
        (Restart.PERMANENT, "exits", True),
        (Restart.PERMANENT, "stops", True),
        (Restart.TRANSIENT, "fails", True),
        (Restart.TRANSIENT, "exits", True),
        (Restart.TRANSIENT, "stops", False),
        (Restart.TEMPORARY, "fails", False),
        (Restart.TEMPORARY, "exits", False),
        (Restart.TEMPORARY, "stops", False),
    ],
)
def test_restart_type_and_exit_reason(loop: LoopThread, restart: Restart, how: str, again: bool) -> None:
    """row 43"""
    house = House(loop, "a", restart=restart)
    if how == "stops":
        house.refs["a"].stop(timeout=LIMIT_S)
    else:
        house.fail("a", SystemExit(1) if how == "exits" else None)
    house.journal.wait("-a" if how == "stops" else "!a")
    if again:
        house.journal.wait("+a", 2)
        assert house.refs["a"].ask("alive", timeout=LIMIT_S) == "alive"
    house.settle()
    assert house.journal.entries.count("+a") == (2 if again else 1)
    house.shut_down()


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("pair", ["ab", "ba", "bc", "cb", "ac", "ca"])
def test_two_that_fail_at_once_are_both_started_again(loop: LoopThread, strategy: Strategy, pair: str) -> None:
    """row 43"""
    house = House(loop, "abc", strategy=strategy)
    go = threading.Event()
    loop.post(go.wait, LIMIT_S)
    for name in pair:
        house.fail(name)
    go.set()
    for name in pair:
        house.journal.wait(f"!{name}")
    for name in "abc":
        if name in pair:
            house.journal.wait(f"+{name}", 2)
    house.settle()
    for name in "abc":
        assert house.refs[name].ask("alive", timeout=LIMIT_S) == "alive"
    house.shut_down()
    assert house.journal.entries[-3:] == ["-c", "-b", "-a"]


def test_a_child_that_fails_while_another_waits_out_its_back_off_takes_nothing_from_it(loop: LoopThread) -> None:
    """row 43"""
    slow = RestartPolicy(intensity=1000, backoff=Backoff(first=timedelta(milliseconds=100), most=timedelta(milliseconds=100)))
    house = House(loop, "ab", strategy=Strategy.ONE_FOR_ONE, policy=slow)
    house.fail("a")
    house.journal.wait("!a")
    house.fail("b")
    house.journal.wait("+a", 2)
    house.journal.wait("+b", 2)
    house.shut_down()


@pytest.mark.parametrize("strategy", Strategy)
def test_a_spent_budget_fails_the_supervisor_and_stops_its_children(loop: LoopThread, strategy: Strategy) -> None:
    """row 43"""
    house = House(loop, "abc", strategy=strategy, policy=RestartPolicy(intensity=2, backoff=AT_ONCE))
    for times in range(2, 4):
        house.fail("b")
        house.journal.wait("+b", times)
        house.settle()
    house.fail("b", ValueError("once too often"))
    assert house.ended.wait(LIMIT_S)
    assert isinstance(house.failure, BudgetSpent)
    assert "once too often" in str(house.failure)
    house.settle()
    assert pykka.ActorRegistry.get_by_class(Child) == []
    assert [entry for entry in house.journal.entries if entry[0] == "-"][-2:] == ["-c", "-a"]


def test_a_child_that_fails_of_an_error_that_says_nothing_is_started_again_and_counted(loop: LoopThread) -> None:
    house = House(loop, "a", strategy=Strategy.ONE_FOR_ONE, policy=RestartPolicy(intensity=1, backoff=AT_ONCE))
    house.fail("a", Mute())
    house.journal.wait("+a", 2)
    house.settle()
    house.fail("a", Mute())
    assert house.ended.wait(LIMIT_S)
    assert isinstance(house.failure, BudgetSpent)


def test_a_nested_supervisor_escalates_to_its_own(loop: LoopThread) -> None:
    """row 43"""
    inner: list[House] = []

    def start() -> pykka.ActorRef[Supervisor]:
        journal_house = House.__new__(House)
        journal_house.loop, journal_house.journal, journal_house.refs = loop, outer_journal, {}
        inner.append(journal_house)
        specs = [ChildSpec("x", journal_house._starter("x"))]
        return Supervisor.start(specs, loop=loop, policy=RestartPolicy(intensity=0, backoff=AT_ONCE))

    outer_journal = Journal()
    root = Supervisor.start([ChildSpec("inner", start)], loop=loop, policy=PATIENT)
    outer_journal.wait("+x")
    inner[0].fail("x")
    outer_journal.wait("+x", 2)
    assert root.is_alive()
    assert len(inner) == 2
    root.stop(timeout=LIMIT_S)
    outer_journal.wait("-x")


def test_a_child_that_does_not_stop_in_its_time_does_not_hold_up_the_others(loop: LoopThread) -> None:
    """row 43"""
    journal = Journal()

    class Deaf(Child):
        def _stop(self) -> None:
            """Never."""

    specs = [
        ChildSpec("a", lambda: Child.start(loop, "a", journal)),
        ChildSpec("deaf", lambda: Deaf.start(loop, "deaf", journal), shutdown=timedelta(milliseconds=50)),
    ]
    root = Supervisor.start(specs, loop=loop, policy=PATIENT)
    journal.wait("+deaf")
    actor = root._actor_weakref()
    assert actor is not None
    loop.run(actor.shut_down).result(LIMIT_S)
    journal.wait("-a")
    for ref in pykka.ActorRegistry.get_all():
        ref.tell(SystemExit())


def test_a_stopped_child_stays_stopped(loop: LoopThread) -> None:
    house = House(loop, "ab", strategy=Strategy.REST_FOR_ONE)
    actor = house.root._actor_weakref()
    assert actor is not None
    loop.run(lambda: actor.stop_child("b")).result(LIMIT_S)
    house.settle()
    assert house.journal.since(2) == ["-b"]
    house.shut_down()


def test_a_stopped_child_is_not_started_again_with_others(loop: LoopThread) -> None:
    house = House(loop, "abc", strategy=Strategy.REST_FOR_ONE)
    actor = house.root._actor_weakref()
    assert actor is not None
    loop.run(lambda: actor.stop_child("c")).result(LIMIT_S)
    house.fail("a")
    house.journal.wait("+b", 2)
    house.settle()
    assert house.journal.since(3) == ["-c", "!a", "-b", "+a", "+b"]
    house.shut_down()


def test_a_temporary_child_is_not_started_again_with_others(loop: LoopThread) -> None:
    """row 43"""
    journal, refs = Journal(), []

    def start() -> pykka.ActorRef[Child]:
        refs.append(Child.start(loop, "a", journal))
        return refs[-1]

    specs = [ChildSpec("a", start), ChildSpec("b", lambda: Child.start(loop, "b", journal), Restart.TEMPORARY)]
    root = Supervisor.start(specs, loop=loop, strategy=Strategy.ONE_FOR_ALL, policy=PATIENT)
    journal.wait("+b")
    refs[0].tell(ValueError("fails"))
    journal.wait("+a", 2)
    root.stop(timeout=LIMIT_S)
    journal.wait("-a")
    assert journal.entries == ["+a", "+b", "!a", "-b", "+a", "-a"]


def test_shutting_down_during_a_back_off_starts_nothing(loop: LoopThread) -> None:
    slow = RestartPolicy(intensity=1000, backoff=Backoff(first=timedelta(hours=1), most=timedelta(hours=1)))
    house = House(loop, "ab", strategy=Strategy.ONE_FOR_ONE, policy=slow)
    house.fail("a")
    house.journal.wait("!a")
    house.settle()
    house.shut_down()
    assert house.journal.since(2) == ["!a", "-b"]


def test_a_start_that_fails_is_a_failure_of_the_child(loop: LoopThread) -> None:
    """row 34: a crash while recovering, twice, then success."""
    journal = Journal()
    attempts: list[int] = []

    def start() -> pykka.ActorRef[Child]:
        attempts.append(1)
        if len(attempts) in (2, 3):
            raise OSError("cannot start now")
        ref = Child.start(loop, "a", journal)
        refs.append(ref)
        return ref

    refs: list[pykka.ActorRef[Child]] = []
    root = Supervisor.start([ChildSpec("a", start)], loop=loop, policy=PATIENT)
    journal.wait("+a")
    refs[0].tell(ValueError("fails"))
    journal.wait("+a", 2)
    assert len(attempts) == 4
    assert root.is_alive()
    root.stop(timeout=LIMIT_S)
    journal.wait("-a")
