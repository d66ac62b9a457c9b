"""Hooks that fail, hang, meet a signal or die: the cycle's end is the same (row 22)."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py

from greenroom import Client, Interruption, Kind, Mode, Outcome
from greenroom.protocol.keys import Keys
from integration.agents import WAIT_S, Director, abandon, blocked, settled, wait_event, wait_for
from integration.conftest import Running
from integration.replays import LEASE, Hooks

from helpers import Mute

SHORT = timedelta(milliseconds=200)
HOOKS = pytest.mark.parametrize("plain", [False, True], ids=["coroutine hook", "plain hook"])

Act = Callable[[Interruption, Any], Any]


def raises(_: Interruption, state: Any) -> None:
    state.update(lost=True)
    raise RuntimeError("in the hook")


def raises_what_says_nothing(_: Interruption, state: Any) -> None:
    state.update(lost=True)
    raise Mute


def leaves(_: Interruption, state: Any) -> None:
    state.update(lost=True)
    raise GeneratorExit


def exits(_: Interruption, state: Any) -> None:
    state.update(lost=True)
    sys.exit(3)


def returns_what_cannot_be_stored(_: Interruption, state: Any) -> object:
    state.update(lost=True)
    return object()


def spoils_the_state(_: Interruption, state: Any) -> None:
    state.update(lost=object())


TROUBLE = [raises, raises_what_says_nothing, leaves, exits, returns_what_cannot_be_stored, spoils_the_state]


@HOOKS
@pytest.mark.parametrize("act", TROUBLE, ids=lambda act: act.__name__)
def test_the_message_is_consumed_without_the_hooks_word_when_it_fails(
    act: Act, plain: bool, running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    running(director.agent(**Hooks(act, plain=plain).options))
    client.send("1", "wait")
    client.send("1", "next")
    run = director.run("1")
    run.send("I was")
    client.interrupt("1")
    assert (settled(client, "1", run.ticket).mode, settled(client, "1", run.ticket).seq) == ("interrupt", 2)
    assert client.ask("1", "one more") == "one more"
    assert director.bodies("1") == ["wait", "next", "one more"]
    assert not redis.exists(keys.state("1"))


@HOOKS
def test_a_stop_keeps_the_message_when_its_hook_fails(
    plain: bool, running: Running, director: Director, client: Client
) -> None:
    running(director.agent(**Hooks(raises, plain=plain).options))
    client.send("1", "wait")
    run = director.run("1")
    client.stop("1")
    assert settled(client, "1", run.ticket).mode == "stop"
    client.play("1")
    assert (again := director.run("1")).message.id == run.message.id
    assert again.attempt == 1


class Stuck:
    """A hook that hangs until the test is over, or until it is let go."""

    def __init__(self, plain: bool) -> None:
        self.go = threading.Event()
        self.ended = threading.Event()
        self.hooks = Hooks(self._block if plain else self._insist, plain=plain)

    def _block(self, _: Interruption, state: Any) -> str:
        wait_for(self.go, "the hook may end")
        state.update(late=True)
        self.ended.set()
        return "late"

    async def _insist(self, _: Interruption, state: Any) -> str:
        while not self.go.is_set():
            try:
                await asyncio.to_thread(self.go.wait, WAIT_S)
            except asyncio.CancelledError:
                continue
        state.update(late=True)
        self.ended.set()
        return "late"


@HOOKS
def test_the_message_is_consumed_when_its_hook_hangs_and_what_the_hook_does_later_is_lost(
    plain: bool, running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    stuck = Stuck(plain)
    running(director.agent(**{**stuck.hooks.options, "hook_timeout": SHORT}))
    client.send("1", "wait")
    run = director.run("1")
    client.interrupt("1")
    assert settled(client, "1", run.ticket).kind is Kind.ABORTED
    client.send("1", "wait")
    following = director.run("1")
    stuck.go.set()
    wait_for(stuck.ended, "the hook ends")
    assert following.do(lambda cycle: dict(cycle.state)) == {}
    following.finish("done")
    assert settled(client, "1", following.ticket).body == "done"
    assert not redis.exists(keys.state("1"))
    assert "late" not in [output.body for output in client.outputs("1")]


def test_the_message_is_consumed_when_its_hook_cannot_even_begin(running: Running, director: Director, client: Client) -> None:
    """Row 29: something blocks the loop of all the worker's async agents."""
    hooks = Hooks()
    system = running(director.agent(**{**hooks.options, "hook_timeout": SHORT, "abort_timeout": SHORT}))
    client.send("1", "wait")
    run = director.run("1")
    with blocked(system._user):
        client.interrupt("1")
        assert settled(client, "1", run.ticket).kind is Kind.ABORTED
    assert client.ask("1", "next") == "next"
    assert hooks.told == []


# Signals during the hook. ---------------------------------------------------------------------------------------


@HOOKS
def test_an_interrupt_during_the_hook_changes_nothing_and_does_not_touch_the_next_message(
    plain: bool, running: Running, director: Director, client: Client
) -> None:
    """row 8"""
    stuck = Stuck(plain)
    running(director.agent(**stuck.hooks.options))
    client.send("1", "wait")
    client.send("1", "next")
    run = director.run("1")
    client.interrupt("1")
    stuck.hooks.wait()
    assert client.interrupt("1")[0].outcome is Outcome.ALREADY
    assert client.interrupt("1", message=run.message.id)[0].outcome is Outcome.ALREADY
    stuck.go.set()
    assert client.ask("1", "one more") == "one more"
    assert director.bodies("1") == ["wait", "next", "one more"]
    assert len(stuck.hooks.told) == 1
    assert settled(client, "1", run.ticket).seq == 2  # after the closing output


@HOOKS
def test_a_stop_during_the_hook_of_an_interrupt_holds_the_room_and_the_message_is_consumed(
    plain: bool, running: Running, director: Director, client: Client
) -> None:
    """row 9"""
    stuck = Stuck(plain)
    running(director.agent(**stuck.hooks.options))
    client.send("1", "wait")
    client.send("1", "next")
    run = director.run("1")
    client.interrupt("1")
    stuck.hooks.wait()
    client.stop("1")
    stuck.go.set()
    assert settled(client, "1", run.ticket).mode == "interrupt"
    assert (client.status("1").waiting, director.bodies("1")) == (1, ["wait"])
    assert [told.mode for told in stuck.hooks.told] == [Mode.INTERRUPT]
    client.play("1")
    assert client.ask("1", "one more") == "one more"
    assert director.bodies("1") == ["wait", "next", "one more"]


@HOOKS
def test_a_replay_waits_for_the_end_of_on_stop(plain: bool, running: Running, director: Director, client: Client) -> None:
    stuck = Stuck(plain)
    running(director.agent(**stuck.hooks.options))
    client.send("1", "wait")
    run = director.run("1")
    client.stop("1")
    stuck.hooks.wait()
    client.play("1")
    assert client.ask("2", "another room") == "another room"  # there was time
    assert director.count("1") == 1
    stuck.go.set()
    again = director.run("1")
    assert (again.message.id, again.attempt) == (run.message.id, 1)


# Other rooms, and the worker's end. -----------------------------------------------------------------------------


@HOOKS
def test_two_rooms_hooks_do_not_wait_for_each_other(plain: bool, running: Running, director: Director, client: Client) -> None:
    """row 18"""
    both = threading.Barrier(3)

    def meet(_: Interruption, state: Any) -> Any:
        return both.wait(WAIT_S) if plain else asyncio.to_thread(both.wait, WAIT_S)

    running(director.agent(**Hooks(meet, plain=plain).options))
    for room in ("1", "2"):
        client.send(room, "wait")
        director.run(room)
    client.interrupt("1", "2")
    both.wait(WAIT_S)  # both are in their hooks


def test_a_plain_hook_that_blocks_holds_up_no_other_room(running: Running, director: Director, client: Client) -> None:
    stuck = Stuck(plain=True)
    running(director.agent(**stuck.hooks.options))
    client.send("1", "wait")
    director.run("1")
    client.interrupt("1")
    stuck.hooks.wait()
    assert client.ask("2", "answered") == "answered"
    client.send("2", "wait")
    other = director.run("2")
    client.stop("2")
    other.wait_cancelled()
    stuck.go.set()


def test_a_hook_that_blocks_its_loop_holds_up_no_signal_of_another_room(
    running: Running, director: Director, client: Client
) -> None:
    """rows 18 and 29"""
    blocking, over = threading.Event(), threading.Event()

    def block(told: Interruption, _: Any) -> None:
        if told.message.room == "1":
            blocking.set()
            while not over.is_set():
                time.sleep(0.01)  # the hostile behaviour under test

    running(director.agent(**{**Hooks(block).options, "abort_timeout": SHORT, "hook_timeout": SHORT}))
    for room in ("1", "2"):
        client.send(room, "wait")
    director.run("1")
    other = director.run("2")
    client.interrupt("1")
    wait_for(blocking, "the hook blocks the loop")
    client.stop("2")
    assert settled(client, "2", other.ticket).mode == "stop"
    over.set()


@pytest.mark.parametrize("mode", [Mode.INTERRUPT, Mode.STOP])
def test_the_worker_dies_during_the_hook_and_the_cycle_ends_all_the_same(
    mode: Mode,
    running: Running,
    director: Director,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
    agent: str,
) -> None:
    """row 35"""
    stuck = Stuck(plain=True)
    agent_class = director.agent(**stuck.hooks.options)
    system = running(agent_class, lease=LEASE)
    client.send("1", "wait")
    run = director.run("1")
    getattr(client, mode)("1")
    stuck.hooks.wait()
    running(agent_class, lease=LEASE)
    abandon(system)
    wait_event(redis, agent, "cycle.interrupted" if mode is Mode.INTERRUPT else "cycle.stopped", room="1")
    client.play("1")
    if mode is Mode.STOP:
        again = director.run("1")
        assert (again.message.id, again.attempt) == (run.message.id, 1)
        again.finish()
    assert client.ask("1", "next") == "next"
    stuck.go.set()
    wait_for(stuck.ended, "the hook ends")
    assert (len(stuck.hooks.told), redis.exists(keys.state("1"))) == (1, 0)
