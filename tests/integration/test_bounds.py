"""What is bounded: how much a queue takes, and for how long anybody holds anything without being heard of."""

from __future__ import annotations

from datetime import timedelta

import pytest
import redis as redis_py

from greenroom import Client, QueueFull
from greenroom.protocol.keys import Keys
from integration.agents import Director, eventually
from integration.conftest import Running
from integration.receiver import Relaying

LIMIT = 3


def test_a_full_queue_refuses_the_next_message_and_loses_none_that_it_has_taken(
    running: Running, director: Director, client: Client, agent: str, redis_url: str
) -> None:
    """row 46"""
    running(director.agent())
    client.send("42", "wait")
    run = director.run("42")
    with Client(agent, redis=redis_url, queue_limit=LIMIT) as narrow:
        accepted = [narrow.send("42", number) for number in range(1, LIMIT)]  # the one in processing counts
        for _ in range(2):
            with pytest.raises(QueueFull, match="42"):
                narrow.send("42", "one too many")
        assert client.status("42").waiting == LIMIT == len(accepted) + 1
        assert narrow.send("other", "x")  # the queue of another room is its own
    run.finish("done")
    eventually(lambda: client.status("42").waiting == 0, "all have run")
    assert director.bodies("42") == ["wait", *range(1, LIMIT)]


def test_every_lease_runs_out_by_itself(
    running: Running, director: Director, relaying: Relaying, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """row 49"""
    lease = timedelta(seconds=30)
    running(director.agent(), name="worker", lease=lease)
    relaying(name="relay", lease=lease)
    client.send("42", "wait")
    director.run("42")
    left_ms = [redis.pttl(key) for key in (keys.worker("worker"), keys.relay("relay"))]
    assert all(0 < left <= 30_000 for left in left_ms), left_ms
