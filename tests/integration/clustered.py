"""A Redis Cluster, started for tests and ended with them: real primaries, each with a third of the slots, and a replica."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis as redis_py
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from greenroom.protocol.keys import Keys
from integration.agents import eventually
from integration.replicated import Node

from helpers import unique

PRIMARIES = 3
LINES = (
    "cluster-enabled yes",
    "cluster-node-timeout 15000",  # nobody takes anybody for dead on a busy machine: a test that wants a fail-over orders it
    "save ''",
    "repl-diskless-sync yes",
    "repl-diskless-sync-delay 0",
)


def slot_of(agent: str) -> int:
    return int(key_slot(Keys(agent).root.encode()))


class Cluster:
    """Three primaries, and as many replicas of the first as were asked for."""

    def __init__(self, primaries: list[Node], replicas: list[Node]) -> None:
        self.primaries = primaries
        self.replicas = replicas

    @property
    def nodes(self) -> list[Node]:
        return self.primaries + self.replicas

    def url(self, *nodes: Node) -> str:
        """A cluster URL that names these nodes; by default all."""
        return "cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes or self.nodes)

    def agent_on(self, node: Node) -> str:
        """The name of an agent of this test's own whose slot this primary had in the beginning."""
        wanted = self.primaries.index(node)
        names = (unique("agent") for _ in itertools.count())
        return next(name for name in names if _share(slot_of(name)) == wanted)

    def take_over(self, replica: Node) -> None:
        """Make a replica the primary of its slots, without asking the others; wait until all that live know."""
        ask(replica, "CLUSTER", "FAILOVER", "TAKEOVER")
        eventually(lambda: b"master" in ask(replica, "ROLE"), "the replica is a primary")


def _share(slot: int) -> int:
    return slot * PRIMARIES // REDIS_CLUSTER_HASH_SLOTS


def ask(node: Node, *words: Any) -> Any:
    """What the node answers, as bytes."""
    with redis_py.Redis(port=node.port, protocol=2, socket_timeout=10, **node.options) as plain:
        connection: Any = plain
        return connection.execute_command(*words, NEVER_DECODE=True)


def node_id(node: Node) -> bytes:
    return bytes(ask(node, "CLUSTER", "MYID"))


def _is_in(node: Node, count: int) -> bool:
    state = ask(node, "CLUSTER", "INFO")
    return b"cluster_state:ok" in state and b"cluster_known_nodes:%d\r" % count in state


@contextmanager
def clustered(folder: Path, *, replicas: int = 0, tls: Path | None = None, executable: Path | None = None) -> Iterator[Cluster]:
    """Three primaries that know one another, each with a third of the slots, and ``replicas`` of the first of them. With
    ``tls``, a folder of certificates, they speak nothing else, also to one another.
    """
    with ExitStack() as stack:
        lines = [*LINES, *(["tls-cluster yes"] if tls else [])]
        count = PRIMARIES + replicas
        nodes = [Node(folder, *lines, tls=tls, executable=executable) for _ in range(count)]
        for node in nodes:
            stack.callback(node.kill)
            node.start()
        for number, node in enumerate(nodes[:PRIMARIES]):
            ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            mine = [slot for slot in range(REDIS_CLUSTER_HASH_SLOTS) if _share(slot) == number]
            ask(node, "CLUSTER", "ADDSLOTS", *mine)
        for node in nodes[1:]:
            ask(nodes[0], "CLUSTER", "MEET", "127.0.0.1", node.port)
        for node in nodes:
            eventually(lambda node=node: _is_in(node, len(nodes)), "the nodes know one another")  # type: ignore[misc]
        for node in nodes[PRIMARIES:]:
            ask(node, "CLUSTER", "REPLICATE", node_id(nodes[0]))
            eventually(lambda node=node: b"connected" in ask(node, "ROLE"), "the replica is in step")  # type: ignore[misc]
        yield Cluster(nodes[:PRIMARIES], nodes[PRIMARIES:])
