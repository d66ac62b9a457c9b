"""Agents in the slots of a Redis Cluster: each works where its slot is, follows it elsewhere, and outlives a fail-over."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from greenroom import ActorSystem, Client, Kind, RedisRefused
from greenroom.cli import execute
from greenroom.protocol.connect import check_server, connect
from greenroom.protocol.keys import Keys
from integration.agents import WAIT_S, Director, eventually, wait_for, wait_output
from integration.clustered import PRIMARIES, Cluster, ask, clustered, node_id, slot_of
from integration.replicated import Node

PATIENCE_S = 2 * WAIT_S
EACH_PRIMARY = pytest.mark.parametrize("number", range(PRIMARIES))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three primaries, for every test that ends none of them."""
    with clustered(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def warnings_of(url: str) -> list[str]:
    async def check() -> list[str]:
        redis = connect(url)
        try:
            return await check_server(redis)
        finally:
            await redis.aclose()

    return asyncio.run(check())


def agent_keys(node: Node, agent: str) -> list[bytes]:
    return list(ask(node, "KEYS", f"{Keys(agent).root}*"))


# Where an agent is. ---------------------------------------------------------------------------------------


@EACH_PRIMARY
def test_an_agent_works_on_the_node_of_its_slot_whichever_nodes_are_named(
    cluster: Cluster, director: Director, number: int
) -> None:
    node, other = cluster.primaries[number], cluster.primaries[number - 1]
    agent = cluster.agent_on(node)
    with (
        ActorSystem(director.agent(), agent=agent, redis=cluster.url(other)),
        Client(agent, redis=cluster.url(other), timeout=PATIENCE_S) as client,
    ):
        assert client.ask("42", "hello") == "hello"
        client.send("42", "wait")
        run = director.run("42")
        client.stop("42", reason="a test")
        run.wait_cancelled()
        client.send("42", "after")
        client.play("42")
        director.run("42").finish("replayed")
        wait_output(client, "42", lambda output: output.body == "after")
        assert [output.body for output in client.outputs("42") if output.kind is Kind.REPLY] == ["hello", "replayed", "after"]
        run_by_hand = client.send("43", "wait")
        director.run("43")
        ask(node, "XADD", Keys(agent).control, "*", "mode", "interrupt", "room", "43", "message", run_by_hand)
        wait_output(client, "43", lambda output: output.final)
    assert len(agent_keys(node, agent)) > 5
    for elsewhere in cluster.primaries:
        assert elsewhere is node or agent_keys(elsewhere, agent) == []


@EACH_PRIMARY
def test_each_command_goes_to_the_node_of_the_agents_slot(
    cluster: Cluster, director: Director, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, url = cluster.agent_on(cluster.primaries[number]), cluster.url()

    def said(*command: str) -> str:
        code = execute([*command, "--redis", url])
        out, err = capsys.readouterr()
        assert (code, err) == (0, ""), command
        return out

    with ActorSystem(director.agent(), agent=agent, redis=url, name="w1"):
        assert said("ask", "42", "hello", "--agent", agent) == "hello\n"
        said("stop", "room-43", "--agent", agent)
        for command, words in (("status", "w1"), ("rooms", "room-43"), ("workers", "w1"), ("signals", "stop"), ("top", agent)):
            assert words in said(command, "--agent", agent)
        assert "cycle.committed" in said("tail", "--events", "--agent", agent)
        said("dead", "list", "--agent", agent)
        assert "room:room-43" in said("keys", agent, "--all")
        assert "whose fail-overs are followed" in said("doctor", agent)
        assert said("check", "--ready", "--agent", agent) == "ready: w1\n"


def test_agents_of_all_slots_work_at_once_through_one_url(cluster: Cluster, director: Director) -> None:
    agents = [cluster.agent_on(node) for node in cluster.primaries]
    with ExitStack() as stack:
        for agent in agents:
            stack.enter_context(ActorSystem(director.agent(), agent=agent, redis=cluster.url()))
        clients = [stack.enter_context(Client(agent, redis=cluster.url(), timeout=PATIENCE_S)) for agent in agents]
        for client in clients:
            for room in ("1", "2", "3"):
                client.send(room, client.agent)
        for client in clients:
            for room in ("1", "2", "3"):
                assert wait_output(client, room, lambda output: output.final).body == client.agent


def test_a_plain_url_works_on_the_node_of_the_slot_and_is_refused_clearly_on_another(
    cluster: Cluster, director: Director
) -> None:
    node, other, _ = cluster.primaries
    agent = cluster.agent_on(node)
    with ActorSystem(director.agent(), agent=agent, redis=node.url), Client(agent, redis=node.url) as client:
        assert client.ask("42", "x") == "x"
    assert "cluster:// URL" in " ".join(warnings_of(node.url))
    assert "cluster:// URL" not in " ".join(warnings_of(cluster.url()))
    with pytest.raises(RedisRefused, match="use a cluster:// URL"):
        ActorSystem(director.agent(), agent=agent, redis=other.url).start()
    with Client(agent, redis=other.url) as client, pytest.raises(RedisRefused, match="use a cluster:// URL"):
        client.send("42", "x")


@EACH_PRIMARY
def test_a_hint_that_a_room_has_sent_something_reaches_subscribers_of_every_node(
    cluster: Cluster, director: Director, number: int
) -> None:
    """As a reader who subscribes elsewhere may rely on: publications of a script go to all nodes."""
    agent = cluster.agent_on(cluster.primaries[0])
    with redis_py.Redis(port=cluster.primaries[number].port) as redis, redis.pubsub() as hints:
        hints.subscribe(Keys(agent).outbox("42"))
        assert hints.get_message(timeout=WAIT_S)["type"] == "subscribe"
        with (
            ActorSystem(director.agent(), agent=agent, redis=cluster.url()),
            Client(agent, redis=cluster.url(), timeout=PATIENCE_S) as client,
        ):
            assert client.ask("42", "x") == "x"
            assert hints.get_message(timeout=WAIT_S)["type"] == "message"


def test_what_ends_leaves_no_connection_to_any_node(cluster: Cluster, director: Director) -> None:
    agent = cluster.agent_on(cluster.primaries[1])

    def others() -> int:  # all but this test's own connections and those of the nodes among themselves
        rows: list[Any] = [row for node in cluster.nodes for row in node.redis.client_list()]
        return -PRIMARIES + sum(1 for row in rows if row["flags"] in ("N", "b", "P") and row["cmd"] != "client|list")

    for node in cluster.nodes:
        node.redis.ping()
    before = others()
    with (
        ActorSystem(director.agent(), agent=agent, redis=cluster.url()),
        Client(agent, redis=cluster.url(), timeout=PATIENCE_S) as client,
    ):
        assert client.ask("42", "x") == "x"
        assert others() >= before + 5
    eventually(lambda: others() <= before, "all connections are closed")


# A slot that is moved. --------------------------------------------------------------------------------------


class Move:
    """Moves the slot of an agent from one primary to another, key by key, in the worst order: the agent's own key last."""

    def __init__(self, cluster: Cluster, agent: str, source: Node, target: Node) -> None:
        self.cluster, self.agent, self.source, self.target = cluster, agent, source, target
        self.slot = slot_of(agent)

    def begin(self) -> None:
        ask(self.target, "CLUSTER", "SETSLOT", self.slot, "IMPORTING", node_id(self.source))
        ask(self.source, "CLUSTER", "SETSLOT", self.slot, "MIGRATING", node_id(self.target))

    def move_keys(self, most: int = 10_000) -> int:
        """Move so many keys; answer how many are left."""
        keys = sorted(agent_keys(self.source, self.agent), key=len, reverse=True)
        for key in keys[:most]:
            ask(self.source, "MIGRATE", "127.0.0.1", self.target.port, key, 0, 5000)
        return max(0, len(keys) - most)

    def end(self) -> None:
        for node in (self.target, self.source):
            ask(node, "CLUSTER", "SETSLOT", self.slot, "NODE", node_id(self.target))


def test_a_slot_is_moved_under_load_and_every_message_is_handled_once_and_in_order(
    cluster: Cluster, director: Director
) -> None:
    source, target, _ = cluster.primaries
    agent, rooms, count = cluster.agent_on(source), [f"room-{number}" for number in range(4)], 60
    move = Move(cluster, agent, source, target)
    a_third, accepted = threading.Event(), dict[str, list[int]]()

    def send(room: str) -> None:
        accepted[room] = []
        with Client(agent, redis=cluster.url(), timeout=PATIENCE_S) as client:
            for number in range(count):
                accepted[room].append(client.send(room, number))
                if number == count // 3:
                    a_third.set()

    with ExitStack() as stack:
        system = stack.enter_context(ActorSystem(director.agent(max_attempts=1), agent=agent, redis=cluster.url()))
        client = stack.enter_context(Client(agent, redis=cluster.url(), timeout=PATIENCE_S))
        client.send("held", "wait")
        held = director.run("held")
        senders = [threading.Thread(target=send, args=(room,)) for room in rooms]
        for sender in senders:
            sender.start()
        wait_for(a_third, "a third is sent")
        move.begin()
        while move.move_keys(most=3):
            pass
        eventually(lambda: not system._store.pipeline.connected, "the worker is told that the slot is moved")
        move.end()
        for sender in senders:
            sender.join(PATIENCE_S)
        for room in rooms:
            wait_output(client, room, lambda output: output.kind is Kind.REPLY and output.body == count - 1)
            replies = [(o.message, o.body) for o in client.outputs(room) if o.kind is Kind.REPLY]
            assert [body for _, body in replies] == list(range(count))
            assert [message for message, _ in replies] == accepted[room]
        assert client.overview().dead == 0
        client.stop("held")  # control has followed, too
        held.wait_cancelled()
        assert system.wait(0) is False
    assert agent_keys(source, agent) == []


def test_a_worker_and_a_client_wait_while_their_slot_is_neither_here_nor_there(cluster: Cluster, director: Director) -> None:
    source, _, target = cluster.primaries
    agent = cluster.agent_on(source)
    move = Move(cluster, agent, source, target)
    with (
        ActorSystem(director.agent(), agent=agent, redis=cluster.url()) as system,
        Client(agent, redis=cluster.url(), timeout=PATIENCE_S) as client,
    ):
        assert client.ask("42", "x") == "x"
        move.begin()
        eventually(lambda: not system._store.pipeline.connected, "the worker is told that the slot is moved")
        before = {node: agent_keys(node, agent) for node in (source, target)}
        asked: list[str] = []
        asking = threading.Thread(target=lambda: asked.append(client.ask("43", "y", timeout=PATIENCE_S)))
        asking.start()
        eventually(lambda: not client._client._store.pipeline.connected, "the client is told, too")
        assert {node: agent_keys(node, agent) for node in (source, target)} == before  # no script has begun on either
        assert move.move_keys() == 0
        move.end()
        asking.join(PATIENCE_S)
        assert asked == ["y"]


# A primary that is lost. ------------------------------------------------------------------------------------


@pytest.fixture
def with_replica(tmp_path: Path) -> Iterator[Cluster]:
    with clustered(tmp_path, replicas=1) as cluster:
        yield cluster


@pytest.mark.parametrize("hangs", [False, True], ids=["killed", "hanging"])
def test_work_goes_on_after_a_fail_over_control_included(with_replica: Cluster, director: Director, hangs: bool) -> None:
    """row 40"""
    primary, [replica] = with_replica.primaries[0], with_replica.replicas
    agent = with_replica.agent_on(primary)
    with ExitStack() as stack:
        system = stack.enter_context(ActorSystem(director.agent(), agent=agent, redis=with_replica.url(primary)))
        client = stack.enter_context(Client(agent, redis=with_replica.url(primary), timeout=PATIENCE_S))
        assert client.ask("42", "before") == "before"
        client.send("43", "wait")
        run = director.run("43")
        with redis_py.Redis(port=primary.port) as plain, plain.client() as same:
            same.ping()
            assert same.execute_command("WAIT", 1, 5000) == 1
        primary.suspend() if hangs else primary.kill()
        with_replica.take_over(replica)
        assert client.ask("42", "after") == "after"
        client.stop("43")
        run.wait_cancelled()
        assert system.wait(0) is False
        if hangs:  # it believes to be the primary for a moment; nobody goes back to it
            primary.resume()
            assert client.ask("42", "at last") == "at last"
    with Client(agent, redis=with_replica.url(replica), timeout=PATIENCE_S) as client:
        replies = [output.body for output in client.outputs("42") if output.kind is Kind.REPLY]
        assert replies == ["before", "after", *(["at last"] if hangs else [])]
        assert client.status("43").hold is not None


def test_a_system_that_is_stopped_while_no_node_answers_ends(with_replica: Cluster, director: Director) -> None:
    agent = with_replica.agent_on(with_replica.primaries[0])
    system = ActorSystem(director.agent(), agent=agent, redis=with_replica.url()).start()
    for node in with_replica.nodes:
        node.kill()
    eventually(lambda: not system._store.pipeline.connected, "the worker is told")
    system.stop(timedelta(0))
    assert system.wait(0) is True
