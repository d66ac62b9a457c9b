"""From a URL to connections, with redis-py's errors translated at this one edge."""

from __future__ import annotations

import asyncio
import random
import re
import socket
import struct
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
from .cluster import ClusterPool, is_elsewhere
from .errors import InvalidRequest, RedisError, RedisRefused, RedisUnavailable
from .primary import PrimaryPool
from .resets import guarded

DEFAULT_REDIS = "redis://127.0.0.1:6379/0"
CONNECT_TIMEOUT_S = 5.0
ASK_TIMEOUT_S = 0.5  # for one Sentinel, or one node of a cluster: the next one is asked after that
SENTINEL_PORT, REDIS_PORT = 26379, 6379
PLAIN_SCHEMES = ("redis", "rediss", "unix")
SENTINEL_SCHEMES, CLUSTER_SCHEMES = ("sentinel", "sentinels"), ("cluster", "clusters")  # the latter of each: over TLS
SCHEMES = (*PLAIN_SCHEMES, *SENTINEL_SCHEMES, *CLUSTER_SCHEMES)

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
# blocking read or WAIT that a demotion ended or came too late for, a primary that must not write without its replicas, a server
# that does nothing while somebody's script runs on and on: it has done nothing of what was asked.
_LOST_WORDS = re.compile(
    r"(?:^|-)(?:READONLY|NOREPLICAS|MASTERDOWN|UNBLOCKED|CLUSTERDOWN|TRYAGAIN|BUSY) |WAIT cannot be used with replica"
)
# What a user may not do, also where a script ran into it.
_DENIED_WORDS = re.compile(r"NOAUTH|WRONGPASS|NOPERM|ACL failure in script|user executing the script can't")
# A certificate that does not convince, and why; and a server that hangs up, as one does to whom TLS is spoken wrongly.
_UNTRUSTED_WORDS = re.compile(r"certificate verify failed: (.*?)\.?(?: \(_ssl|$)")
_CUT_WORDS = re.compile(r"reset by peer|closed by server|Connection lost|[Bb]roken pipe|alert|EOF occurred")
# Of no class of their own either, where a script ran into them.
_FULL_WORDS = re.compile(r"command not allowed when used memory|(?:^|-)MISCONF ")
_WRONG_TYPE = re.compile(r"Operation against a key holding the wrong kind")
# Subclasses of ConnectionError that no repetition mends.
DENIED = (redis_errors.AuthenticationError, redis_errors.AuthorizationError)


def is_lost(error: BaseException) -> bool:
    """Whether the server is gone, or no longer one that writes: connect again and repeat."""
    if isinstance(error, LOST):
        return True
    return isinstance(error, redis_errors.ResponseError) and _LOST_WORDS.search(str(error)) is not None


def is_full(error: BaseException) -> bool:
    """Whether the server writes nothing for now: its memory is full, or its disk. Whoever has the time waits."""
    return isinstance(error, redis_errors.ResponseError) and _FULL_WORDS.search(str(error)) is not None


def connect(url: str, key: str = "") -> Redis:
    """A client that never retries by itself and never blocks to connect.

    The URL is ``redis://``, ``rediss://`` or ``unix://``, or ``sentinel://[user:password@]host[:26379][,host…]/<name>[/db]``:
    connections then go to the current primary of that name. User and password are for Redis; the Sentinels get none. Or it is
    ``cluster://[user:password@]host[:6379][,host…]`` with some nodes of a cluster: connections then go to the current primary
    of the slot of ``key``, and user and password are for all nodes.

    ``rediss://``, ``sentinels://`` and ``clusters://`` are TLS, to all of them; the certificates are options of the URL:
    ``?ssl_ca_certs=FILE&ssl_certfile=FILE&ssl_keyfile=FILE``.

    Raises:
        InvalidRequest: the URL is not one, or a file that it names cannot be used.
    """
    if not isinstance(url, str):
        raise InvalidRequest(f"not a Redis URL: want a string, got {type(url).__name__}")
    options: dict[str, Any] = {
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_timeout": None,  # time limits stand where the waiting is done: a blocking read is not a hang
        "socket_keepalive": True,
        "decode_responses": False,
    }
    try:
        redis = guarded(_connect(url, options, key))
        _try_options(redis)
        return redis
    except (ValueError, TypeError, OSError, redis_errors.RedisError) as error:
        raise InvalidRequest(f"not a Redis URL: {without_password(url)} ({_reason(error, url)})") from None


def _connect(url: str, options: dict[str, Any], key: str) -> Redis:
    scheme, _, rest = url.partition("://")
    if scheme in PLAIN_SCHEMES:
        if scheme == "unix":  # the kernel knows when the other side is gone
            del options["socket_keepalive"]
        return Redis.from_url(url, **options)
    if scheme not in (*SENTINEL_SCHEMES, *CLUSTER_SCHEMES):
        raise ValueError(f"want one that begins with {', '.join(f'{known}://' for known in SCHEMES)}")
    tls: dict[str, Any] = {}
    if scheme in (SENTINEL_SCHEMES[1], CLUSTER_SCHEMES[1]):
        rest, _, query = rest.partition("?")
        said: dict[str, Any] = {**parse_url(f"rediss://?{query}")}
        del said["connection_class"]
        if not all(name.startswith("ssl_") for name in said):
            raise ValueError("want no options but those of TLS, which begin with ssl_")
        tls = {"ssl": True, **said}
    if scheme in SENTINEL_SCHEMES:
        return _connect_sentinel(rest, options, tls)
    return _connect_cluster(rest, options, tls, key)


def _try_options(redis: Redis) -> None:
    """Make a connection, without connecting: options that are none, and certificates that cannot be read, are known by then."""
    connection: Any = redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    if isinstance(connection, SSLConnection):
        connection.ssl_context.get()


def _connect_sentinel(rest: str, options: dict[str, Any], tls: dict[str, Any]) -> Redis:
    authority, _, path = rest.partition("/")
    access, sentinels = _authority(authority, SENTINEL_PORT)
    name, _, db = path.partition("/")
    if not re.fullmatch(r"[^?#/]+", name) or not re.fullmatch(r"[0-9]*", db):
        raise ValueError("want /<name of the primary>, or /<name>/<number of the database>")
    asked = Sentinel(sentinels, sentinel_kwargs={**_asking(), **tls})  # type: ignore[no-untyped-call]
    for sentinel in asked.sentinels:
        guarded(sentinel)
    return Redis.from_pool(PrimaryPool(unquote(name), asked, **options, **access, db=int(db or 0), **tls))


def _connect_cluster(rest: str, options: dict[str, Any], tls: dict[str, Any], key: str) -> Redis:
    authority, _, path = rest.partition("/")
    if path:
        raise ValueError("a cluster has no names and no numbered databases")
    access, seeds = _authority(authority, REDIS_PORT)
    return Redis.from_pool(ClusterPool(key, seeds, {**_asking(), **access, **tls}, **options, **access, **tls))


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
    """The URL as it may be shown: with any password replaced, also one that should have been escaped and was not."""
    try:
        if url.partition("://")[0] not in (*SENTINEL_SCHEMES, *CLUSTER_SCHEMES):  # whether it takes several hosts depends
            urlsplit(url)  # on the Python
    except ValueError:
        return "(a URL that cannot be read)"
    shown = re.sub(r"^((?:[^:]*://|(?![^:]*://))[^:]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    rest, mark, query = shown.partition("?")
    return rest + mark + "&".join(map(_option_shown, query.split("&")))


def _option_shown(option: str) -> str:
    """One that is no name and value is the rest of a password with a & in it, perhaps."""
    name, equals, _ = option.partition("=")
    if unquote(name).lower().endswith("password"):
        return f"{name}{equals}***"
    return option if equals else option and "***"


def _reason(error: Exception, url: str) -> str:
    """What an error says of a URL. What it quotes may be a part of the password, if it is not shown anyway."""
    shown = without_password(url)
    why = re.sub(r".*unexpected keyword argument", "it has no option", str(error))
    return re.sub(r"(['\"])(.*)\1", lambda quoted: quoted[0] if quoted[2] in shown else "…", why, flags=re.DOTALL)


def translate(error: BaseException) -> RedisError:
    """The greenroom error for one that redis-py raised."""
    message = str(error).rstrip(".") or type(error).__name__
    if isinstance(error, (*DENIED, redis_errors.NoPermissionError)) or _DENIED_WORDS.search(message):
        return RedisRefused(f"Redis refuses access: {message}. Check the URL's user and password, and the ACL")
    if untrusted := _UNTRUSTED_WORDS.search(message):
        return RedisRefused(f"Redis' certificate is not accepted: {untrusted[1]}. Check the URL's host and ssl_ca_certs")
    if _CUT_WORDS.search(message):
        message += " (if it wants TLS: rediss://, and a client certificate if it wants one)"
    if is_elsewhere(error) and not is_lost(error):
        return RedisRefused(f"Redis is a cluster, and another of its nodes has this agent: use a cluster:// URL ({message})")
    if is_lost(error) and isinstance(error, (redis_errors.ResponseError, redis_errors.BusyLoadingError)):
        return RedisUnavailable(f"Redis answers, and does not do what it is asked: {message}. See greenroom doctor")
    if is_lost(error):
        return RedisUnavailable(f"Redis cannot be reached: {message}. Check the URL, and that the server runs")
    if is_full(error):
        return RedisRefused(f"Redis writes nothing, for its memory or its disk is full (greenroom doctor says more): {message}")
    if _WRONG_TYPE.search(message):
        return RedisRefused(
            f"Redis refuses: a key is not of the type that greenroom writes (greenroom keys finds it): {message}"
        )
    if not isinstance(error, redis_errors.ResponseError):
        return RedisRefused(f"what answers there is not Redis, or speaks its protocol wrongly: {message}. Check the URL")
    return RedisRefused(f"Redis refuses: {message}")


@asynccontextmanager
async def answering(limit_s: float) -> AsyncIterator[None]:
    """Within it the server has to answer in that time: else TimeoutError, with words for who reads the log."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError as error:
        if str(error):  # the system's own
            raise
        raise TimeoutError(f"no answer within {limit_s:g} s") from None


@asynccontextmanager
async def open_connection(redis: Redis) -> AsyncIterator[AbstractConnection]:
    """One connection of one's own, for what a pool's borrow-and-return does not fit: pipelines and blocking reads.

    With Sentinels or a cluster it is cut as soon as another primary is named, even if the former hangs or does not know yet.
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
        # What the system has not sent by the end is not sent any more. It would try for minutes, and when a lost network is
        # back, the server would get these requests behind those that repeated them: a shield up, after it was taken down.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
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
        async with answering(CONNECT_TIMEOUT_S):
            info = await redis.info()
    except redis_errors.NoPermissionError:
        return [
            "this user may not ask Redis how it is set up (INFO): its version, eviction policy and persistence are not checked"
        ]
    except Exception as error:
        raise translate(error) from None
    found = server_findings(info, follows_cluster=isinstance(redis.connection_pool, ClusterPool))
    for finding in found:
        if finding.severity is Severity.ERROR:
            raise RedisRefused(str(finding))
    return [str(finding) for finding in found if finding.severity is Severity.WARNING]


async def is_loading(redis: Redis) -> bool:
    """Whether the server says that it loads its data. What else may be wrong with it, its next user learns."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S), open_connection(redis) as connection:
            await connection.send_command("PING", check_health=False)
            await connection.read_response()
    except redis_errors.BusyLoadingError:
        return True
    except (redis_errors.RedisError, OSError, TimeoutError):
        pass
    return False


class Outage:
    """Of one who connects again and again: which errors have been told since it worked last. Each try is no news."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def is_news(self, error: BaseException) -> bool:
        words = str(error)
        if words in self._told:
            return False
        self._told.add(words)
        return True

    def over(self) -> None:
        self._told.clear()


async def back_off(failures: int, *, first_s: float = 0.05, most_s: float = 2.0) -> None:
    """Sleep before the next attempt to connect: exponential, with full jitter, and 2 s at the most."""
    await asyncio.sleep(random.uniform(0.2, 1.0) * min(most_s, first_s * 2 ** min(failures, 10)))
