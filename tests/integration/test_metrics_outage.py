"""A scrape while Redis is away or hangs: it does not hang, and what this process knows by itself is there."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from greenroom import ActorSystem, Client
from greenroom.protocol.scripts import scripts
from greenroom.protocol.server import RedisServer
from integration.agents import WAIT_S, Director, blocked, eventually
from integration.scraping import LIMIT_S, Page, page_of

OF_REDIS = ("rooms", "agent_held", "waiting_messages", "oldest_waiting_seconds", "dead_letters")


@pytest.fixture
def system(server: RedisServer, director: Director, agent: str) -> Iterator[ActorSystem]:
    """A system that has committed one message."""
    with ActorSystem(director.agent(), agent=agent, redis=server.url, name="w1") as system:
        with Client(agent, redis=server.url) as client:
            client.ask("1", "hello")
        yield system


@pytest.fixture
def page(system: ActorSystem) -> Iterator[Page]:
    with page_of(system) as page:
        eventually(lambda: page.scrape().said("messages_total", outcome="committed") == 1, "it counts")
        yield page


def families(page: Page) -> set[str]:
    return {name.removeprefix("greenroom_") for name, _, _ in page.scrape().samples}


def knows_all(page: Page) -> bool:
    said = page.scrape()
    return said.said("ready") == 1 and set(OF_REDIS) <= families(page)


def knows_itself_only(page: Page) -> None:
    said = page.scrape()
    assert said.said("messages_total", outcome="committed") == 1
    assert said.said("ready") == 0
    names = families(page)
    assert not names & set(OF_REDIS)
    assert "process_cpu_seconds_total" in names


def wanted(system: ActorSystem) -> int:
    """How many looks at what waits are under way."""
    sha, pipeline = scripts()["backlog"].sha.encode(), system._store.pipeline
    return sum(sha in each.packed and not each.reply.done() for each in (*pipeline._sent, *pipeline._waiting))


def asked(system: ActorSystem) -> int:
    """How many requests wait for a connection."""
    return len(system._store.pipeline._waiting)


def test_without_redis_what_is_read_from_it_is_absent_and_comes_back(
    server: RedisServer, system: ActorSystem, page: Page
) -> None:
    eventually(lambda: knows_all(page), "all is there")
    server.kill()
    eventually(lambda: page.scrape().said("ready") == 0, "the loss is noticed")
    knows_itself_only(page)
    before = asked(system)
    for _ in range(20):
        page.scrape()
    assert asked(system) < before + 10, "scrapes are not piled up"
    server.start()
    eventually(lambda: knows_all(page), "all is back")
    eventually(lambda: (page.scrape().said("reconnects_total", connection="scripts") or 0) >= 1, "it was connected again")


def test_a_redis_that_hangs_does_not_hang_a_scrape(server: RedisServer, system: ActorSystem, page: Page) -> None:
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        for _ in range(3):
            assert "dead_letters" not in families(page)
        assert time.monotonic() - began < WAIT_S
        eventually(lambda: page.scrape().said("ready") == 0, "the lease has run out")
        knows_itself_only(page)
        eventually(lambda: wanted(system) == 0, "what no scrape waits for is not wanted any more")
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: knows_all(page), "all is back")


def test_a_worker_whose_control_loop_hangs_answers_a_scrape(system: ActorSystem, page: Page) -> None:
    """Nothing of greenroom's or the agent's can hold it up."""
    with blocked(system._control), blocked(system._user):
        said = page.scrape()
        assert said.said("messages_total", outcome="committed") == 1
        assert said.said("dead_letters") is None
    eventually(lambda: knows_all(page), "all is back")


def test_many_scrapes_at_once_are_all_answered(page: Page) -> None:
    found: list[float | None] = []

    def scrape() -> None:
        found.append(page.scrape().said("messages_total", outcome="committed"))

    threads = [threading.Thread(target=scrape) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_S)
    assert found == [1.0] * 20
