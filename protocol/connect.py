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

from .errors import InvalidRequest, RedisError, RedisRefused, RedisUnavailable
from .primary import PrimaryPool

CONNECT_TIMEOUT_S = 5.0
SENTINEL_TIMEOUT_S = 0.5  # for one of them: the next one is asked after that
SENTINEL_PORT = 26379
SENTINEL_SCHEME = "sentinel://"
MINIMUM_VERSION = (6, 2)

# Lost, going away, loading its data, or demoted to a replica: connect again and repeat. All requests are safe to repeat.
LOST = (
    redis_errors.ConnectionError,
    redis_errors.TimeoutError,
    redis_errors.ReadOnlyError,
    redis_errors.BusyLoadingError,
    redis_errors.MasterDownError,
    OSError,
    TimeoutError,
)
# The same, where the reply is of no class of its own: what a script ran into (Redis 6.2 puts it into the script's error), a
# blocking read or WAIT that a demotion ended or came too late for, a primary that must not write without its replicas.
_LOST_WORDS = re.compile(r"(?:^|-)(?:READONLY|NOREPLICAS|MASTERDOWN|UNBLOCKED) |WAIT cannot be used with replica")
# Subclasses of ConnectionError that no repetition mends.
DENIED = (redis_errors.AuthenticationError, redis_errors.AuthorizationError)


def is_lost(error: BaseException) -> bool:
    """Whether the server is gone, or no longer one that writes: connect again and repeat."""
    if isinstance(error, LOST):
        return True
    return isinstance(error, redis_errors.ResponseError) and _LOST_WORDS.search(str(error)) is not None


def connect(url: str) -> Redis:
    """A client that never retries by itself and never blocks to connect.

    The URL is ``redis://``, ``rediss://`` or ``unix://``, or ``sentinel://[user:password@]host[:26379][,host…]/<name>[/db]``:
    connections then go to the current primary of that name. User and password are for Redis; the Sentinels get none.

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
        return Redis.from_url(url, **options)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"not a Redis URL: {without_password(url)} ({_reason(error, url)})") from None


def _connect_sentinel(rest: str, options: dict[str, Any]) -> Redis:
    authority, _, path = rest.partition("/")
    login, _, hosts = authority.rpartition("@")
    user, _, password = map(unquote, login.partition(":"))
    name, _, db = path.partition("/")
    sentinels = [urlsplit(f"//{host}") for host in hosts.split(",")]
    if not all(sentinel.hostname for sentinel in sentinels):
        raise ValueError("want a host for each Sentinel")
    if not re.fullmatch(r"[^?#/]+", name) or not re.fullmatch(r"[0-9]*", db):
        raise ValueError("want /<name of the primary>, or /<name>/<number of the database>")
    limits = {"socket_connect_timeout": SENTINEL_TIMEOUT_S, "socket_timeout": SENTINEL_TIMEOUT_S}
    asked = Sentinel(  # type: ignore[no-untyped-call]
        [(sentinel.hostname, sentinel.port or SENTINEL_PORT) for sentinel in sentinels],
        sentinel_kwargs={"protocol": 2, "retry": Retry(NoBackoff(), 0), **limits},
    )
    access = {"username": user or None, "password": password or None, "db": int(db or 0)}
    return Redis.from_pool(PrimaryPool(unquote(name), asked, **options, **access))


def without_password(url: str) -> str:
    """The URL as it may be shown: with any password replaced, also one that should have been escaped and was not."""
    try:
        if not url.startswith(SENTINEL_SCHEME):  # whether urlsplit takes several hosts depends on the Python
            urlsplit(url)
    except ValueError:
        return "(a URL that cannot be read)"
    shown = re.sub(r"^((?:[^:]*://|(?![^:]*://))[^:@]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(r"([?&]\w*password=)[^&]*", r"\1***", shown)


def _reason(error: Exception, url: str) -> str:
    """What an error says of a URL, without what it quotes, which may be a part of the password; but names of options stay."""

    def shown(quoted: re.Match[str]) -> str:
        return quoted[0] if re.search(rf"[?&]{re.escape(quoted[2])}=", url) else "…"

    return re.sub(r"(['\"])(.*)\1", shown, str(error), flags=re.DOTALL)


def translate(error: BaseException) -> RedisError:
    """The greenroom error for one that redis-py raised."""
    message = str(error).rstrip(".") or type(error).__name__
    if isinstance(error, DENIED) or "NOAUTH" in message or "WRONGPASS" in message or "NOPERM" in message:
        return RedisRefused(f"Redis refuses access: {message}. Check the URL's user and password, and the ACL")
    if is_lost(error):
        return RedisUnavailable(f"Redis cannot be reached: {message}. Check the URL, and that the server runs")
    return RedisRefused(f"Redis refuses: {message}")


@asynccontextmanager
async def open_connection(redis: Redis) -> AsyncIterator[AbstractConnection]:
    """One connection of one's own, for what a pool's borrow-and-return does not fit: pipelines and blocking reads.

    With Sentinels it is cut as soon as they name another primary, even if the former one hangs or does not know yet.
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
    if info.get("aof_enabled"):
        return []
    return ["Redis keeps no append-only file: a restart of it forgets what came after its last snapshot, stops included"]


async def back_off(failures: int, *, first_s: float = 0.05, most_s: float = 2.0) -> None:
    """Sleep before the next attempt to connect: exponential, with full jitter, and 2 s at the most."""
    await asyncio.sleep(random.uniform(0.2, 1.0) * min(most_s, first_s * 2 ** min(failures, 10)))
