"""A signal in every gap between two of a worker's steps, and answers that are lost there.

In each gap the worker is held while the signal is applied; then it goes on. What comes of the two messages that wait in the
room is what a table says: the runs of their handler, and what the room sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py

from greenroom import ActorSystem, Backoff, Client, Kind, Mode, Outcome, RedisUnavailable
from integration.agents import Director, StoreGate, StoreHold, blocked, cut_off, eventually, wait_event, wait_heard, wait_output
from integration.conftest import Running

SHORT = timedelta(milliseconds=50)


@dataclass
class Stage:
    """A worker whose store has a gate, and a room of it."""

    system: ActorSystem
    gate: StoreGate
    director: Director
    client: Client
    redis: redis_py.Redis
    agent: str

    def until_held(self, hold: StoreHold, *, finish: bool = True) -> StoreHold:
        """Send the two messages, and let the first one's handler go on until the worker is held."""
        self.client.send("1", "wait")
        self.client.send("1", "next")
        run = self.director.run("1")
        run.finish("done") if finish else run.fail()
        hold.wait()
        return hold

    def arrive(self, hold: StoreHold) -> None:
        """Let a grant arrive that the signal has overtaken: before it, it would start a handler, to be cancelled at once."""
        wait_heard(self.system)
        hold.release()

    def runs(self) -> list[tuple[str, int]]:
        return [(run.message.body, run.attempt) for run in self.director.runs if run.room == "1"]

    def outcomes(self) -> list[tuple[str, str]]:
        """What the room sent, in short: its kind, and the reply or the signal."""
        return [(output.kind.value, output.mode or output.body or "") for output in self.client.outputs("1")]

    def wait_for_next(self) -> None:
        wait_output(self.client, "1", lambda output: output.kind is Kind.REPLY and output.body == "next")


@pytest.fixture
def stage(running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str) -> Stage:
    system = running(director.agent(abort_timeout=SHORT, max_attempts=10))
    return Stage(system, StoreGate.of(system), director, client, redis, agent)


# The gaps: each yields with the worker held there, and lets it go on at the end. ------------------------------


@contextmanager
def claim_not_sent(stage: Stage) -> Iterator[None]:
    hold = stage.gate.before("claim")
    stage.client.send("1", "wait")
    stage.client.send("1", "next")
    hold.wait()
    yield
    hold.release()


@contextmanager
def grant_on_its_way(stage: Stage) -> Iterator[None]:
    hold = stage.gate.after("claim")
    stage.client.send("1", "wait")
    stage.client.send("1", "next")
    hold.wait()
    yield
    stage.arrive(hold)


@contextmanager
def start_on_its_way(stage: Stage) -> Iterator[None]:
    """Granted and handed to the user loop, which is busy until the worker has acted on the signal."""
    with blocked(stage.system._user):
        stage.client.send("1", "wait")
        stage.client.send("1", "next")
        eventually(lambda: stage.client.status("1").ticket, "the first message is granted")
        yield
        eventually(lambda: not stage.client.status("1").abort, "an aborted cycle is settled")


@contextmanager
def all_at_once(stage: Stage) -> Iterator[None]:
    """The worker sees the work and the signal at the same moment."""
    with blocked(stage.system._control):
        stage.client.send("1", "wait")
        stage.client.send("1", "next")
        yield


@contextmanager
def commit_not_sent(stage: Stage) -> Iterator[None]:
    hold = stage.until_held(stage.gate.before("commit"))
    yield
    hold.release()


@contextmanager
def commit_answer_on_its_way(stage: Stage) -> Iterator[None]:
    """The first message is committed, the second granted with it."""
    hold = stage.until_held(stage.gate.after("commit"))
    yield
    stage.arrive(hold)


@contextmanager
def failure_not_recorded(stage: Stage) -> Iterator[None]:
    hold = stage.until_held(stage.gate.before("settle"), finish=False)
    yield
    hold.release()


@contextmanager
def failure_recorded(stage: Stage) -> Iterator[None]:
    """The room is about to crash, and its supervisor to start it again."""
    hold = stage.until_held(stage.gate.after("settle"), finish=False)
    yield
    hold.release()


@contextmanager
def restarted_claim_not_sent(stage: Stage) -> Iterator[None]:
    stage.client.send("1", "wait")
    stage.client.send("1", "next")
    run = stage.director.run("1")
    hold = stage.gate.before("claim")
    run.fail()
    hold.wait()
    yield
    hold.release()


@contextmanager
def restarted_grant_on_its_way(stage: Stage) -> Iterator[None]:
    stage.client.send("1", "wait")
    stage.client.send("1", "next")
    run = stage.director.run("1")
    hold = stage.gate.after("claim")
    run.fail()
    hold.wait()
    yield
    stage.arrive(hold)


FIRST, AGAIN, NEXT = ("wait", 1), ("wait", 2), ("next", 1)
DONE, REPLY, FAILED = ("reply", "done"), ("reply", "next"), ("failed", "")
STOPPED, INTERRUPTED = ("aborted", "stop"), ("aborted", "interrupt")


@dataclass(frozen=True)
class Gap:
    """``outcome``, ``runs`` and ``sent``: what an interrupt answers, which runs there are in the end and what is sent.
    ``stop_runs``, ``stop_sent``: until the room is held by a stop; then ``play_runs`` and ``play_sent`` more.
    """

    enter: Callable[[Stage], Any]
    outcome: Outcome
    runs: list[tuple[str, int]]
    sent: list[tuple[str, str]]
    stop_runs: list[tuple[str, int]]
    stop_sent: list[tuple[str, str]]
    play_runs: list[tuple[str, int]]
    play_sent: list[tuple[str, str]]


APPLIED, IDLE = Outcome.APPLIED, Outcome.IDLE
ROW_7 = [
    Gap(claim_not_sent, IDLE, [FIRST, NEXT], [DONE, REPLY], [], [], [FIRST, NEXT], [DONE, REPLY]),
    Gap(grant_on_its_way, APPLIED, [NEXT], [INTERRUPTED, REPLY], [], [STOPPED], [FIRST, NEXT], [DONE, REPLY]),
    Gap(start_on_its_way, APPLIED, [NEXT], [INTERRUPTED, REPLY], [], [STOPPED], [FIRST, NEXT], [DONE, REPLY]),
    Gap(all_at_once, IDLE, [FIRST, NEXT], [DONE, REPLY], [], [], [FIRST, NEXT], [DONE, REPLY]),
    Gap(commit_not_sent, APPLIED, [FIRST, NEXT], [INTERRUPTED, REPLY], [FIRST], [STOPPED], [FIRST, NEXT], [DONE, REPLY]),
    Gap(commit_answer_on_its_way, APPLIED, [FIRST], [DONE, INTERRUPTED], [FIRST], [DONE, STOPPED], [NEXT], [REPLY]),
    Gap(failure_not_recorded, APPLIED, [FIRST, NEXT], [INTERRUPTED, REPLY], [FIRST], [STOPPED], [FIRST, NEXT], [DONE, REPLY]),
    Gap(
        failure_recorded, APPLIED, [FIRST, NEXT], [FAILED, INTERRUPTED, REPLY], [FIRST], [FAILED], [AGAIN, NEXT], [DONE, REPLY]
    ),
    Gap(
        restarted_claim_not_sent,
        APPLIED,
        [FIRST, NEXT],
        [FAILED, INTERRUPTED, REPLY],
        [FIRST],
        [FAILED],
        [AGAIN, NEXT],
        [DONE, REPLY],
    ),
    Gap(
        restarted_grant_on_its_way,
        APPLIED,
        [FIRST, NEXT],
        [FAILED, INTERRUPTED, REPLY],
        [FIRST],
        [FAILED, STOPPED],
        [AGAIN, NEXT],
        [DONE, REPLY],
    ),
]
GAPS = pytest.mark.parametrize("gap", ROW_7, ids=lambda gap: gap.enter.__name__)


def finish_whatever_runs(stage: Stage, expected: list[tuple[str, int]]) -> None:
    """Let the steered runs that the table expects reply."""
    for _ in [run for run in expected if run[0] == "wait"]:
        stage.director.run("1").finish("done")


def steered_before(gap: Gap) -> list[tuple[str, int]]:
    """The steered runs that had ended when the signal came."""
    return [] if gap.enter in (claim_not_sent, grant_on_its_way, start_on_its_way, all_at_once) else [FIRST]


@GAPS
def test_an_interrupt_in_every_gap_acts_on_the_message_in_processing_only(gap: Gap, stage: Stage) -> None:
    """rows 7 and 1"""
    with gap.enter(stage):
        [receipt] = stage.client.interrupt("1")
    assert receipt.outcome is gap.outcome
    finish_whatever_runs(stage, gap.runs[len(steered_before(gap)) :])
    assert stage.client.ask("1", "last") == "last"
    assert stage.runs() == [*gap.runs, ("last", 1)]
    assert stage.outcomes() == [*gap.sent, ("reply", "last")]


@GAPS
def test_a_stop_in_every_gap_starts_nothing_more_until_play_and_charges_no_attempt(gap: Gap, stage: Stage) -> None:
    """rows 7 and 2"""
    with gap.enter(stage):
        [receipt] = stage.client.stop("1")
    assert receipt.outcome is Outcome.APPLIED
    eventually(lambda: stage.client.status("1").phase == "held", "the room is held")
    assert stage.client.ask("passer-by", "hello") == "hello"
    assert stage.runs() == gap.stop_runs
    assert stage.outcomes() == gap.stop_sent

    stage.client.play("1")
    finish_whatever_runs(stage, gap.play_runs)
    stage.wait_for_next()
    assert stage.runs() == [*gap.stop_runs, *gap.play_runs]
    assert stage.outcomes() == [*gap.stop_sent, *gap.play_sent]


@GAPS
def test_a_stop_and_a_play_at_once_in_every_gap_still_end_the_cycle_that_was_live(gap: Gap, stage: Stage) -> None:
    """rows 7 and 9: the messages run in their order, and as often as with a play later"""
    with gap.enter(stage):
        stage.client.stop("1")
        stage.client.play("1")
    finish_whatever_runs(stage, gap.play_runs)
    stage.wait_for_next()
    assert stage.runs() == [*gap.stop_runs, *gap.play_runs]
    assert stage.outcomes() == [*gap.stop_sent, *gap.play_sent]


@GAPS
def test_a_pause_in_every_gap_lets_a_live_cycle_commit_and_grants_none_after_it(gap: Gap, stage: Stage) -> None:
    """rows 7 and 4"""
    with gap.enter(stage):
        stage.client.pause("1")
        live = stage.client.status("1").ticket is not None
    commits = gap.enter in (grant_on_its_way, start_on_its_way, restarted_grant_on_its_way)
    if commits:
        stage.director.run("1").finish("done")
    eventually(lambda: stage.client.status("1").phase in ("held", None), "the room is held, or its queue is empty")
    if live:
        eventually(lambda: stage.client.status("1").ticket is None, "the live cycle has ended")
    assert stage.client.ask("passer-by", "hello") == "hello"
    assert not [output for output in stage.outcomes() if output[0] == "aborted"]
    done = DONE in stage.outcomes()
    stage.client.play("1")
    if not done:
        stage.director.run("1").finish("done")
    assert stage.client.ask("1", "last") == "last"
    assert [body for kind, body in stage.outcomes() if kind == "reply"] == ["done", "next", "last"]


@pytest.mark.parametrize("verb", [Mode.INTERRUPT, Mode.STOP])
def test_a_grant_that_is_asked_for_again_after_the_signal_says_so_and_starts_nothing(verb: Mode, stage: Stage) -> None:
    """row 7: the connection is lost with the grant, and the worker has not heard of the signal"""
    cut_off(stage.system)
    hold = stage.gate.after("claim")
    stage.client.send("1", "wait")
    stage.client.send("1", "next")
    hold.wait()
    getattr(stage.client, verb)("1")
    hold.release(again=True)
    wait_output(stage.client, "1", lambda output: output.kind is Kind.ABORTED and output.mode == verb)
    if verb is Mode.STOP:
        assert stage.runs() == []
        stage.client.play("1")
        stage.director.run("1").finish("done")
    stage.wait_for_next()
    assert stage.runs() == ([NEXT] if verb is Mode.INTERRUPT else [FIRST, NEXT])


@pytest.mark.parametrize("verb", [Mode.INTERRUPT, Mode.STOP])
def test_a_function_whose_start_is_on_its_way_is_not_started_in_its_thread(
    verb: Mode, running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 7: what hands cycles to threads is busy until the worker has acted on the signal"""
    system = running(director.agent(threaded=True, abort_timeout=SHORT))
    with blocked(system._user):
        client.send("1", "wait")
        eventually(lambda: client.status("1").ticket, "the message is granted")
        getattr(client, verb)("1")
        wait_event(redis, agent, "cycle.interrupted" if verb is Mode.INTERRUPT else "cycle.stopped", room="1")
    assert client.ask("passer-by", "hello") == "hello"
    assert director.count("1") == 0


# Back-off. -----------------------------------------------------------------------------------------------


def in_back_off(running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str) -> int:
    """A room whose first message waits for an hour, with a second one behind it."""
    hour = timedelta(hours=1)
    running(director.agent(retry=Backoff(first=hour, most=hour)))
    first = client.send("1", "fail")
    client.send("1", "next")
    wait_event(redis, agent, "cycle.failed", room="1")
    return first


def test_an_interrupt_in_back_off_consumes_the_message_and_the_next_one_runs_at_once(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 7"""
    first = in_back_off(running, director, client, redis, agent)
    [receipt] = client.interrupt("1")
    assert (receipt.outcome, receipt.message) == (Outcome.APPLIED, first)
    wait_output(client, "1", lambda output: output.body == "next")
    assert director.bodies("1") == ["fail", "next"]


def test_a_stop_in_back_off_holds_the_room_and_play_does_not_cut_the_back_off_short(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 7"""
    in_back_off(running, director, client, redis, agent)
    assert client.stop("1")[0].outcome is Outcome.APPLIED
    status = client.status("1")
    assert (status.phase, status.waiting, status.attempt, status.owner) == ("held", 2, 1, None)
    assert client.interrupt("1")[0].outcome is Outcome.HELD
    client.play("1")
    assert client.ask("passer-by", "hello") == "hello"
    status = client.status("1")
    assert (status.phase, status.waiting, status.attempt) == ("backoff", 2, 1)
    client.interrupt("1")
    wait_output(client, "1", lambda output: output.body == "next")


@pytest.mark.parametrize("verb", [Mode.INTERRUPT, Mode.STOP])
def test_a_signal_that_overtakes_the_answer_to_wait_out_the_back_off_is_not_slept_through(
    verb: Mode, running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 7: the restarted room's claim was answered before the signal, and the answer arrives after it"""
    hour = timedelta(hours=1)
    system = running(director.agent(retry=Backoff(first=hour, most=hour)))
    client.send("1", "wait")
    client.send("1", "next")
    run = director.run("1")
    hold = StoreGate.of(system).after("claim")
    run.fail()
    hold.wait()
    getattr(client, verb)("1")
    if verb is Mode.STOP:
        client.play("1")
        client.interrupt("1")
    wait_heard(system)
    hold.release()
    wait_output(client, "1", lambda output: output.body == "next")


# Lost answers. -------------------------------------------------------------------------------------------

LOST = RedisUnavailable("lost by the test")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupted_message_stays_consumed_when_its_acknowledgement_or_the_answer_is_lost(
    when: str, times: int, stage: Stage
) -> None:
    """row 12: the settlement, or (the worker's second try) the claim"""
    stage.client.send("1", "wait")
    stage.client.send("1", "next")
    run = stage.director.run("1")
    holds = [getattr(stage.gate, when)(method) for method in ["settle", *["claim"] * (times - 1)]]
    stage.client.interrupt("1")
    run.wait_cancelled()
    for hold in holds:
        hold.wait()
        hold.release(LOST)
    wait_output(stage.client, "1", lambda output: output.body == "next")
    assert stage.client.ask("1", "last") == "last"
    assert [body for body, _ in stage.runs()].count("wait") == 1
    assert stage.outcomes()[0] == INTERRUPTED
    assert stage.outcomes().count(INTERRUPTED) == 1


@pytest.mark.parametrize("method", ["settle", "commit"])
def test_an_acknowledgement_that_reaches_redis_twice_is_one(method: str, stage: Stage) -> None:
    """row 12: also when the next message runs already, which it must not touch"""
    stage.client.send("1", "wait")
    second = stage.client.send("1", "wait again")
    run = stage.director.run("1")
    hold = stage.gate.after(method)
    if method == "settle":
        stage.client.interrupt("1")
    else:
        run.finish("done")
    hold.wait()

    async def send_again() -> None:
        await getattr(stage.system._store, method)(*hold.call[0], **hold.call[1])

    stage.system._control.run(send_again).result(30)
    hold.release()
    live = stage.director.run("1")
    assert (live.message.id, live.attempt) == (second, 1)
    for _ in range(3):
        stage.system._control.run(send_again).result(30)
    live.send("unharmed")
    live.finish("next")
    stage.wait_for_next()
    first = INTERRUPTED if method == "settle" else DONE
    assert stage.outcomes() == [first, ("chunk", "unharmed"), REPLY]
    assert [body for body, _ in stage.runs()] == ["wait", "wait again"]


def kill_connections(redis: redis_py.Redis) -> None:
    """Kill all connections to the server but this client's own."""
    redis.client_kill_filter(_type="normal", skipme=True)


def test_connections_that_are_killed_while_messages_are_interrupted_bring_none_of_them_back(stage: Stage) -> None:
    """row 12: wherever in the abort and its settlement the kill comes"""
    for n in range(20):
        stage.client.send("1", f"wait {n}")
        stage.director.run("1")
        with ExitStack() as stack:
            if n % 2:
                stack.callback(kill_connections, stage.redis)
            stage.client.interrupt("1")
            if not n % 2:
                kill_connections(stage.redis)
    assert stage.client.ask("1", "last") == "last"
    assert stage.runs() == [*((f"wait {n}", 1) for n in range(20)), ("last", 1)]
    assert stage.outcomes() == [*[INTERRUPTED] * 20, ("reply", "last")]
