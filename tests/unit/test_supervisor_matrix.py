"""Restart type, way to end, strategy and kind of actor: who is started again, for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pykka
import pytest

from greenroom import Backoff, ChildSpec, Restart, RestartPolicy, Strategy, Supervisor, watch
from greenroom.actors.loop import LoopThread
from supervised import LIMIT_S, Behaviour, Ending, Journal, KilledError, LoopChild, Plans, ThreadChild, kill

# Children a, b, c are started in this order, and b ends as said; a and c are permanent. A cell says how often a, b and c have
# been started in the end. Where b fails in its first on_start, c has not been started yet, so it is started once.
TABLE = """
b          ends by                      one_for_one  rest_for_one  one_for_all
permanent  stop                         121          122           222
permanent  exception_in_handler         121          122           222
permanent  exception_in_on_start        121          121           221
permanent  exception_in_on_stop         121          122           222
permanent  base_exception_in_handler    121          122           222
permanent  base_exception_in_on_start   121          121           221
permanent  base_exception_in_on_stop    121          122           222
permanent  base_exception_when_asked    121          122           222
permanent  thread_killed_at_work        121          122           222
permanent  thread_killed_idle           121          122           222
transient  stop                         111          111           111
transient  exception_in_handler         121          122           222
transient  exception_in_on_start        121          121           221
transient  exception_in_on_stop         121          122           222
transient  base_exception_in_handler    121          122           222
transient  base_exception_in_on_start   121          121           221
transient  base_exception_in_on_stop    121          122           222
transient  base_exception_when_asked    121          122           222
transient  thread_killed_at_work        121          122           222
transient  thread_killed_idle           121          122           222
temporary  stop                         111          111           111
temporary  exception_in_handler         111          111           111
temporary  exception_in_on_start        111          111           111
temporary  exception_in_on_stop         111          111           111
temporary  base_exception_in_handler    111          111           111
temporary  base_exception_in_on_start   111          111           111
temporary  base_exception_in_on_stop    111          111           111
temporary  base_exception_when_asked    111          111           111
temporary  thread_killed_at_work        111          111           111
temporary  thread_killed_idle           111          111           111
"""

ERROR, EXIT = ValueError("b fails"), SystemExit(1)

# What b raises by itself, and where.
PLANS: Plans = {
    "exception_in_on_start": {"on_start": ERROR},
    "exception_in_on_stop": {"on_stop": ERROR},
    "base_exception_in_on_start": {"on_start": EXIT},
    "base_exception_in_on_stop": {"on_stop": EXIT},
}
THREADS_ONLY = ("base_exception_when_asked", "thread_killed_at_work", "thread_killed_idle")
AT_ONCE = RestartPolicy(intensity=3, backoff=Backoff(first=timedelta(0), most=timedelta(0)))


def failure_of(way: str) -> type[BaseException] | None:
    """What the supervisor is to see of it."""
    if way == "stop":
        return None
    if way.startswith("thread_killed"):
        return KilledError
    return SystemExit if way.startswith("base") else ValueError


def cells() -> Iterator[Any]:
    head, *rows = TABLE.strip().splitlines()
    strategies = head.split()[3:]
    for row in rows:
        restart, way, *expected = row.split()
        for strategy, starts in zip(strategies, expected, strict=True):
            for kind in (ThreadChild, LoopChild):
                if kind is ThreadChild or way not in THREADS_ONLY:
                    name = f"{restart}-{way}-{strategy}-{kind.__name__}"
                    yield pytest.param(Restart(restart), way, Strategy(strategy), kind, starts, id=name)


def end(ref: pykka.ActorRef[Any], way: str) -> None:
    """Have a running actor end in a way that is not its own plan."""
    if way.endswith(("stop", "on_stop")):
        ref.stop(block=False)
    elif way == "exception_in_handler":
        ref.tell(ERROR)
    elif way == "base_exception_in_handler":
        ref.tell(EXIT)
    elif way == "base_exception_when_asked":
        with pytest.raises(pykka.ActorDeadError, match="SystemExit"):
            ref.ask(EXIT, timeout=LIMIT_S)
    else:
        actor = ref._actor_weakref()
        assert isinstance(actor, Behaviour)
        if way == "thread_killed_at_work":
            ref.tell("busy")
            assert actor.busy.wait(LIMIT_S)
        kill(actor.thread_id)
        if way == "thread_killed_idle":
            ref.tell("wake up")


def maker(kind: type[Behaviour], name: str, loop: LoopThread, journal: Journal, plans: Plans) -> Callable[[], Any]:
    args = (loop,) if kind is LoopChild else ()
    return lambda: kind(*args, name=name, journal=journal, plans=plans)


@pytest.mark.parametrize(("restart", "way", "strategy", "kind", "expected"), list(cells()))
def test_who_is_started_again(
    loop: LoopThread, restart: Restart, way: str, strategy: Strategy, kind: type[Behaviour], expected: str
) -> None:
    """row 43"""
    journal, plans = Journal(), {"b": PLANS[way]} if way in PLANS else {}
    bystander = ThreadChild.start(name="bystander", journal=Journal())
    restarts = {"b": restart}
    specs = [ChildSpec(name, maker(kind, name, loop, journal, plans), restarts.get(name, Restart.PERMANENT)) for name in "abc"]
    root = Supervisor.start(specs, strategy=strategy, policy=AT_ONCE)
    supervisor = root.proxy()
    if not way.endswith("on_start"):
        journal.wait_starts("111")
        b = supervisor.whereis("b").get(timeout=LIMIT_S)
        ending = Ending()
        watch(b, ending)
        end(b, way)
        assert type(ending.wait()) is (failure_of(way) or type(None))
    journal.wait_starts(expected)
    check_children(supervisor, restart, way, runs=expected[1] == "2")
    assert root.stop(timeout=LIMIT_S)
    assert journal.starts() == expected
    running = ["-c", "-b", "-a"] if expected[1] == "2" else ["-c", "-a"]
    assert journal.entries[-len(running) :] == running
    assert pykka.ActorRegistry.get_all() == [bystander]  # a BaseException of one actor ends no other
    bystander.stop(timeout=LIMIT_S)


def check_children(supervisor: Any, restart: Restart, way: str, *, runs: bool) -> None:
    infos = {info.name: info for info in supervisor.children().get(timeout=LIMIT_S)}
    if not runs and restart is Restart.TEMPORARY:
        assert "b" not in infos
        return
    assert infos["b"].running is runs
    assert infos["b"].restarts == int(runs)
    assert type(infos["b"].last_failure) is (failure_of(way) or type(None))
    assert (infos["b"].since is not None) is runs
