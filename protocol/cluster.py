"""A Redis Cluster: each agent is in one slot, and so on one node, whose primary its connections go to."""

from __future__ import annotations

import re
from typing import Any

from redis import exceptions as redis_errors
from redis.asyncio import Redis
from redis.asyncio.connection import SSLConnection
from redis.asyncio.sentinel import MasterNotFoundError, SentinelManagedConnection
from redis.crc import key_slot

from .primary import PrimaryPool
from .resets import guarded

Address = tuple[str, int]

# What a node says of a slot that it does not have, does not have any more, or has no leave to serve just now.
_ELSEWHERE = (
    redis_errors.MovedError,
    redis_errors.AskError,
    redis_errors.TryAgainError,
    redis_errors.ClusterDownError,
)
_ELSEWHERE_WORDS = re.compile(r"(?:MOVED|ASK|TRYAGAIN|CLUSTERDOWN) ")  # where redis-py has no class for it

_REFUSALS = (redis_errors.AuthenticationError, redis_errors.AuthorizationError, redis_errors.ResponseError)


def is_elsewhere(error: BaseException) -> bool:
    """Whether a node of a cluster says that another one is to be asked, or this one later."""
    if isinstance(error, _ELSEWHERE):
        return True
    return isinstance(error, redis_errors.ResponseError) and _ELSEWHERE_WORDS.match(str(error)) is not None


class NodeConnection(SentinelManagedConnection):
    """A connection to the primary, lost as soon as that says that it is the primary no more."""

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)
        except redis_errors.ResponseError as error:
            if is_elsewhere(error):
                raise redis_errors.ConnectionError(f"the cluster has it elsewhere: {error}") from None
            raise


class TlsNodeConnection(NodeConnection, SSLConnection):
    """The same over TLS."""


class Nodes:
    """Asks the nodes of a cluster who has a slot; in place of redis-py's ``Sentinel`` in its pool."""

    def __init__(self, seeds: list[Address], slot: int, **options: Any) -> None:
        self._seeds = seeds
        self._slot = slot
        self._options = options
        self._known: list[Address] = []
        self._primary: Address | None = None
        self._clients: dict[Address, Redis] = {}

    async def discover_master(self, _: str) -> Address:
        """The address of the slot's primary.

        The one that was it until now is asked last: cut off from the others, or just back, it would still believe to be it.

        Raises:
            MasterNotFoundError: no node that is reached knows one.
            AuthenticationError, ResponseError: one refuses to say, and no other knows one.
        """
        refusal: Exception | None = None
        asked = dict.fromkeys([*self._known, *self._seeds])
        for address in sorted(asked, key=lambda each: each == self._primary):
            try:
                rows = await self._ask(address)
            except _REFUSALS as error:
                refusal = error
                continue
            except (redis_errors.RedisError, OSError, TimeoutError):
                continue
            primary = self._learn(address, rows)
            if primary is not None:
                return primary
        raise refusal or MasterNotFoundError

    async def _ask(self, address: Address) -> list[Any]:
        """Which nodes have which slots, as this one believes; nothing when it knows that it is cut off."""
        if address not in self._clients:
            host, port = address
            self._clients[address] = guarded(Redis(host=host, port=port, **self._options))
        client: Any = self._clients[address]
        state = await client.execute_command("CLUSTER", "INFO")
        rows: list[Any] = await client.execute_command("CLUSTER", "SLOTS") if b"cluster_state:ok" in state else []
        return rows

    def _learn(self, asked: Address, rows: list[Any]) -> Address | None:
        found = None
        known = [asked]
        for first, last, *nodes in rows:
            addresses = [(_host(node[0]) or asked[0], int(node[1])) for node in nodes]
            known += addresses
            if first <= self._slot <= last:
                found = addresses[0]
        if found is not None:
            self._known, self._primary = list(dict.fromkeys(known)), found
        return found

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()


def _host(named: Any) -> str:
    """The host that a node is named by; empty when that is the one that was asked."""
    host = named.decode() if isinstance(named, bytes) else str(named or "")
    return "" if host == "?" else host


class ClusterPool(PrimaryPool):
    """Connections to the primary of the slot that ``key`` is in."""

    nobody = "no node of the cluster names a primary for {} that is up"

    def __init__(self, key: str, seeds: list[Address], node_options: dict[str, Any], **options: Any) -> None:
        nodes = Nodes(seeds, key_slot(key.encode()), **node_options)
        kind = TlsNodeConnection if options.get("ssl") else NodeConnection
        super().__init__(key, nodes, connection_class=kind, **options)
