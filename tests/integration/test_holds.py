"""Stops and pauses outlive every restart: of the worker, of its connections, of Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from greenroom import ActorSystem, Client, Mode, Phase
from greenroom.protocol.server import RedisServer
from integration.agents import (
    Director,
    eventually,
    ready_of,
    settled,
    wait_event,
    wait_output,
)
from integration.conftest import Running

from helpers import lasting_server, unique


@contextmanager
def own_server(directory: Path) -> Iterator[RedisServer]:
    server = lasting_server(directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def working(server: RedisServer, agent: str, director: Director, **options: Any) -> Iterator[ActorSystem]:
    """A system on the server, stopped without grace."""
    system = ActorSystem(director.agent(), agent=agent, redis=server.url, **{"name": unique("worker"), **options}).start()
    try:
        yield system
    finally:
        system.stop(timedelta(0))


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("verb", ["stop", "pause"])
@pytest.mark.parametrize("exists", [False, True])
def test_a_hold_that_is_set_while_no_worker_runs_outlives_every_restart(
    redis_dir: Path, agent: str, director: Director, verb: str, everywhere: bool, exists: bool
) -> None:
    """row 16"""
    with own_server(redis_dir) as server, Client(agent, redis=server.url) as client:
        if exists:
            client.send("42", "first")
        getattr(client, verb)(*([] if everywhere else ["42"]), everywhere=everywhere, reason="held by the test")
        if not exists:
            client.send("42", "first")
        for restart in ("worker", "redis", "worker"):
            if restart == "redis":
                server.kill()
                server.start()
            with working(server, agent, director):
                hold = client.overview().hold if everywhere else client.status("42").hold
                assert hold is not None
                assert (hold.mode, hold.reason) == (Mode(verb), "held by the test")
                client.send("42", restart)
                assert_held(client, "42", director)
                if not everywhere:
                    assert client.ask("other", "rooms that play") == "rooms that play"
                    assert_held(client, "42", director)
        with working(server, agent, director):
            client.play(*([] if everywhere else ["42"]), everywhere=everywhere)
            wait_output(client, "42", lambda output: output.body == "worker" and output.message > 0)
            eventually(lambda: client.status("42").waiting == 0, "all have run")
        assert director.bodies("42") == ["first", "worker", "redis", "worker"]


def assert_held(client: Client, room: str, director: Director) -> None:
    """No run has begun, and none can: a held room is in nobody's hands and nobody is to be handed it."""
    status = client.status(room)
    assert (status.phase, status.owner, status.ticket) == (Phase.HELD, None, None)
    assert ready_of(client, room) is None
    assert director.count(room) == 0


def test_a_stop_of_a_cycle_in_flight_outlives_restarts_of_worker_and_redis(
    redis_dir: Path, agent: str, director: Director
) -> None:
    """row 16, row 17"""
    with own_server(redis_dir) as server, Client(agent, redis=server.url) as client:
        with working(server, agent, director):
            client.send("42", "wait")
            first = director.run("42")
            client.send("42", "second")
            client.stop("42")
            first.wait_cancelled()
            settled(client, "42", first.ticket)
        server.kill()
        server.start()
        with working(server, agent, director):
            status = client.status("42")
            assert status.hold is not None
            assert (status.hold.mode, status.phase, status.waiting) == (Mode.STOP, Phase.HELD, 2)
            assert client.ask("other", "x") == "x"
            assert director.count("42") == 1
            client.play("42")
            again = director.run("42")
            assert again.attempt == 1
            again.finish("first")
            wait_output(client, "42", lambda output: output.body == "second")
        assert director.bodies("42") == ["wait", "wait", "second"]


def test_reconnecting_while_stopped_starts_nothing_and_loses_nothing(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 17"""
    system = running(director.agent())
    for number in range(3):
        client.send("42", f"wait {number}")
    first = director.run("42")
    client.stop("42")
    first.wait_cancelled()
    settled(client, "42", first.ticket)
    for _ in range(3):
        redis.client_kill_filter(_type="normal", skipme=True)
        client.send("42", "more")
        assert client.ask("other", "work goes on") == "work goes on"
        assert_no_run_since(client, "42", director, 1)
    assert system._store.pipeline.reconnects >= 1
    client.play("42")
    for number in range(3):
        director.run("42").finish(number)
    eventually(lambda: client.status("42").waiting == 0, "all have run")
    assert director.bodies("42") == ["wait 0", "wait 0", "wait 1", "wait 2", "more", "more", "more"]
    wait_event(redis, agent, "cycle.committed", room="42", count=6)


def assert_no_run_since(client: Client, room: str, director: Director, count: int) -> None:
    assert client.status(room).phase is Phase.HELD
    assert ready_of(client, room) is None
    assert director.count(room) == count
