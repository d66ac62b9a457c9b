"""``durability=``: a send or a signal returns when replicas have it, or says that they have not; and what it costs whom."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from greenroom import (
    ActorSystem,
    AsyncClient,
    Client,
    Conflict,
    Durability,
    InvalidRequest,
    Kind,
    MessageProcessing,
    NotFound,
    NotReplicated,
    Outcome,
    QueueFull,
    RedisUnavailable,
)
from greenroom.protocol.keys import Keys
from greenroom.protocol.pipeline import BATCH
from integration.agents import WAIT_S, Director, eventually, wait_output
from integration.replicated import Node, is_online, replicated

SOON = Durability(timeout=timedelta(milliseconds=50))
LATE = Durability(timeout=timedelta(seconds=5))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    with replicated(tmp_path) as nodes:
        yield nodes


@pytest.fixture
def primary(pair: tuple[Node, Node]) -> Node:
    return pair[0]


@pytest.fixture
def replica(pair: tuple[Node, Node]) -> Node:
    return pair[1]


def client_of(primary: Node, agent: str, durability: Durability | None = SOON, **options: Any) -> Client:
    return Client(agent, redis=primary.url, durability=durability, **options)


def waits(primary: Node) -> int:
    """How many WAITs this Redis has had."""
    stats: Any = primary.redis.info("commandstats")
    return int(stats.get("cmdstat_wait", {}).get("calls", 0))


def queued(node: Node, agent: str, room: str = "42") -> list[str]:
    """The ids of the messages in the queue."""
    entries: Any = node.redis.xrange(Keys(agent).messages(room))
    return [entry for entry, _ in entries]


def test_what_has_returned_is_on_the_replica(primary: Node, replica: Node, agent: str) -> None:
    with client_of(primary, agent, LATE) as client:
        for number in range(20):
            client.send("42", number)
            assert len(queued(replica, agent)) == number + 1
        client.stop("42")
        assert replica.redis.hget(Keys(agent).room("42"), "mode") == "stop"


@pytest.mark.parametrize("how", ["killed", "hanging"])
def test_a_send_that_no_replica_confirms_says_so_and_is_in_the_queue(
    primary: Node, replica: Node, agent: str, how: str
) -> None:
    replica.kill() if how == "killed" else replica.suspend()
    with client_of(primary, agent) as client:
        with pytest.raises(NotReplicated, match="confirmed by 0 of 1 replicas") as short:
            client.send("42", "x")
        assert short.value.confirmed == 0
        assert queued(primary, agent) == [f"{short.value.answer}-0"]
        with pytest.raises(NotReplicated):
            client.ask("42", "y")
        assert len(queued(primary, agent)) == 2


def test_a_signal_that_no_replica_confirms_says_so_and_is_applied(
    primary: Node, replica: Node, agent: str, director: Director
) -> None:
    with ActorSystem(director.agent(), agent=agent, redis=primary.url), client_of(primary, agent) as client:
        client.send("42", "wait")
        run = director.run("42")
        replica.suspend()
        with pytest.raises(NotReplicated) as short:
            client.stop("42")
        assert [receipt.outcome for receipt in short.value.answer] == [Outcome.APPLIED]
        run.wait_cancelled()
        assert client.status("42").hold is not None


def test_a_call_that_is_repeated_when_replicas_are_back_is_confirmed_and_applied_once(
    primary: Node, replica: Node, agent: str
) -> None:
    with client_of(primary, agent, LATE) as patient, client_of(primary, agent) as client:
        replica.suspend()
        with pytest.raises(NotReplicated) as sent:
            client.send("42", "x", key="one")
        with pytest.raises(NotReplicated) as stopped:
            client.stop("42", cid="two")
        with pytest.raises(NotReplicated):  # not even when the repetition itself writes nothing
            client.send("42", "x", key="one")
        replica.resume()
        assert patient.send("42", "x", key="one") == sent.value.answer
        assert patient.stop("42", cid="two") == stopped.value.answer
        assert len(queued(primary, agent)) == len(queued(replica, agent)) == 1


def test_a_call_that_changes_nothing_raises_what_it_raises_without_a_replica(
    primary: Node, replica: Node, agent: str, director: Director
) -> None:
    with client_of(primary, agent, LATE, queue_limit=1) as client:
        client.send("full", "x", key="key")
        client.stop("full", cid="cid")
    replica.suspend()
    with client_of(primary, agent, queue_limit=1) as client:
        refused: list[tuple[type[Exception], Callable[[], object]]] = [
            (QueueFull, lambda: client.send("full", "y")),
            (Conflict, lambda: client.send("other", "x", key="key")),
            (Conflict, lambda: client.play("full", cid="cid")),
            (NotFound, lambda: client.discard("full", 99)),
            (NotFound, lambda: client.requeue("1-1")),
            (NotFound, lambda: client.drop("1-1")),
        ]
        for error, call in refused:
            with pytest.raises(error):
                call()


def test_discard_requeue_and_drop_are_confirmed_too(primary: Node, replica: Node, agent: str, director: Director) -> None:
    with (
        ActorSystem(director.agent(max_attempts=1), agent=agent, redis=primary.url),
        client_of(primary, agent) as client,
        client_of(primary, agent, None) as plain,
    ):
        for room in ("dead", "dropped"):
            plain.send(room, "fail")
            wait_output(plain, room, lambda output: output.kind is Kind.DEAD)
        letter, dropped = plain.dead_letters()
        plain.send("42", "wait")
        run = director.run("42")
        message = plain.send("42", "next")
        replica.suspend()
        with pytest.raises(NotReplicated):
            client.discard("42", message)
        assert plain.status("42").waiting == 1
        with pytest.raises(NotReplicated) as short:
            client.requeue(letter.id)
        assert short.value.answer[0] == "dead"
        with pytest.raises(NotReplicated):
            client.drop(dropped.id)
        assert dropped.id not in [each.id for each in plain.dead_letters()]
        with pytest.raises(MessageProcessing):
            client.discard("42", run.message.id)
        run.finish()


def test_one_wait_serves_all_that_is_sent_together(primary: Node, agent: str) -> None:
    async def test() -> None:
        async with AsyncClient(agent, redis=primary.url, durability=LATE) as client:
            await client.send("42", "connects")
            before = waits(primary)
            await asyncio.gather(*[client.send("42", number) for number in range(2 * BATCH)])
            assert waits(primary) - before == 2

    asyncio.run(test())
    assert len(queued(primary, agent)) == 2 * BATCH + 1


def test_nobody_waits_who_did_not_ask_for_it(primary: Node, replica: Node, agent: str, director: Director) -> None:
    replica.suspend()
    with ActorSystem(director.agent(), agent=agent, redis=primary.url), client_of(primary, agent, None) as client:
        assert client.ask("42", "x") == "x"
        client.stop("42")
        client.play("42")
    with client_of(primary, agent) as client:
        client.status("42")
        assert client.overview().rooms == 0
    assert waits(primary) == 0


def cut_waiting(primary: Node) -> bool:
    """Cut the connections on which a WAIT blocks; answer whether there was one."""
    rows: list[Any] = [row for row in primary.redis.client_list() if row["cmd"] == "wait"]
    for row in rows:
        primary.redis.client_kill_filter(_id=row["id"])
    return bool(rows)


def test_a_connection_cut_during_the_wait_repeats_the_requests_and_applies_them_once(
    primary: Node, replica: Node, agent: str
) -> None:
    async def test() -> None:
        async with asyncio.timeout(WAIT_S), AsyncClient(agent, redis=primary.url, durability=LATE) as client:
            await client.send("42", 0)
            await asyncio.to_thread(replica.suspend)
            calls: list[Awaitable[Any]] = [client.send("42", number) for number in range(1, 6)]
            calling = asyncio.gather(*calls, client.stop("42", cid="one"), client.send("42", 6))
            for _ in range(2):
                await asyncio.to_thread(eventually, lambda: cut_waiting(primary), "a WAIT is cut")
            assert not calling.done()
            await asyncio.to_thread(replica.resume)
            *sent, receipts, last = await calling
            assert [*sent, last] == sorted([*sent, last])
            assert [receipt.outcome for receipt in receipts] == [Outcome.APPLIED]

    asyncio.run(test())
    assert len(queued(primary, agent)) == len(queued(replica, agent)) == 7


def test_a_primary_lost_during_the_wait_fails_the_call_after_its_timeout(primary: Node, replica: Node, agent: str) -> None:
    with client_of(primary, agent, LATE, timeout=0.5) as client:
        client.send("42", "x")
        replica.suspend()
        failed: list[Exception] = []

        def send() -> None:
            try:
                client.send("42", "y")
            except Exception as error:
                failed.append(error)

        sending = threading.Thread(target=send)
        sending.start()
        eventually(lambda: any(row["cmd"] == "wait" for row in primary.redis.client_list()), "a WAIT blocks")
        primary.kill()
        sending.join(WAIT_S)
        assert [type(error) for error in failed] == [RedisUnavailable]


def test_a_replica_that_comes_back_is_enough(primary: Node, replica: Node, agent: str) -> None:
    replica.kill()
    with client_of(primary, agent) as client, pytest.raises(NotReplicated):
        client.send("42", "x")
    replica.start()
    eventually(lambda: is_online(primary), "the replica is in step")
    with client_of(primary, agent, LATE) as client:
        client.send("42", "y")
        assert len(queued(replica, agent)) == 2


def test_fewer_replicas_than_asked_for_are_counted(primary: Node, agent: str) -> None:
    durability = Durability(replicas=2, timeout=timedelta(seconds=1))
    with client_of(primary, agent, durability) as client, pytest.raises(NotReplicated, match="1 of 2") as short:
        client.send("42", "x")
    assert short.value.confirmed == 1


@pytest.mark.parametrize("replicas", [0, -1, True, 1.0, "1"])
def test_replicas_that_are_no_number_of_replicas_are_refused(replicas: Any) -> None:
    with pytest.raises(InvalidRequest, match="replicas: want"):
        Durability(replicas=replicas)


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(microseconds=900), timedelta(seconds=6), 0.5])
def test_timeouts_that_cannot_be_used_are_refused(timeout: Any) -> None:
    with pytest.raises(InvalidRequest, match="timeout: want"):
        Durability(timeout=timeout)


def test_a_durability_that_is_none_is_refused(agent: str) -> None:
    with pytest.raises(InvalidRequest, match="durability: want"):
        Client(agent, durability=1)  # type: ignore[arg-type]
