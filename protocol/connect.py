"""From a URL to connections, with redis-py's errors translated at this one edge."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

from redis import exceptions as redis_errors
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from .cluster import ClusterPool, is_elsewhere
from .errors import InvalidRequest, RedisError, RedisRefused, RedisUnavailable
from .primary import PrimaryPool

CONNECT_TIMEOUT_S = 5.0
ASK_TIMEOUT_S = 0.5  # for one Sentinel, or one node of a cluster: the next one is asked after that
SENTINEL_PORT, REDIS_PORT = 26379, 6379
SENTINEL_SCHEME, CLUSTER_SCHEME = "sentinel://", "cluster://"
MINIMUM_VERSION = (6, 2)

# Lost, going away, loading its data, or demoted to a replica: connect again and repeat. All requests are safe to repeat.
LOST = (
    redis_errors.ConnectionError,
    redis_errors.TimeoutError,
    redis_errors.ReadOnlyError,
    redis_errors.BusyLoadingError,
    redis_errors.ClusterDownError,  # and MasterDownError
    redis_errors.TryAgainError,
    OSError,
    TimeoutError,
)
# The same, where the reply is of no class of its own: what a script ran into (Redis 6.2 puts it into the script's error), a
# blocking read or WAIT that a demotion ended or came too late for, a primary that must not write without its replicas.
_LOST_WORDS = re.compile(
    r"(?:^|-)(?:READONLY|NOREPLICAS|MASTERDOWN|UNBLOCKED|CLUSTERDOWN|TRYAGAIN) |WAIT cannot be used with replica"
)
# Subclasses of ConnectionError that no repetition mends.
DENIED = (redis_errors.AuthenticationError, redis_errors.AuthorizationError)


def is_lost(error: BaseException) -> bool:
    """Whether the server is gone, or no longer one that writes: connect again and repeat."""
    if isinstance(error, LOST):
        return True
    return isinstance(error, redis_errors.ResponseError) and _LOST_WORDS.search(str(error)) is not None


def connect(url: str, key: str = "") -> Redis:
    """A client that never retries by itself and never blocks to connect.

    The URL is ``redis://``, ``rediss://`` or ``unix://``, or ``sentinel://[user:password@]host[:26379][,host…]/<name>[/db]``:
    connections then go to the current primary of that name. User and password are for Redis; the Sentinels get none. Or it is
    ``cluster://[user:password@]host[:6379][,host…]`` with some nodes of a cluster: connections then go to the current primary
    of the slot of ``key``, and user and password are for all nodes.

    Raises:
        InvalidRequest: the URL is not one.
    """
    options: dict[str, Any] = {
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_timeout": None,  # time limits stand where the waiting is done: a blocking read is not a hang
        "socket_keepalive": True,
        "decode_responses": False,
    }
    try:
        if url.startswith(SENTINEL_SCHEME):
            return _connect_sentinel(url.removeprefix(SENTINEL_SCHEME), options)
        if url.startswith(CLUSTER_SCHEME):
            return _connect_cluster(url.removeprefix(CLUSTER_SCHEME), options, key)
        return Redis.from_url(url, **options)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"not a Redis URL: {without_password(url)} ({error})") from None


def _connect_sentinel(rest: str, options: dict[str, Any]) -> Redis:
    authority, _, path = rest.partition("/")
    access, sentinels = _authority(authority, SENTINEL_PORT)
    name, _, db = path.partition("/")
    if not re.fullmatch(r"[^?#/]+", name) or not re.fullmatch(r"[0-9]*", db):
        raise ValueError("want /<name of the primary>, or /<name>/<number of the database>")
    asked = Sentinel(sentinels, sentinel_kwargs=_asking())  # type: ignore[no-untyped-call]
    return Redis.from_pool(PrimaryPool(unquote(name), asked, **options, **access, db=int(db or 0)))


def _connect_cluster(rest: str, options: dict[str, Any], key: str) -> Redis:
    authority, _, path = rest.partition("/")
    if path:
        raise ValueError("a cluster has no names and no numbered databases")
    access, seeds = _authority(authority, REDIS_PORT)
    return Redis.from_pool(ClusterPool(key, seeds, {**_asking(), **access}, **options, **access))


def _asking() -> dict[str, Any]:
    """Options of connections to who knows the primary."""
    limits = {"socket_connect_timeout": ASK_TIMEOUT_S, "socket_timeout": ASK_TIMEOUT_S}
    return {"protocol": 2, "retry": Retry(NoBackoff(), 0), **limits}


def _authority(text: str, port: int) -> tuple[dict[str, str | None], list[tuple[str, int]]]:
    """User and password, and the hosts with their ports, by default ``port``."""
    login, _, hosts = text.rpartition("@")
    user, _, password = map(unquote, login.partition(":"))
    named = [(split.hostname or "", split.port or port) for split in (urlsplit(f"//{host}") for host in hosts.split(","))]
    if not all(host for host, _ in named):
        raise ValueError("want a host between the commas")
    return {"username": user or None, "password": password or None}, named


def without_password(url: str) -> str:
    """The URL as it may be shown: with any password replaced."""
    try:
        if not url.startswith((SENTINEL_SCHEME, CLUSTER_SCHEME)):  # whether urlsplit takes several hosts depends on the Python
            urlsplit(url)
    except ValueError:
        return "(a URL that cannot be read)"
    shown = re.sub(r"(?<=://)([^/?#:@]*):[^/?#]*@", r"\1:***@", url, count=1)
    return re.sub(r"(?<=[?&]password=)[^&#]*", "***", shown)


def translate(error: BaseException) -> RedisError:
    """The greenroom error for one that redis-py raised."""
    message = str(error).rstrip(".") or type(error).__name__
    if isinstance(error, DENIED) or "NOAUTH" in message or "WRONGPASS" in message or "NOPERM" in message:
        return RedisRefused(f"Redis refuses access: {message}. Check the URL's user and password, and the ACL")
    if is_elsewhere(error) and not is_lost(error):
        return RedisRefused(f"Redis is a cluster, and another of its nodes has this agent: use a cluster:// URL ({message})")
    if is_lost(error):
        return RedisUnavailable(f"Redis cannot be reached: {message}. Check the URL, and that the server runs")
    return RedisRefused(f"Redis refuses: {message}")


@asynccontextmanager
async def open_connection(redis: Redis) -> AsyncIterator[AbstractConnection]:
    """One connection of one's own, for what a pool's borrow-and-return does not fit: pipelines and blocking reads.

    With Sentinels or a cluster it is cut as soon as another primary is named, even if the former hangs or does not know yet.
    """
    pool = redis.connection_pool
    connection: Any = pool.make_connection()  # type: ignore[no-untyped-call]
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):  # redis-py limits the socket's connect only, not what it says then
            await connection.connect()
        if isinstance(pool, PrimaryPool):
            pool.follow(connection)
        yield connection
    finally:
        if isinstance(pool, PrimaryPool):
            pool.leave(connection)
        # Drops the socket without a handshake: cancellation must not wait for a server that is gone.
        if connection._writer is not None:
            connection._writer.transport.abort()
        connection._close()


async def check_server(redis: Redis) -> list[str]:
    """Refuse a server that cannot keep greenroom's promises; return warnings about one that keeps them less well.

    Raises:
        RedisUnavailable: not reached.
        RedisRefused: no access, older than 6.2, or with an eviction policy that drops keys.
    """
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            info = await redis.info("everything")
    except Exception as error:
        raise translate(error) from None
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2]) < MINIMUM_VERSION:
        raise RedisRefused(f"Redis {version} is too old: greenroom needs 6.2 or newer")
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory") and policy != "noeviction":
        raise RedisRefused(f"Redis may drop keys (maxmemory-policy {policy}): set it to noeviction")
    warnings = []
    if not info.get("aof_enabled"):
        warnings.append(
            "Redis keeps no append-only file: a restart of it forgets what came after its last snapshot, stops included"
        )
    if info.get("cluster_enabled") and not isinstance(redis.connection_pool, ClusterPool):
        warnings.append("Redis is a cluster: with a cluster:// URL its fail-overs would be followed")
    return warnings


async def back_off(failures: int, *, first_s: float = 0.05, most_s: float = 2.0) -> None:
    """Sleep before the next attempt to connect: exponential, with full jitter, and 2 s at the most."""
    await asyncio.sleep(random.uniform(0.2, 1.0) * min(most_s, first_s * 2 ** min(failures, 10)))
