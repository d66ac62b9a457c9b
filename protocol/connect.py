"""From a URL to connections, with redis-py's errors translated at this one edge."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from redis import exceptions as redis_errors
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from .errors import InvalidRequest, RedisError, RedisRefused, RedisUnavailable

CONNECT_TIMEOUT_S = 5.0
MINIMUM_VERSION = (6, 2)

# Lost, going away, loading its data, or demoted to a replica: connect again and repeat. All requests are safe to repeat.
LOST = (
    redis_errors.ConnectionError,
    redis_errors.TimeoutError,
    redis_errors.ReadOnlyError,
    redis_errors.BusyLoadingError,
    OSError,
    TimeoutError,
)
# Subclasses of ConnectionError that no repetition mends.
DENIED = (redis_errors.AuthenticationError, redis_errors.AuthorizationError)


def connect(url: str) -> Redis:
    """A client for ``redis://``, ``rediss://`` or ``unix://`` that never retries by itself and never blocks to connect.

    Raises:
        InvalidRequest: the URL is not one.
    """
    try:
        return Redis.from_url(
            url,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=None,  # time limits stand where the waiting is done: a blocking read is not a hang
            socket_keepalive=True,
            decode_responses=False,
        )
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"not a Redis URL: {without_password(url)} ({error})") from None


def without_password(url: str) -> str:
    """The URL as it may be shown: with any password replaced."""
    try:
        parts = urlsplit(url)
        if not parts.password:
            return url
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}"))
    except ValueError:
        return "(a URL that cannot be read)"


def translate(error: BaseException) -> RedisError:
    """The greenroom error for one that redis-py raised."""
    message = str(error).rstrip(".") or type(error).__name__
    if isinstance(error, DENIED) or "NOAUTH" in message or "WRONGPASS" in message or "NOPERM" in message:
        return RedisRefused(f"Redis refuses access: {message}. Check the URL's user and password, and the ACL")
    if isinstance(error, LOST):
        return RedisUnavailable(f"Redis cannot be reached: {message}. Check the URL, and that the server runs")
    return RedisRefused(f"Redis refuses: {message}")


@asynccontextmanager
async def open_connection(redis: Redis) -> AsyncIterator[AbstractConnection]:
    """One connection of one's own, for what a pool's borrow-and-return does not fit: pipelines and blocking reads."""
    connection: Any = redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    try:
        await connection.connect()
        yield connection
    finally:
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
    if info.get("aof_enabled"):
        return []
    return ["Redis keeps no append-only file: a restart of it forgets what came after its last snapshot, stops included"]


async def back_off(failures: int, *, first_s: float = 0.05, most_s: float = 2.0) -> None:
    """Sleep before the next attempt to connect: exponential, with full jitter, and 2 s at the most."""
    await asyncio.sleep(random.uniform(0.2, 1.0) * min(most_s, first_s * 2 ** min(failures, 10)))
