"""The contract with Redis, by random interleavings on the real scripts; docs/protocol.md lists its invariants.

``GREENROOM_EXPLORER_RUNS`` and ``GREENROOM_EXPLORER_SEED`` say how many runs, from which seed; scripts/explore does more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from greenroom.protocol.scripts import scripts
from greenroom.protocol.server import RedisServer

from .actions import send_claim
from .checks import Violation, check_end, receipts_of
from .drain import drain
from .explorer import Explorer
from .model import Terms
from .mutations import MUTATIONS, Mutation
from .wire import Wire
from .world import Request, World

RUNS = int(os.environ.get("GREENROOM_EXPLORER_RUNS", "300"))
SEED = int(os.environ.get("GREENROOM_EXPLORER_SEED", "20240229"))
RUNS_TO_NOTICE = 300
STOPS = 50


def _explore(explorer: Explorer, runs: int) -> None:
    try:
        for seed in range(SEED, SEED + runs):
            explorer.run(seed)
    finally:
        explorer.close()


def test_no_interleaving_breaks_an_invariant(redis_server: RedisServer) -> None:
    _explore(Explorer(redis_server.url), RUNS)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation.invariant}: {mutation.name}")
def test_each_guard_is_noticed_when_broken(redis_server: RedisServer, mutation: Mutation) -> None:
    """The same seeds find nothing in the scripts as they are: the test above."""
    with pytest.raises(Violation):
        _explore(Explorer(redis_server.url, mutation.scripts(), shrink=False), RUNS_TO_NOTICE)


def test_a_violation_is_told_with_its_seed_and_few_actions(redis_server: RedisServer) -> None:
    mutation = next(mutation for mutation in MUTATIONS if mutation.name == "an aborted cycle goes on sending")
    with pytest.raises(Violation) as found:
        _explore(Explorer(redis_server.url, mutation.scripts()), RUNS_TO_NOTICE)
    told, *calls = str(found.value).splitlines()
    assert told.startswith("seed ")
    assert len(calls) < 20
    assert "control(" in str(found.value)


@pytest.fixture
def world(redis_server: RedisServer) -> Iterator[World]:
    """An agent with one worker and one message, whose calls are neither doubled nor lost."""
    wire = Wire(redis_server.url, scripts())
    world = World(wire, Terms(max_attempts=2, shielded=False))
    world.chaos = False
    world.join("w0")
    room = world.account.rooms["r0"]
    world.call(world.account.enqueue(room, "key", 10, b"hello"), "enqueue", "r0", "key", 60, 10, b"hello")
    yield world
    wire.erase()
    wire.close()


def _claim(world: World) -> int:
    """Claim the message with what ready entry there is, and return the ticket."""
    worker = world.workers["w0"]
    world.read(worker, "0", 1)
    world.read(worker, ">", 1)
    send_claim(world, worker, "r0", worker.holds["r0"])
    return worker.holds["r0"].ticket


def _settle(world: World, ticket: int, how: str) -> None:
    args = {"how": how, "take_next": True, "state": b"=", "closing": b"", "error": "no", "retry_ms": 0}
    worker = world.workers["w0"]
    world.ask(worker, worker.holds["r0"], Request("settle", "r0", {"ticket": ticket, **args}))


def test_stops_and_restarts_while_stopped_add_nothing_to_the_attempt(world: World) -> None:
    """Each claim is compared with the account, which knows of no failure: its attempt is 1."""
    room = world.account.rooms["r0"]
    for number in range(STOPS):
        ticket = _claim(world)
        world.control("stop", ("r0",), f"stop {number}")
        if number % 2:
            _settle(world, ticket, "release")
        else:
            world.join("w0")
        world.control("play", ("r0",), f"play {number}")
        world.check()
    assert room.charged == 0
    _settle(world, _claim(world), "fail")
    assert room.charged == 1
    drain(world)
    check_end(world.account, world.wire)
    assert list(room.ended.values()) == ["committed"]


def test_a_superseded_worker_that_commits_is_handed_nothing_that_could_be_charged_as_a_crash(world: World) -> None:
    room = world.account.rooms["r0"]
    world.call(world.account.enqueue(room, "key-2", 10, b"next"), "enqueue", "r0", "key-2", 60, 10, b"next")
    ticket = _claim(world)
    world.join("w0")
    commit = Request("commit", "r0", {"ticket": ticket, "take_next": True, "state": b"=", "reply": b"done"})
    assert world.request(commit) == ("released", "")
    world.check()
    assert _claim(world) > ticket
    assert (room.charged, list(room.ended.values())) == (0, ["committed"])


def test_a_superseded_worker_that_fails_gives_the_room_back(world: World) -> None:
    """The newer one need not find it among what was pending."""
    ticket = _claim(world)
    world.join("w0")
    args = {"how": "fail", "take_next": True, "state": b"=", "closing": b"", "error": "no", "retry_ms": 0}
    assert world.request(Request("settle", "r0", {"ticket": ticket, **args})) == ("released", "")
    world.check()
    assert world.account.rooms["r0"].charged == 1


def test_a_signal_reaches_more_rooms_than_lua_can_unpack(world: World) -> None:
    names = [f"room-{number}" for number in range(9_000)]
    answer = world.send(world.wire.script("control", "stop", "many", "", "tester", "because", "", len(names), *names))[0]
    assert receipts_of(answer[1]) == tuple(sorted((name, "applied", "") for name in names))
