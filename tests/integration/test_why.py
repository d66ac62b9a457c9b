"""Why does it not answer? What an ask that ran out of time, and ``greenroom status ROOM``, say of it."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path

import pytest
import redis as redis_py

from greenroom import AskTimeout, Backoff, Client, Phase
from greenroom.protocol import codec
from greenroom.protocol.connect import connect
from greenroom.protocol.keys import Keys
from greenroom.protocol.store import Store
from integration.agents import WAIT_S, Director, abandon, eventually, wait_output
from integration.command import Shell
from integration.conftest import Running
from pages import rows

from helpers import unique

HOUR = timedelta(hours=1)
LATE_S = 0.05


def told(client: Client, body: str = "hello", key: str | None = None) -> str:
    """What an ask of room 42 says when it is not answered in time."""
    key, late_s = key or unique("key"), LATE_S
    while late_s < WAIT_S:  # on a busy machine it takes longer to send it, or to find out why it waits
        with pytest.raises(AskTimeout) as late:
            client.ask("42", body, timeout=late_s, key=key)
        if "the message stays in its queue: " in str(late.value):
            return str(late.value)
        late_s *= 2
    raise AssertionError(f"it does not say why: {late.value}")


def why(shell: Shell) -> str:
    facts = dict(line.split(": ", 1) for line in shell("status", "42")[0].splitlines())
    return facts.get("why", "")


def test_that_no_worker_runs(client: Client, shell: Shell) -> None:
    assert f"no worker of the agent {client.agent} is running" in told(client)
    assert why(shell) == f"no worker of the agent {client.agent} is running"


def test_that_the_room_is_held_by_whom_and_why(running: Running, director: Director, client: Client, shell: Shell) -> None:
    running(director.agent())
    client.stop("42", by="ann", reason="wrong answers")
    assert "the room is held until play: stop by ann at 20" in told(client)
    assert why(shell).endswith("Z, because: wrong answers")


def test_that_the_whole_agent_is_held(running: Running, director: Director, client: Client, shell: Shell) -> None:
    running(director.agent())
    client.pause(everywhere=True, by="ann")
    assert "the whole agent is held until play: pause by ann at 20" in told(client)
    assert why(shell).startswith("the whole agent is held")


def test_that_its_cycle_runs_and_where_or_that_of_a_message_before_it(
    running: Running, director: Director, client: Client, shell: Shell
) -> None:
    name = unique("worker")
    running(director.agent(), name=name)
    client.send("42", "wait", key=(key := unique("key")))
    director.run("42")
    assert ": its cycle has been running since 20" in (said := told(client, "wait", key))
    assert f"Z on worker {name} (process " in said
    first = client.status("42").processing
    assert f": message {first} is before it: its cycle has been running since 20" in told(client)
    assert why(shell).startswith("its cycle has been running since 20")


def test_that_all_workers_are_at_work_elsewhere(running: Running, director: Director, client: Client, shell: Shell) -> None:
    running(director.agent(), max_rooms=1)
    client.send("other", "wait")
    director.run("other")
    assert ": no worker has taken the room yet" in told(client)
    assert why(shell) == "no worker has taken the room yet"


def test_that_it_failed_of_what_and_when_it_is_tried_again(
    running: Running, director: Director, client: Client, shell: Shell
) -> None:
    running(director.agent(retry=Backoff(first=HOUR, most=HOUR)))
    message = client.send("42", "fail: out of luck")
    eventually(lambda: client.status("42").phase is Phase.BACKOFF, "it waits for its retry")
    assert (
        f": message {message} is before it: attempt 1 failed (RuntimeError: fail: out of luck), and it is tried again at 20"
        in told(client)
    )
    assert why(shell).startswith("attempt 1 failed (RuntimeError: fail: out of luck)")


def test_that_this_worker_is_too_old_for_it(
    running: Running, director: Director, client: Client, shell: Shell, redis: redis_py.Redis, keys: Keys
) -> None:
    redis.set(keys.state("42"), codec.encode([2, {"count": 7}]))
    running(director.agent())
    client.send("42", "hello")
    cannot = "it cannot be begun (the state is of version 2, this agent knows 1: upgrade this worker), and it is tried again"
    eventually(lambda: why(shell).startswith(cannot), "it is put off, with no attempt charged")


def test_that_the_worker_at_it_is_gone(
    running: Running, director: Director, client: Client, shell: Shell, redis_url: str, keys: Keys
) -> None:
    name = unique("worker")
    system = running(director.agent(), name=name, lease=timedelta(seconds=1))
    client.send("42", "wait")
    director.run("42")
    abandon(system)
    eventually(lambda: not any(worker.alive for worker in client.workers()), "its lease has run out")
    assert f"on worker {name}, which is gone: another one takes the room over" in told(client)
    assert f"on worker {name}, which is gone" in why(shell)

    async def adopt() -> None:
        plain = connect(redis_url)
        store = Store(plain, keys)
        assert await store.adopt("another", 10) == 1
        await store.close()
        await plain.aclose()

    asyncio.run(adopt())
    assert "on a worker, which is gone: another one takes the room over" in told(client)


def test_a_room_without_work_says_what_it_has_said_last(
    running: Running, director: Director, client: Client, shell: Shell
) -> None:
    running(director.agent(max_attempts=1))
    assert "last" not in shell("status", "42")[0]
    message = client.send("42", "fail: out of luck")
    wait_output(client, "42", lambda output: output.final)
    out, _ = shell("status", "42")
    assert "why: " not in out
    assert f"last: dead of message {message} at 20" in out
    assert out.rstrip().endswith("RuntimeError: fail: out of luck")


def test_an_output_that_greenroom_did_not_write_is_none(
    client: Client, shell: Shell, redis: redis_py.Redis, keys: Keys
) -> None:
    redis.xadd(keys.outbox("42"), {"kind": "nonsense"})
    assert client.last_output("42") is None
    assert "last" not in shell("status", "42")[0]


def test_what_the_page_on_operations_lists_is_tested_above() -> None:
    tested = Path(__file__).read_text().partition("def test_what_the_page")[0]
    told = [cells[1] for cells in rows("docs/operations.md", "It does not answer")]
    listed = [phrase for cell in told for phrase in re.findall(r"`status ROOM`: `([^`]+)`", cell)]
    assert len(listed) == 8
    for phrase in listed:
        assert all(part in tested for part in re.split(r" ?…,? ?", phrase)), phrase
