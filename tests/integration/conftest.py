"""Fixtures of the integration tests: systems and clients that are always stopped, on an agent of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest
import redis as redis_py

from greenroom import ActorSystem, Agent, Client, Output, Relay
from greenroom.protocol.keys import Keys
from greenroom.protocol.server import RedisServer
from greenroom.supervisors import handover
from integration.agents import AT_ONCE, Director
from integration.command import Shell
from integration.receiver import Receiver, Relaying
from integration.replays import Stage

from helpers import lasting_server, unique


class Running(Protocol):
    """Starts a system on the test's Redis and agent. ``options`` are those of ActorSystem; the name is a fresh one."""

    def __call__(self, agent_class: type[Agent], **options: Any) -> ActorSystem: ...


@pytest.fixture
def director() -> Director:
    """Steers the handlers of this test's agents."""
    return Director()


@pytest.fixture
def running(redis_url: str, agent: str) -> Iterator[Running]:
    """Start systems; at the end of the test all are stopped, without grace."""
    systems: list[ActorSystem] = []

    def start(agent_class: type[Agent], **options: Any) -> ActorSystem:
        system = ActorSystem(agent_class, **{"agent": agent, "redis": redis_url, "name": unique("worker"), **options})
        systems.append(system)
        return system.start()

    yield start
    with ExitStack() as stack:
        for system in systems:
            stack.callback(system.stop, timedelta(0))


@pytest.fixture
def client(redis_url: str, agent: str) -> Iterator[Client]:
    """A client of the test's agent."""
    with Client(agent, redis=redis_url, by="test") as client:
        yield client


@pytest.fixture
def server(redis_dir: Path) -> Iterator[RedisServer]:
    """A redis-server of the test's own, to be killed and started again: it forgets nothing."""
    with lasting_server(redis_dir) as server:
        yield server


@pytest.fixture
def redis(redis_url: str) -> Iterator[redis_py.Redis]:
    """A plain redis-py client of the run's server, which decodes what it reads."""
    with redis_py.Redis.from_url(redis_url, decode_responses=True) as plain:
        yield plain


@pytest.fixture
def keys(agent: str) -> Keys:
    """The keys of the test's agent."""
    return Keys(agent)


@pytest.fixture
def threaded() -> bool:
    """Whether the test's agent is a plain function; tests that try both are parametrized with it."""
    return False


@pytest.fixture
def stage(running: Running, director: Director, client: Client, threaded: bool) -> Stage:
    """A started system with a room whose message can be replayed."""
    return Stage(running, director, client, threaded=threaded)


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def relaying(redis_url: str, agent: str, receiver: Receiver) -> Iterator[Relaying]:
    """Start relays; at the end of the test all are stopped, without grace."""
    relays: list[Relay] = []

    def start(deliver: Callable[[str, Output], Any] | None = None, **options: Any) -> Relay:
        options = {"redis": redis_url, "retry": AT_ONCE, "lease": timedelta(seconds=1), **options}
        relays.append(Relay(agent, deliver or receiver.on_loop, **options))
        return relays[-1].start()

    yield start
    for relay in relays:
        relay.stop(timedelta(0))


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tokens with which relays have asked for their lease so far."""
    asked: list[str] = []
    renew = handover.Duty.renew

    async def counted(duty: handover.Duty) -> None:
        asked.append(duty.token)
        await renew(duty)

    monkeypatch.setattr(handover.Duty, "renew", counted)
    return asked


@pytest.fixture
def shell(agent: str, redis_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Runs commands in this process, on the test's agent and Redis."""
    monkeypatch.setenv("GREENROOM_AGENT", agent)
    monkeypatch.setenv("GREENROOM_REDIS_URL", redis_url)
    return Shell(capsys)
