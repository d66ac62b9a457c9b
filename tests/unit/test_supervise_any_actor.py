"""The supervisor as users of plain Pykka meet it: dynamic children, names, death watch, deadlines, what it tells."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pykka
import pytest

from greenroom import (
    Backoff,
    BudgetSpent,
    ChildSpec,
    InvalidRequest,
    NamedRef,
    NotFound,
    Restart,
    RestartPolicy,
    Strategy,
    Supervisor,
    watch,
)
from supervised import LIMIT_S, Ending, Journal, ThreadChild, kill

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE = RestartPolicy(intensity=3, backoff=Backoff(first=timedelta(0), most=timedelta(0)))
NEVER = RestartPolicy(backoff=Backoff(first=timedelta(hours=1), most=timedelta(hours=1)))


class House:
    """A supervisor of plain Pykka actors, each known by a letter."""

    def __init__(self, names: str = "", policy: RestartPolicy = AT_ONCE, **options: Any) -> None:
        self.journal = Journal()
        self.root = Supervisor.start([self.spec(name) for name in names], policy=policy, **options)
        self.ending = Ending()
        watch(self.root, self.ending)
        self.call("wait_up")

    def spec(self, name: str, restart: Restart = Restart.PERMANENT, **options: Any) -> ChildSpec:
        return ChildSpec(name, lambda: ThreadChild(name=name, journal=self.journal), restart, **options)

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self.root.proxy(), method)(*args).get(timeout=LIMIT_S)

    def names(self) -> str:
        return "".join(info.name for info in self.call("children"))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    pykka.ActorRegistry.stop_all(timeout=LIMIT_S)
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), f"{thread} is left"


class SlowStart(ThreadChild):
    """Starts when it is let."""

    def __init__(self, gate: threading.Event, **options: Any) -> None:
        super().__init__(**options)
        self.gate = gate

    def on_start(self) -> None:
        assert self.gate.wait(LIMIT_S)
        super().on_start()


class Deaf(ThreadChild):
    """Is at work until it is let go, whoever wants it to stop."""

    def on_receive(self, message: Any) -> Any:
        assert message.wait(LIMIT_S)


# Dynamic children. --------------------------------------------------------------------------------------------


def test_children_are_added_looked_up_and_removed() -> None:
    house = House("a")
    ref = house.call("add", house.spec("b"))
    assert house.call("whereis", "b") is ref
    assert ref.ask("hello", timeout=LIMIT_S) == "hello"
    assert house.names() == "ab"
    house.call("remove", "a")
    assert house.names() == "b"
    assert house.call("whereis", "a") is None
    assert house.root.stop(timeout=LIMIT_S)
    assert house.journal.entries == ["+a", "+b", "-a", "-b"]


def test_an_added_child_is_supervised_as_any_other() -> None:
    house = House()
    house.call("add", house.spec("a")).tell(ValueError("fails"))
    house.journal.wait_starts("2", "a")


def test_a_name_is_given_once() -> None:
    house = House("a")
    with pytest.raises(InvalidRequest, match="'a'"):
        house.call("add", house.spec("a"))
    with pytest.raises(InvalidRequest, match="'x'"):
        Supervisor.start([house.spec("x"), house.spec("x")])


def test_what_is_not_there_cannot_be_removed() -> None:
    with pytest.raises(NotFound, match="'z'"):
        House().call("remove", "z")


@pytest.mark.parametrize("place", ["on_start", "init"])
def test_an_added_child_that_does_not_start_is_not_kept(place: str) -> None:
    house = House("a", RestartPolicy(intensity=0))

    def make() -> ThreadChild:
        if place == "init":
            raise ValueError("no such place")
        return ThreadChild(name="b", journal=house.journal, plans={"b": {"on_start": ValueError("no such place")}})

    with pytest.raises(ValueError, match="no such place"):
        house.call("add", ChildSpec("b", make))
    assert house.names() == "a"
    house.call("add", house.spec("c"))  # it counts as no failure of the others' supervisor


def test_a_temporary_child_that_has_ended_is_forgotten_and_its_name_is_free() -> None:
    house = House()
    for _ in range(3):
        ending = Ending()
        ref = house.call("add", house.spec("a", Restart.TEMPORARY))
        watch(ref, ending)
        ref.tell(ValueError("fails"))
        assert isinstance(ending.wait(), ValueError)
        assert house.names() == ""


def test_a_child_is_added_after_those_of_the_beginning() -> None:
    gate, journal = threading.Event(), Journal()
    root = Supervisor.start([ChildSpec("a", lambda: SlowStart(gate, name="a", journal=journal))])
    added = root.proxy().add(ChildSpec("b", lambda: ThreadChild(name="b", journal=journal)))
    infos = root.proxy().children().get(timeout=LIMIT_S)  # it answers meanwhile
    assert [info.name for info in infos] == ["a"]
    gate.set()
    added.get(timeout=LIMIT_S)
    assert journal.entries == ["+a", "+b"]


def test_a_request_that_waits_when_the_supervisor_ends_is_answered() -> None:
    gate, journal = threading.Event(), Journal()
    left_behind = ChildSpec("a", lambda: SlowStart(gate, name="a", journal=journal), shutdown=timedelta(0))
    root = Supervisor.start([left_behind])
    added = root.proxy().add(ChildSpec("b", lambda: ThreadChild(name="b", journal=journal)))
    root.stop(timeout=LIMIT_S)
    with pytest.raises(pykka.ActorDeadError):
        added.get(timeout=LIMIT_S)
    gate.set()


# What it tells. -----------------------------------------------------------------------------------------------


def test_children_tells_what_runs_since_when_how_often_again_and_why_last() -> None:
    began = datetime.now(UTC)
    house = House("ab")
    a, b = house.call("children")
    assert (a.name, a.running, a.restarts, a.last_failure) == ("a", True, 0, None)
    assert began <= a.since <= b.since <= datetime.now(UTC)
    error = ValueError("fails")
    house.call("whereis", "a").tell(error)
    house.journal.wait_starts("21", "ab")
    again, b_again = house.call("children")
    assert (again.running, again.restarts, again.last_failure) == (True, 1, error)
    assert again.since > a.since
    assert b_again == b


def test_a_child_that_waits_out_its_back_off_does_not_run_and_the_supervisor_answers() -> None:
    house = House("ab", NEVER)
    ending = Ending()
    ref = house.call("whereis", "a")
    watch(ref, ending)
    ref.tell(ValueError("fails"))
    ending.wait()
    a, b = house.call("children")
    assert (a.running, a.since, b.running) == (False, None, True)


# References. ----------------------------------------------------------------------------------------------------


def test_a_named_reference_survives_a_restart() -> None:
    house = House("a")
    a = NamedRef(house.root, "a")
    first = a.whereis()
    assert a.ask("hello", timeout=LIMIT_S) == "hello"
    assert a.proxy().name.get(timeout=LIMIT_S) == "a"
    a.tell(SystemExit(1))
    house.journal.wait_starts("2", "a")
    assert a.ask("hello again", timeout=LIMIT_S) == "hello again"
    assert a.whereis() is not first


@pytest.mark.parametrize("down", ["child", "supervisor"])
def test_a_named_reference_to_what_is_down_says_so(down: str) -> None:
    house = House("a", NEVER)
    a = NamedRef(house.root, "a")
    ending, ref = Ending(), a.whereis()
    assert ref is not None
    watch(ref, ending)
    if down == "child":
        a.tell(ValueError("fails"))
    else:
        house.root.stop(timeout=LIMIT_S)
    ending.wait()
    assert not a.is_alive()
    for call in (lambda: a.tell("x"), lambda: a.ask("x"), a.proxy):
        with pytest.raises(pykka.ActorDeadError, match="'a'"):
            call()


def test_a_named_reference_survives_the_restart_of_a_supervisor_between() -> None:
    house = House()
    inner = ChildSpec("inner", lambda: Supervisor([house.spec("a")], policy=RestartPolicy(intensity=0)), shutdown=None)
    house.call("add", inner)
    a = NamedRef(NamedRef(house.root, "inner"), "a")
    a.tell(ValueError("more than the inner one allows"))
    house.journal.wait_starts("2", "a")
    assert a.ask("hello", timeout=LIMIT_S) == "hello"
    assert isinstance(house.call("children")[0].last_failure, BudgetSpent)


# Death watch. -------------------------------------------------------------------------------------------------


def test_a_death_watch_tells_each_who_asked_also_afterwards() -> None:
    house = House("a", NEVER)
    ref = house.call("whereis", "a")
    actor = ref._actor_weakref()
    bad, before, after = Ending(), Ending(), Ending()

    def fails(failure: BaseException | None) -> None:
        bad(failure)
        raise OSError("a bad watcher")

    watch(ref, fails)
    watch(ref, before)
    error = ValueError("fails")
    ref.tell(error)
    assert bad.wait() is error
    assert before.wait() is error
    watch(ref, after)
    assert after.wait() is error
    del actor


def test_an_actor_that_nobody_supervises_cannot_be_watched() -> None:
    ref = ThreadChild.start(name="a", journal=Journal())
    with pytest.raises(InvalidRequest, match="not started by a supervisor"):
        watch(ref, Ending())


# The actors stay what they are. -------------------------------------------------------------------------------


def test_a_supervised_actor_keeps_its_class_and_its_kind_of_thread() -> None:
    class Background(ThreadChild):
        use_daemon_thread = True

    house = House("a")
    ref = house.call("add", ChildSpec("b", lambda: Background(name="b", journal=house.journal)))
    assert pykka.ActorRegistry.get_by_class(Background) == [ref]
    assert ref.actor_class is Background
    daemons = {thread.name.partition("-")[0]: thread.daemon for thread in threading.enumerate()}
    assert daemons["ThreadChild"] is False
    assert daemons["Background"] is True
    assert daemons["greenroom"] is False  # the supervisor's own, as Pykka's


def test_an_asker_gets_the_exception_and_the_actor_lives_on_as_in_pykka() -> None:
    house = House("a")
    ref = house.call("whereis", "a")
    with pytest.raises(ValueError, match="fails"):
        ref.ask(ValueError("fails"), timeout=LIMIT_S)
    assert ref.ask("hello", timeout=LIMIT_S) == "hello"


def test_what_waits_in_the_mailbox_of_an_actor_that_fails_is_answered() -> None:
    house = House("a")
    gate, journal = threading.Event(), Journal()
    ref = house.call("add", ChildSpec("deaf", lambda: Deaf(name="deaf", journal=journal)))
    ref.tell(gate)
    actor = ref._actor_weakref()
    waiting = ref.ask("never handled", block=False)
    kill(actor.thread_id)
    gate.set()
    with pytest.raises(pykka.ActorDeadError):
        waiting.get(timeout=LIMIT_S)


def test_nothing_refers_to_an_actor_that_has_ended() -> None:
    house = House("a")
    ending = Ending()
    ref = house.call("whereis", "a")
    watch(ref, ending)
    actor = weakref.ref(ref._actor_weakref())
    gc.collect()
    gc.disable()
    try:
        thread = next(each for each in threading.enumerate() if each.name.startswith("ThreadChild"))
        ref.stop(timeout=LIMIT_S)
        ending.wait()
        thread.join(LIMIT_S)
        del ref
        assert actor() is None
    finally:
        gc.enable()


# Starts that cannot be. ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ThreadChild.start(name="a", journal=Journal()), "do not start it"),
        (lambda: "no actor", "want a new actor"),
        (lambda ended=[]: ended[0] if ended else ended.append(ThreadChild(name="a", journal=Journal())), "want a new actor"),
    ],
)
def test_a_start_that_answers_no_new_actor_is_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        House().call("add", ChildSpec("a", make))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": ""}, "name"),
        ({"start": 3}, "start"),
        ({"restart": "permanent"}, "restart"),
        ({"shutdown": 5}, "shutdown"),
        ({"shutdown": timedelta(seconds=-1)}, "shutdown"),
        ({"significant": True}, "significant"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        ChildSpec(**{"name": "a", "start": ThreadChild, **options})


@pytest.mark.parametrize("options", [{"intensity": -1}, {"intensity": True}, {"period": timedelta(0)}, {"backoff": 3}])
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        RestartPolicy(**options)


# The end. -------------------------------------------------------------------------------------------------------


def test_a_child_that_does_not_stop_in_time_is_left_behind_and_ends_after_what_it_is_at() -> None:
    house = House("a")
    gate = threading.Event()
    deaf = ChildSpec("b", lambda: Deaf(name="b", journal=house.journal), shutdown=timedelta(milliseconds=20))
    ref = house.call("add", deaf)
    ending = Ending()
    watch(ref, ending)
    ref.tell(gate)
    later = ref.ask("never handled", block=False)
    assert house.root.stop(timeout=LIMIT_S)
    assert house.journal.entries == ["+a", "+b", "-a"]
    assert pykka.ActorRegistry.get_all() == []
    gate.set()
    assert ending.wait() is None
    with pytest.raises(pykka.ActorDeadError):
        later.get(timeout=LIMIT_S)


def test_a_child_with_no_deadline_is_waited_for() -> None:
    house = House()
    gate = threading.Event()
    ref = house.call("add", ChildSpec("b", lambda: Deaf(name="b", journal=house.journal), shutdown=None))
    ref.tell(gate)
    stopped = house.root.stop(block=False)
    assert house.names() == "b"  # it answers meanwhile
    gate.set()
    assert stopped.get(timeout=LIMIT_S)
    assert house.journal.entries == ["+b", "-b"]


def test_a_start_that_hangs_keeps_nobody_from_stopping() -> None:
    gate, journal = threading.Event(), Journal()
    specs = [
        ChildSpec("a", lambda: ThreadChild(name="a", journal=journal)),
        ChildSpec("b", lambda: SlowStart(gate, name="b", journal=journal), shutdown=timedelta(0)),
        ChildSpec("c", lambda: ThreadChild(name="c", journal=journal)),
    ]
    root = Supervisor.start(specs)
    journal.wait_starts("100")
    assert root.stop(timeout=LIMIT_S)
    assert journal.entries == ["+a", "-a"]
    gate.set()


@pytest.mark.parametrize("how", ["stops", "fails"])
def test_with_a_significant_child_all_end_normally(how: str) -> None:
    house = House("a")
    ref = house.call("add", house.spec("b", Restart.TEMPORARY, significant=True))
    if how == "stops":
        ref.stop(timeout=LIMIT_S)
    else:
        ref.tell(ValueError("fails"))
    assert house.ending.wait() is None
    assert house.journal.entries[-1] == "-a"
    assert pykka.ActorRegistry.get_all() == []


def test_a_significant_transient_child_that_fails_is_started_again() -> None:
    house = House("a")
    ref = house.call("add", house.spec("b", Restart.TRANSIENT, significant=True))
    ref.tell(ValueError("fails"))
    house.journal.wait_starts("12", "ab")
    assert house.root.is_alive()


def test_removing_a_significant_child_ends_nobody_else() -> None:
    house = House("a")
    house.call("add", house.spec("b", Restart.TRANSIENT, significant=True))
    house.call("remove", "b")
    assert house.names() == "a"


@pytest.mark.parametrize("strategy", Strategy)
def test_a_start_that_always_fails_spends_the_budget(strategy: Strategy) -> None:
    house = House("a")
    tries: list[int] = []

    def make() -> ThreadChild:
        tries.append(1)
        raise OSError("no such place")

    specs = [house.spec("x"), ChildSpec("b", make), house.spec("y")]
    inner = Supervisor.start(specs, strategy=strategy, policy=AT_ONCE)
    ending = Ending()
    watch(inner, ending)
    failure = ending.wait()
    assert isinstance(failure, BudgetSpent)
    assert isinstance(failure.__cause__, OSError)
    assert len(tries) == AT_ONCE.intensity + 1
    assert house.root.is_alive()


def test_a_supervisor_that_is_told_nonsense_stops_its_children_and_fails() -> None:
    house = House("ab")
    house.root.proxy().remove.defer()  # a call without its argument, and nobody who waits for the answer
    assert isinstance(house.ending.wait(), TypeError)
    assert house.journal.entries[-2:] == ["-b", "-a"]


def test_a_tree_lives_on_one_thread_and_ends_with_it() -> None:
    house = House()
    inner = ChildSpec("inner", lambda: Supervisor([house.spec("a")]), shutdown=None)
    house.call("add", inner)
    assert [thread.name for thread in threading.enumerate()].count("greenroom-supervisor") == 1
    house.root.stop(timeout=LIMIT_S)
    assert house.journal.entries == ["+a", "-a"]


def test_a_supervisor_that_is_left_behind_leaves_no_children() -> None:
    """A nested one with less time than its children need."""
    house = House()
    gate = threading.Event()
    deaf = ChildSpec("deaf", lambda: Deaf(name="deaf", journal=house.journal), shutdown=None)
    inner = ChildSpec("inner", lambda: Supervisor([house.spec("a"), deaf]), shutdown=timedelta(milliseconds=20))
    house.call("add", inner)
    NamedRef(NamedRef(house.root, "inner"), "deaf").tell(gate)
    assert house.root.stop(timeout=LIMIT_S)
    house.journal.wait_length(3)
    assert house.journal.entries == ["+a", "+deaf", "-a"]
    gate.set()  # the fixture sees that all threads end


def test_after_its_end_a_supervisor_turns_everyone_away() -> None:
    house = House("a")
    proxy = house.root.proxy()
    house.root.stop(timeout=LIMIT_S)
    house.ending.wait()
    with pytest.raises(pykka.ActorDeadError):
        proxy.children().get(timeout=LIMIT_S)
    assert house.root.stop(timeout=LIMIT_S) is False


# What users read. -----------------------------------------------------------------------------------------------


def run(program: str | Path) -> str:
    command = [sys.executable, *(["-c", program] if isinstance(program, str) else [str(program)])]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, env=env, check=True, capture_output=True, encoding="utf-8", timeout=60).stdout


def test_the_example_runs() -> None:
    lines = [line for line in run(ROOT / "examples" / "supervise_pykka.py").splitlines() if not line.startswith("event=")]
    assert lines[:3] == ["database: connected to db://local", "reports: ready", "today: rows of 'SELECT 1'"]
    assert "database: ended by ConnectionError('connection lost')" in lines
    assert lines[-4:] == [
        "database: running=True restarts=1 last_failure=ConnectionError('connection lost')",
        "reports: running=True restarts=1 last_failure=None",
        "reports: closed",
        "database: closed",
    ]


def test_the_page_about_supervision_shows_what_runs() -> None:
    page = (ROOT / "docs" / "supervision.md").read_text(encoding="utf-8")
    program = page.partition("```python\n")[2].partition("```")[0]
    assert "rows of 'SELECT 1'" in run(program)


def test_a_program_ends_when_its_supervisor_has() -> None:
    program = """
import pykka, threading
from greenroom import ChildSpec, Restart, Supervisor, watch
starts = []
class Work(pykka.ThreadingActor):
    def on_start(self):
        starts.append(1)
        print("start", len(starts), flush=True)
        if len(starts) == 1:
            raise ValueError("the first time")
        self.stop()
ended = threading.Event()
watch(Supervisor.start([ChildSpec("work", Work, Restart.TRANSIENT, significant=True)]), lambda failure: ended.set())
ended.wait()
"""
    output = run(program)
    assert [line for line in output.splitlines() if line.startswith("start")] == ["start 1", "start 2"]
