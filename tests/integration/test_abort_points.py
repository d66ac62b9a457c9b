"""An interrupt and a stop at every point of a representative agent's cycle, on every runner.

Where the code runs in child processes each abort costs one, so there each point meets one of the two.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from greenroom import Agent, Client, Kind, Outcome
from integration.abort_account import Account
from integration.abort_agents import (
    AsyncGeneratorAgent,
    CoroutineAgent,
    FunctionAgent,
    GeneratorAgent,
    IsolatedCoroutine,
    IsolatedFunction,
    UninterruptibleCoroutine,
    UninterruptibleFunction,
)
from integration.abort_signals import close_clients, watch_awaits
from integration.abort_trials import Trial, Wire, run_trials
from integration.agents import cut_off, events
from integration.conftest import Running
from integration.isolated_agents import wait_gone

MODES = ("interrupt", "stop")
DRY_RUNS = 3
ISOLATED_AT_ONCE = 8  # rooms that are aborted at the same time, where each abort costs a process
BEYOND = 2  # points tried beyond those counted: a cycle may have a few more the next time


@dataclass
class Runner:
    """One way to run code, and what its points are beside the Redis commands."""

    agent_class: type[Agent]
    points: str

    @property
    def isolated(self) -> bool:
        return self.agent_class.isolation == "process"


RUNNERS = {
    "coroutine": Runner(CoroutineAgent, "await"),
    "async generator": Runner(AsyncGeneratorAgent, "await"),
    "function": Runner(FunctionAgent, "call"),
    "generator": Runner(GeneratorAgent, "call"),
}
ISOLATED = {
    "function": Runner(IsolatedFunction, "call"),
    "coroutine": Runner(IsolatedCoroutine, "await"),
}
UNINTERRUPTIBLE = {
    "coroutine": Runner(UninterruptibleCoroutine, "await"),
    "function": Runner(UninterruptibleFunction, "call"),
}


@dataclass
class Bench:
    """One system, and the trials on it."""

    client: Client
    wire: Wire
    body: dict[str, Any]
    at_once: int  # rooms
    trials: list[Trial] = field(default_factory=list)

    def run(self, bodies: list[dict[str, Any]]) -> list[Account]:
        trials = [Trial(f"room-{len(self.trials) + n}", {**self.body, **body}) for n, body in enumerate(bodies)]
        self.trials += trials
        for first in range(0, len(trials), self.at_once):
            run_trials(self.client, self.wire, trials[first : first + self.at_once])
        return [Account(trial) for trial in trials]

    def count(self, kind: str) -> int:
        """How many points a cycle has that nobody aborts."""
        accounts = self.run([{"kind": kind, "at": 0, "mode": "none"}] * DRY_RUNS)
        check(accounts)
        return max(len(account.trial.lines("point")) for account in accounts)

    def everywhere(self, kind: str) -> list[Account]:
        """Each signal at each point of that kind."""
        points = self.count(kind)
        return self._abort(kind, [(at, mode) for mode in MODES for at in range(1, points + BEYOND + 1)], 2 * points)

    def in_turn(self, kind: str) -> list[Account]:
        """One signal or the other at each point of that kind: points come in pairs, and each of the two gets both."""
        points = self.count(kind)
        return self._abort(kind, [(at, MODES[at // 2 % 2]) for at in range(1, points + BEYOND + 1)], points)

    def _abort(self, kind: str, places: list[tuple[int, str]], expected: int) -> list[Account]:
        accounts = self.run([{"kind": kind, "at": at, "mode": mode} for at, mode in places])
        check(accounts)
        reached = sum(bool(account.trial.signals) for account in accounts)
        assert reached >= expected * 0.8, f"{kind}: {reached} of {expected} points were reached"
        return accounts


def check(accounts: list[Account]) -> None:
    problems = [f"{account.trial}: {problem}" for account in accounts for problem in account.problems()]
    assert not problems, "\n".join([f"{len(problems)} problems", *problems[:20]])


def outcomes(accounts: list[Account]) -> Counter[str]:
    return Counter(signal["outcome"] for account in accounts for signal in account.trial.signals)


def journals(accounts: list[Account]) -> Iterator[dict[str, Any]]:
    for account in accounts:
        yield from account.trial.journal


def ended_by_abort(account: Account) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each run whose code was ended by its abort, with its hook. Code may also have returned before, or not have begun."""
    aborted = [output.ticket for output in account.outputs if output.kind is Kind.ABORTED]
    raised = {line["ticket"]: line for line in account.trial.lines("raised")}
    for ticket, hook in zip(aborted, account.trial.lines("hook"), strict=True):
        if ticket in raised:
            yield raised[ticket], hook


def check_quiet(accounts: list[Account], redis: redis_py.Redis, agent: str) -> None:
    """Nothing failed or was given back, and nothing that was deferred was forgotten."""
    forgotten = [signal for account in accounts for signal in account.lapsed]
    assert forgotten == [], "what is deferred acts when the shield goes down"
    for kind in ("cycle.failed", "cycle.crashed", "cycle.released", "interrupt.lapsed", "message.dead"):
        assert events(redis, agent, kind) == []


@pytest.fixture
def bench_of(running: Running, client: Client, redis_url: str, agent: str, tmp_path: Path) -> Iterator[Any]:
    def start(runner: Runner, *, hears: bool = True) -> Bench:
        system = running(runner.agent_class)
        if runner.points == "await" and not runner.isolated:
            watch_awaits(system._user.loop)
        if not hears:
            cut_off(system)
        body = {"agent": agent, "redis": redis_url, "journal": str(tmp_path)}
        return Bench(client, Wire(system), body, ISOLATED_AT_ONCE if runner.isolated else sys.maxsize)

    yield start
    close_clients()


@pytest.mark.parametrize("hears", [True, False], ids=["told", "not told"])
@pytest.mark.parametrize("name", RUNNERS)
def test_an_abort_at_every_point_of_the_code_and_at_every_redis_command_is_what_its_receipt_says(
    name: str, hears: bool, bench_of: Any, redis: redis_py.Redis, agent: str
) -> None:
    """rows 1, 2, 6, 7, 22, 24 and 25; also when nothing but Redis tells the worker of the signal"""
    bench = bench_of(RUNNERS[name], hears=hears)
    accounts = bench.everywhere(RUNNERS[name].points) + bench.everywhere("command")
    assert set(outcomes(accounts)) == {Outcome.APPLIED, Outcome.DEFERRED, Outcome.IDLE}
    check_quiet(accounts, redis, agent)


@pytest.mark.parametrize(("name", "kind"), [("function", "call"), ("function", "command"), ("coroutine", "await")])
def test_an_abort_at_every_point_of_a_cycle_in_a_child_process_is_what_its_receipt_says_and_ends_the_child(
    name: str, kind: str, bench_of: Any, redis: redis_py.Redis, agent: str
) -> None:
    """the same rows; what is told to end does so before it would be killed, and its child is dead before the hook is called"""
    accounts = bench_of(ISOLATED[name]).in_turn(kind)
    assert {Outcome.APPLIED, Outcome.DEFERRED} <= set(outcomes(accounts))
    check_quiet(accounts, redis, agent)
    hooks = [hook for account in accounts for hook in account.trial.lines("hook")]
    assert {hook["code"] for hook in hooks} <= {"cancelled", "not started"}
    last_heard = {line["pid"]: line["ns"] for line in sorted(journals(accounts), key=itemgetter("ns"))}
    ended = [(line["pid"], hook["ns"]) for account in accounts for line, hook in ended_by_abort(account)]
    assert len(ended) >= len(hooks) / 2
    assert [pid for pid, ns in ended if last_heard[pid] > ns] == []
    wait_gone(*(pid for pid, _ in ended))


@pytest.mark.parametrize("name", UNINTERRUPTIBLE)
def test_an_abort_at_every_point_of_an_agent_that_is_not_interruptible_waits_for_the_commit(
    name: str, bench_of: Any, redis: redis_py.Redis, agent: str
) -> None:
    """row 21: also at the end of a shielded block inside it"""
    bench = bench_of(UNINTERRUPTIBLE[name])
    accounts = bench.everywhere(UNINTERRUPTIBLE[name].points) + bench.everywhere("command")
    assert [account.consumed for account in accounts if account.consumed] == []
    assert [line for account in accounts for line in account.trial.lines("raised")] == []
    lapsed = [signal for account in accounts for signal in account.lapsed if signal["mode"] == "interrupt"]
    assert lapsed
    assert len(events(redis, agent, "interrupt.lapsed")) == len(lapsed)


DONE = 6  # the answer to the script that records the first step
WINDING_UP = range(1, 5)  # before and after the script that says how the cycle was aborted, and the one that settles it
SECOND = {
    ("interrupt", "interrupt"): ["already", "already", "already", "applied"],  # the last one is the next message's
    ("interrupt", "stop"): ["applied", "applied", "applied", "applied"],
    ("stop", "interrupt"): ["held", "held", "held", "held"],
    ("stop", "stop"): ["already", "already", "already", "already"],
}


@pytest.mark.parametrize("name", RUNNERS)
def test_a_second_signal_at_every_redis_command_that_winds_up_an_aborted_cycle_changes_only_what_it_says(
    name: str, bench_of: Any
) -> None:
    """rows 7 and 9: the first abort wins"""
    bench = bench_of(RUNNERS[name])
    for (first, second), wanted in SECOND.items():
        bodies = [{"kind": "command", "at": DONE, "mode": first, "then": {"mode": second, "at": at}} for at in WINDING_UP]
        accounts = bench.run(bodies)
        check(accounts)
        found = [[signal["outcome"] for signal in account.trial.signals] for account in accounts]
        assert found == [["applied", outcome] for outcome in wanted]
