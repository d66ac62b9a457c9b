"""What a step's name, key and function may be, what it may cost others, and when no step begins (row 25)."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import redis as redis_py

from greenroom import Client, Cycle, CycleEnded, InvalidRequest, Kind, ThreadCycle
from greenroom.protocol.keys import Keys
from integration.agents import WAIT_S, Director, cut_off, eventually, settled, wait_for, wait_output
from integration.conftest import Running
from integration.replays import BOTH, Calls, Hanging, Stage, step


@BOTH
def test_a_key_is_the_same_over_replays_and_different_for_each_step_and_message(threaded: bool, stage: Stage) -> None:
    calls = Calls()

    def fails(*, idempotency_key: str) -> None:
        calls.made.append(idempotency_key)
        raise RuntimeError("not yet")

    run = stage.send()
    with pytest.raises(RuntimeError, match="not yet"):
        step(run, "charge", fails)
    again = stage.replay(run, "stop")
    with pytest.raises(RuntimeError, match="not yet"):
        step(again, "charge", fails)
    step(again, "other", calls.keyed, 1)
    again.finish()
    step(stage.send(), "charge", calls.keyed, 1)
    first, second, other, next_message = calls.made
    assert first == second
    assert len({first, other, next_message}) == 3
    assert str(uuid.UUID(first)) == first


@BOTH
def test_a_name_is_a_steps_own_within_its_message(threaded: bool, stage: Stage) -> None:
    calls = Calls()
    run = stage.send()
    step(run, "charge", calls.charge, 7)
    with pytest.raises(InvalidRequest, match="unique"):
        step(run, "charge", calls.charge, 8)
    for name in ("", "two words", "x" * 257):
        with pytest.raises(InvalidRequest):
            step(run, name, calls.charge, 8)
    with pytest.raises(InvalidRequest, match="if_unknown"):
        step(run, "other", calls.charge, 8, if_unknown="maybe")
    assert calls.made == [7]
    again = stage.replay(run, "fail")
    step(again, "charge", calls.charge, 9)
    with pytest.raises(InvalidRequest, match="unique"):
        step(again, "charge", calls.charge, 9)


@BOTH
def test_a_step_that_failed_may_be_tried_again_by_its_name_and_runs_again_when_replayed(threaded: bool, stage: Stage) -> None:
    calls = Calls()

    def fails(number: int) -> None:
        calls.made.append(number)
        raise ValueError(f"number {number}")

    run = stage.send()
    for number in (1, 2):
        with pytest.raises(ValueError, match=f"number {number}"):
            step(run, "charge", fails, number)
    again = stage.replay(run, "fail")
    with pytest.raises(ValueError, match="number 3"):
        step(again, "charge", fails, 3)
    assert step(again, "charge", calls.charge, 7) == "charged 7"
    assert calls.made == [1, 2, 3, 7]


@pytest.mark.parametrize("threaded", [True])
def test_a_coroutine_function_is_no_step_of_an_agent_in_a_thread(threaded: bool, stage: Stage) -> None:
    run = stage.send()
    with pytest.raises(InvalidRequest, match="coroutine"):
        step(run, "charge", asyncio.sleep, 0)
    assert step(run, "charge", Calls().charge, 7) == "charged 7"


def test_steps_may_run_at_the_same_time_on_the_loop(stage: Stage) -> None:
    calls, run = Calls(), stage.send()

    async def many(cycle: Cycle) -> Any:
        barrier = asyncio.Barrier(10)

        async def one(number: int) -> int:
            async with asyncio.timeout(WAIT_S):
                await barrier.wait()  # all have begun, none has ended
            calls.charge(number)
            return number

        return await asyncio.gather(*[cycle.step(f"step-{number}", one, number) for number in range(10)])

    assert run.do(many) == list(range(10))
    assert stage.replay(run, "fail").do(many) == list(range(10))
    assert sorted(calls.made) == list(range(10))


@pytest.mark.parametrize("threaded", [True])
def test_steps_may_run_at_the_same_time_in_threads_of_the_handlers(threaded: bool, stage: Stage) -> None:
    calls, run = Calls(), stage.send()

    def many(cycle: ThreadCycle) -> list[int]:
        barrier = threading.Barrier(5)

        def one(number: int) -> int:
            barrier.wait(WAIT_S)
            calls.charge(number)
            return number

        with ThreadPoolExecutor(5) as pool:
            return list(pool.map(lambda number: cycle.step(f"step-{number}", one, number), range(5)))

    assert run.do(many) == list(range(5))
    assert stage.replay(run, "fail").do(many) == list(range(5))
    assert sorted(calls.made) == list(range(5))


def test_a_plain_function_of_an_agent_on_the_loop_runs_in_a_thread_and_does_not_block_the_loop(stage: Stage) -> None:
    go, run = threading.Event(), stage.send()

    def blocks() -> str:
        wait_for(go, "the loop is free to say so")
        return threading.current_thread().name

    async def both(cycle: Cycle) -> Any:
        blocking = asyncio.create_task(cycle.step("blocks", blocks))
        await cycle.step("other", asyncio.sleep, 0)
        go.set()
        return await blocking

    assert run.do(both) == "greenroom-step-blocks"


@BOTH
def test_a_result_is_the_same_for_the_cycle_that_made_it_and_for_its_replays(threaded: bool, stage: Stage) -> None:
    result = {"at": dt.datetime(2026, 2, 3, tzinfo=dt.UTC), "id": uuid.uuid4(), "pair": (1, 2.5), "raw": b"\0", "none": None}
    stored = {**result, "pair": [1, 2.5]}
    run = stage.send()
    assert step(run, "made", lambda: result) == stored
    assert step(run, "nothing", lambda: None) is None
    again = stage.replay(run, "fail")
    assert step(again, "made", lambda: "other") == stored
    assert step(again, "nothing", lambda: "other") is None


@BOTH
def test_no_step_begins_after_an_abort_whatever_the_handler_does(
    threaded: bool, stage: Stage, redis: redis_py.Redis, keys: Keys
) -> None:
    calls, run, begun = Calls(), stage.send(), threading.Event()

    async def stubborn(cycle: Cycle) -> None:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await cycle.step("charge", calls.charge, 7)

    def stubborn_in_thread(cycle: ThreadCycle) -> None:
        begun.set()
        eventually(lambda: cycle.cancelled, "the handler is told to end")
        cycle.step("charge", calls.charge, 7)

    refused = run.begin(stubborn_in_thread if threaded else stubborn)
    wait_for(begun, "the handler has begun that")
    stage.client.stop("1")
    with pytest.raises(CycleEnded, match="stop"):
        refused.result(WAIT_S)
    assert calls.made == []
    assert not redis.exists(f"{keys.room('1')}:steps")


@BOTH
def test_no_step_begins_after_an_abort_that_the_worker_has_not_heard_of(
    threaded: bool, stage: Stage, redis: redis_py.Redis, keys: Keys
) -> None:
    calls, run = Calls(), stage.send()
    cut_off(stage.system)
    stage.client.interrupt("1")
    with pytest.raises((CycleEnded, asyncio.CancelledError)):  # the cancel may overtake the refusal
        step(run, "charge", calls.charge, 7)
    assert calls.made == []
    assert not redis.exists(f"{keys.room('1')}:steps")


def test_a_step_of_a_cycle_that_has_lost_its_room_is_refused_by_redis(
    stage: Stage, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    run = stage.send()
    step(run, "charge", lambda: "old")
    again = stage.replay(run, "stop")

    async def try_all() -> list[str]:
        store = client._client._store
        acts = ("begin", "again", "done", "failed")
        return [(await store.step("1", run.ticket, name, act, b"x"))[0] for act in acts for name in ("charge", "fresh")]

    assert set(client._run(try_all)) == {"fenced"}
    assert redis.hkeys(f"{keys.room('1')}:steps") == ["charge"]
    assert step(again, "charge", lambda: "new") == "old"


@pytest.mark.parametrize("end", ["committed", "interrupted", "dead", "discarded"])
def test_steps_go_with_their_message_and_the_next_one_does_its_own(
    end: str, stage: Stage, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    run = stage.send()
    step(run, "charge", lambda: "first message's")
    assert redis.exists(f"{keys.room('1')}:steps")
    client.send("1", "wait")
    if end == "committed":
        run.finish()
    elif end == "interrupted":
        client.interrupt("1")
    elif end == "dead":
        for _ in range(8):
            run.fail()
            run = director.run("1")
        run.fail()
    else:
        client.stop("1")
        settled(client, "1", run.ticket)
        client.discard("1", run.message.id)
        client.play("1")
    following = director.run("1")
    assert not redis.exists(f"{keys.room('1')}:steps")
    assert step(following, "charge", lambda: "its own") == "its own"


def test_a_dead_letter_that_is_put_back_is_another_message_with_steps_and_keys_of_its_own(
    running: Running, director: Director, client: Client
) -> None:
    """Its author is to know: what must not be done twice needs a key of the message's body."""
    calls = Calls()
    running(director.agent(max_attempts=1))
    client.send("1", "wait")
    run = director.run("1")
    step(run, "charge", calls.keyed, 7)
    run.fail()
    wait_output(client, "1", lambda output: output.kind is Kind.DEAD)
    client.requeue(next(iter(client.dead_letters())).id)
    step(director.run("1"), "charge", calls.keyed, 7)
    assert len(set(calls.made)) == 2


@BOTH
def test_a_hanging_step_of_one_room_holds_up_no_step_of_another(threaded: bool, stage: Stage, director: Director) -> None:
    hanging = Hanging(threaded)
    hanging.begin(stage.send())
    stage.client.send("2", "wait")
    assert step(director.run("2"), "charge", lambda: "done") == "done"
    hanging.go.set()
