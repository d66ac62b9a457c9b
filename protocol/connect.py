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
from redis.asyncio.connection import AbstractConnection, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from .checks import Severity, server_findings
from .errors import InvalidRequest, RedisError, RedisRefused, RedisUnavailable
from .primary import PrimaryPool

DEFAULT_REDIS = "redis://127.0.0.1:6379/0"
CONNECT_TIMEOUT_S = 5.0
SENTINEL_TIMEOUT_S = 0.5  # for one of them: the next one is asked after that
SENTINEL_PORT = 26379
SENTINEL_SCHEMES = ("sentinel://", "sentinels://")

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
# What a user may not do, also where a script ran into it.
_DENIED_WORDS = re.compile(r"NOAUTH|WRONGPASS|NOPERM|ACL failure in script|user executing the script can't")
# A certificate that does not convince, and why; and a server that hangs up, as one does to whom TLS is spoken wrongly.
_UNTRUSTED_WORDS = re.compile(r"certificate verify failed: (.*?)\.?(?: \(_ssl|$)")
_CUT_WORDS = re.compile(r"reset by peer|closed by server|Connection lost|[Bb]roken pipe|alert|EOF occurred")
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
    ``rediss://`` and ``sentinels://`` are TLS, to Sentinels as to Redis; the certificates are options of the URL:
    ``?ssl_ca_certs=FILE&ssl_certfile=FILE&ssl_keyfile=FILE``.

    Raises:
        InvalidRequest: the URL is not one, or a file that it names cannot be used.
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
        redis = _connect_sentinel(url, options) if url.startswith(SENTINEL_SCHEMES) else Redis.from_url(url, **options)
        _try_options(redis)
        return redis
    except (ValueError, TypeError, OSError, redis_errors.RedisError) as error:
        why = re.sub(r".*unexpected keyword argument", "it has no option", str(error))
        raise InvalidRequest(f"not a Redis URL: {without_password(url)} ({why})") from None


def _try_options(redis: Redis) -> None:
    """Make a connection, without connecting: options that are none, and certificates that cannot be read, are known by then."""
    connection: Any = redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    if isinstance(connection, SSLConnection):
        connection.ssl_context.get()


def _connect_sentinel(url: str, options: dict[str, Any]) -> Redis:
    scheme, _, rest = url.partition("://")
    tls: dict[str, Any] = {}
    if scheme == "sentinels":
        rest, _, query = rest.partition("?")
        said: dict[str, Any] = {**parse_url(f"rediss://?{query}")}
        del said["connection_class"]
        if not all(name.startswith("ssl_") for name in said):
            raise ValueError("want no options but those of TLS, which begin with ssl_")
        tls = {"ssl": True, **said}
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
        sentinel_kwargs={"protocol": 2, "retry": Retry(NoBackoff(), 0), **limits, **tls},
    )
    access = {"username": user or None, "password": password or None, "db": int(db or 0)}
    return Redis.from_pool(PrimaryPool(unquote(name), asked, **options, **access, **tls))


def without_password(url: str) -> str:
    """The URL as it may be shown: with any password replaced."""
    try:
        if not url.startswith(SENTINEL_SCHEMES):  # whether urlsplit takes several hosts depends on the Python
            urlsplit(url)
    except ValueError:
        return "(a URL that cannot be read)"
    shown = re.sub(r"(?<=://)([^/?#:@]*):[^/?#]*@", r"\1:***@", url, count=1)
    return re.sub(r"([?&](?:ssl_)?password=)[^&#]*", r"\1***", shown)


def translate(error: BaseException) -> RedisError:
    """The greenroom error for one that redis-py raised."""
    message = str(error).rstrip(".") or type(error).__name__
    if isinstance(error, (*DENIED, redis_errors.NoPermissionError)) or _DENIED_WORDS.search(message):
        return RedisRefused(f"Redis refuses access: {message}. Check the URL's user and password, and the ACL")
    if untrusted := _UNTRUSTED_WORDS.search(message):
        return RedisRefused(f"Redis' certificate is not accepted: {untrusted[1]}. Check the URL's host and ssl_ca_certs")
    if _CUT_WORDS.search(message):
        message += " (if it wants TLS: rediss://, and a client certificate if it wants one)"
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
    transport = None
    try:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):  # redis-py limits the socket's connect only, not what it says then
                await connection.connect()
        except TimeoutError:
            tls = " to TLS" if isinstance(connection, SSLConnection) else ""
            raise TimeoutError(f"no answer{tls} within {CONNECT_TIMEOUT_S:g} s") from None
        transport = connection._writer.transport
        if isinstance(pool, PrimaryPool):
            pool.follow(connection)
        yield connection
    finally:
        if isinstance(pool, PrimaryPool):
            pool.leave(connection)
        # Drops the socket without a handshake: cancellation must not wait for a server that is gone. Also one that redis-py has
        # closed on an error: over TLS it would wait for half a minute for the other side to say goodbye.
        if connection._writer is not None:
            transport = connection._writer.transport
        if transport is not None:
            transport.abort()
        connection._close()


async def check_server(redis: Redis) -> list[str]:
    """Refuse a server that cannot keep greenroom's promises; return warnings about one that keeps them less well.

    Raises:
        RedisUnavailable: not reached.
        RedisRefused: no access, older than 6.2, with an eviction policy that drops keys, or unable to write.
    """
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            info = await redis.info()
    except redis_errors.NoPermissionError:
        return [
            "this user may not ask Redis how it is set up (INFO): its version, eviction policy and persistence are not checked"
        ]
    except Exception as error:
        raise translate(error) from None
    found = server_findings(info)
    for finding in found:
        if finding.severity is Severity.ERROR:
            raise RedisRefused(str(finding))
    return [str(finding) for finding in found if finding.severity is Severity.WARNING]


async def back_off(failures: int, *, first_s: float = 0.05, most_s: float = 2.0) -> None:
    """Sleep before the next attempt to connect: exponential, with full jitter, and 2 s at the most."""
    await asyncio.sleep(random.uniform(0.2, 1.0) * min(most_s, first_s * 2 ** min(failures, 10)))
