"""Shielded blocks that overlap, fail, are cancelled, or last for long (row 21)."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
import redis as redis_py

from greenroom import Client, Cycle, Kind, Mode, Outcome, ThreadCycle
from greenroom.actors.link import CycleLink
from greenroom.protocol.keys import Keys
from integration.agents import WAIT_S, Director, StoreGate, eventually, settled, wait_for, wait_output
from integration.conftest import Running
from integration.replays import BOTH, Shields

ABORTS = pytest.mark.parametrize("verb", [Mode.INTERRUPT, Mode.STOP])


def test_a_block_inside_an_agent_that_is_not_interruptible_does_not_make_it_so(
    running: Running, director: Director, client: Client
) -> None:
    """Its cycles are shielded for their whole life"""
    running(director.agent(interruptible=False))
    client.send("1", "wait")
    run = director.run("1")
    client.interrupt("1")
    shields = Shields(run, threaded=False)
    shields.up()
    shields.down()
    assert client.status("1").shielded
    run.send("goes on")
    run.finish("done")
    assert settled(client, "1", run.ticket).body == "done"


@BOTH
def test_blocks_that_overlap_are_all_shielded_to_their_ends(
    threaded: bool, running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """Whichever task or thread of the handler goes in and out meanwhile"""
    running(director.agent(threaded=threaded))
    client.send("1", "wait")
    run = director.run("1")
    up: list[bool] = []

    def look() -> None:
        up.append(bool(redis.hexists(keys.room("1"), "shield")))

    async def in_and_out(cycle: Cycle, looks: bool) -> None:
        for _ in range(50):
            async with cycle.shield():
                if looks:
                    await asyncio.to_thread(look)

    def in_and_out_in_thread(cycle: ThreadCycle, looks: bool) -> None:
        for _ in range(50):
            with cycle.shield():
                if looks:
                    look()

    async def both(cycle: Cycle) -> None:
        await asyncio.gather(in_and_out(cycle, True), in_and_out(cycle, False), in_and_out(cycle, False))

    def both_in_threads(cycle: ThreadCycle) -> None:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(in_and_out_in_thread, [cycle] * 3, [True, False, False]))

    run.do(both_in_threads if threaded else both)
    assert up == [True] * 50
    assert not client.status("1").shielded


def test_a_block_does_not_begin_on_the_shield_of_another_that_is_not_up_yet(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    gate = StoreGate.of(running(director.agent()))
    client.send("1", "wait")
    run = director.run("1")
    hold = gate.before("shield")
    up: list[bool] = []

    async def block(cycle: Cycle) -> None:
        async with cycle.shield():
            up.append(await asyncio.to_thread(redis.hexists, keys.room("1"), "shield"))

    async def both(cycle: Cycle) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(block(cycle))
            await asyncio.to_thread(hold.wait)
            await group.create_task(block(cycle))
            hold.release()

    run.do(both)
    assert up == [True, True]


def test_a_block_that_is_cancelled_on_its_way_in_leaves_no_shield_up(
    running: Running, director: Director, client: Client
) -> None:
    """By a time limit of the handler's own, while Redis is slow"""
    gate = StoreGate.of(running(director.agent()))
    client.send("1", "wait")
    run = director.run("1")
    hold = gate.after("shield")

    async def impatient(cycle: Cycle) -> None:
        async with AsyncExitStack() as stack:
            task = asyncio.create_task(stack.enter_async_context(cycle.shield()))
            await asyncio.to_thread(hold.wait)
            task.cancel()
            await asyncio.wait([task])

    run.do(impatient)
    hold.release()
    run.send("after")
    assert not client.status("1").shielded
    assert client.interrupt("1")[0].outcome is Outcome.APPLIED


@BOTH
@ABORTS
def test_what_a_block_raises_itself_is_raised_although_a_signal_waited_for_its_end(
    verb: Mode, threaded: bool, running: Running, director: Director, client: Client
) -> None:
    running(director.agent(threaded=threaded))
    client.send("1", "wait")
    run = director.run("1")
    inside, go = threading.Event(), threading.Event()

    async def block(cycle: Cycle) -> None:
        async with cycle.shield():
            inside.set()
            await asyncio.to_thread(go.wait, WAIT_S)
            raise KeyError("the block's own")

    def block_in_thread(cycle: ThreadCycle) -> None:
        with cycle.shield():
            inside.set()
            go.wait(WAIT_S)
            raise KeyError("the block's own")

    raised = run.begin(block_in_thread if threaded else block)
    wait_for(inside, "the block is shielded")
    assert getattr(client, verb)("1")[0].outcome is Outcome.DEFERRED
    go.set()
    with pytest.raises((KeyError, asyncio.CancelledError)):  # the cancel may overtake it
        raised.result(WAIT_S)
    run.wait_cancelled()
    wait_output(client, "1", lambda output: output.kind is Kind.ABORTED and output.mode == verb)


# Shields that are up for long. -----------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True], ids=["a block", "the agent"])
def test_a_shield_that_is_up_for_long_is_named_in_the_log(
    whole: bool, running: Running, director: Director, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    running(director.agent(interruptible=not whole, shield_warning=timedelta(milliseconds=50)))
    client.send("the-room", "wait")
    run = director.run("the-room")
    shields = Shields(run, threaded=False)
    shields.up()
    [line] = eventually(lambda: long_shields(caplog), "the warning")
    for words in ("room=the-room", f"ticket={run.ticket}", "after_s=0.05"):
        assert words in line.split()
    shields.down()
    run.finish("done")


@pytest.mark.parametrize("end", ["down", "cycle"], ids=["goes down", "ends with its cycle"])
def test_a_shield_that_has_gone_down_is_not_watched_any_more(
    end: str, running: Running, director: Director, client: Client
) -> None:
    running(director.agent())
    client.send("1", "wait")
    run = director.run("1")
    shields = Shields(run, threaded=False)
    shields.up()
    link = run.cycle._link
    assert isinstance(link, CycleLink)
    assert "shield" in link._timers
    if end == "down":
        shields.down()
    else:
        run.finish("done")
        settled(client, "1", run.ticket)
        client.ask("1", "the worker has heard that it is committed")
    assert "shield" not in link._timers


def long_shields(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "shield.long" in record.message]
