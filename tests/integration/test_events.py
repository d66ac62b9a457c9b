"""Events as clients read them: all that happened in an agent's rooms, page by page, and what goes on to happen."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from greenroom import AsyncClient, Client, Event, EventKind, InvalidRequest
from greenroom.protocol.connect import connect
from greenroom.protocol.keys import Keys
from greenroom.protocol.server import RedisServer
from greenroom.protocol.store import Store
from integration.agents import WAIT_S, Director, wait_event, wait_output
from integration.conftest import Running


def test_a_client_reads_all_events_in_order_over_several_pages(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    running(director.agent())
    messages = [client.send("1", number) for number in range(450)]
    wait_output(client, "1", lambda output: output.message == messages[-1])
    client.stop("1", reason="why")
    found = list(client.events())
    rows: Any = redis.xrange(keys.events)
    assert [event.id for event in found] == [entry for entry, _ in rows]
    assert Counter(event.kind for event in found) == {"worker.joined": 1, "cycle.committed": 450, "signal.applied": 1}
    assert [event.message for event in found if event.kind is EventKind.CYCLE_COMMITTED] == messages
    assert found[-1].mode == "stop"
    assert found[-1].details["rooms"] == "1"
    assert list(client.events(after=found[200].id)) == found[201:]
    assert list(client.events(after=found[-1].id)) == []


def test_what_is_no_place_among_the_events_is_refused(client: Client) -> None:
    with pytest.raises(InvalidRequest, match=r"^after: want an entry's id"):
        list(client.events(after="yesterday"))


def test_any_number_of_followers_share_the_connection_and_see_what_goes_on_to_happen(redis_dir: Path, agent: str) -> None:
    async def follow(client: AsyncClient, begun: asyncio.Event) -> list[Event]:
        seen: list[Event] = []
        async for event in client.events(follow=True):
            seen.append(event)
            begun.set()
            if event.mode == "pause":
                break
        return seen

    async def test(url: str) -> None:
        async with asyncio.timeout(2 * WAIT_S), AsyncClient(agent, redis=url) as client:
            with redis_py.Redis.from_url(url) as plain:
                await client.stop("1")
                before = len(plain.client_list())
                begun = [asyncio.Event() for _ in range(20)]
                followers = [asyncio.create_task(follow(client, each)) for each in begun]
                for each in begun:
                    await each.wait()
                assert len(plain.client_list()) == before
                await client.play("1")
                await client.pause("1")
                for seen in await asyncio.gather(*followers):
                    assert [event.mode for event in seen] == ["stop", "play", "pause"]

    with RedisServer(redis_dir) as server:
        asyncio.run(test(server.url))


def test_a_follower_without_a_loop_sees_them_too(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    system = running(director.agent())
    following = client.events(follow=True)
    assert next(following).kind is EventKind.WORKER_JOINED
    message = client.send("1", "hello")
    event = next(following)
    assert (event.kind, event.message, event.worker) == (EventKind.CYCLE_COMMITTED, message, system.name)
    row = wait_event(redis, agent, "cycle.committed")
    assert row == {
        "event": "cycle.committed",
        "room": "1",
        "message": f"{message}-0",
        "ticket": str(event.ticket),
        "worker": system.name,
        "attempt": "1",
    }


def test_a_worker_that_says_twice_that_it_leaves_has_left_once(client: Client, redis_url: str, keys: Keys) -> None:
    async def leave_twice() -> None:
        redis = connect(redis_url)
        store = Store(redis, keys)
        beat = await store.heartbeat("w", None, lease_ms=60_000, instance="i", about={})
        for _ in range(2):
            assert (await store.leave("w", beat.incarnation)).word == "ok"
        await store.close()
        await redis.aclose()

    asyncio.run(leave_twice())
    assert [event.kind for event in client.events()] == [EventKind.WORKER_JOINED, EventKind.WORKER_LEFT]
