"""Looks at a Redis as it is, as the user whose URL it is given."""

from __future__ import annotations

import ipaddress
import ssl
import time
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import BusyLoadingError, NoPermissionError, ResponseError

from . import agent_checks, checks
from .acl import COMMANDS, Role, trial
from .checks import Finding, Severity
from .cluster import ClusterPool
from .connect import answering, connect, open_connection, translate
from .errors import RedisError
from .keys import Keys
from .keyspace import agents_instead, no_such_agent
from .records import LAYOUT, text
from .store import Store

PINGS = 21
LIMIT_S = 10.0


async def examine(url: str, agent: str | None = None) -> list[Finding]:
    """Everything that was found, in the order of the checks; without an agent, nothing about its users and data.

    Raises:
        InvalidRequest: the URL or the agent's name.
        RedisUnavailable, RedisRefused: it cannot be reached, or gives no access at all.
    """
    keys = None if agent is None else Keys(agent)
    redis = connect(url, "" if keys is None else keys.root)
    try:
        async with answering(LIMIT_S), open_connection(redis) as connection:
            found = await _Doctor(redis, connection).examine(keys)
            if keys is not None and any(each.check == "data" and each.severity is Severity.OK for each in found):
                found += await _agent(redis, keys)
            return found
    except RedisError:
        raise
    except Exception as error:
        raise translate(error) from None
    finally:
        await redis.aclose()


async def _agent(redis: Redis, keys: Keys) -> list[Finding]:
    """What ails the agent, if there is one here."""
    store = Store(redis, keys, patience_s=LIMIT_S)
    try:
        if (others := await agents_instead(store)) is not None:
            return [
                checks.warning(
                    "agent",
                    no_such_agent(keys.agent, others),
                    "look at the name and the URL; if it was here, Redis has lost it: restore it",
                )
            ]
        return agent_checks.findings(await agent_checks.gather(store))
    except NoPermissionError:
        return [checks.unknown("agent", "its keys")]
    finally:
        await store.close()


class _Doctor:
    def __init__(self, redis: Redis, connection: AbstractConnection) -> None:
        self._redis = redis
        self._connection: Any = connection

    async def examine(self, keys: Keys | None) -> list[Finding]:
        try:
            await self._ask("PING")
        except BusyLoadingError:  # it answers little else than INFO
            info = await self._info()
            return [checks.loading(info or {}), *self._server(info), self._transport()]
        found = [await self._latency()]
        info = await self._info()
        found += self._server(info)
        if info is not None and info.get("aof_enabled"):
            found.append(await self._fsync())
        found += [await self._clock(), self._transport()]
        if keys is not None:
            found.append(await self._data(keys))
        found.append(await self._access(keys))  # the last here: it may leave the connection in a MULTI
        return found

    async def _info(self) -> dict[str, Any] | None:
        """What the server says of itself, or None when this user may not ask."""
        try:
            info: dict[str, Any] = await self._redis.info()
        except NoPermissionError:
            return None
        return info

    def _server(self, info: dict[str, Any] | None) -> list[Finding]:
        if info is None:
            return [checks.unknown("server", "INFO")]
        follows = isinstance(self._redis.connection_pool, ClusterPool)
        return [*checks.server_findings(info, follows_cluster=follows), checks.replication(info)]

    async def _ask(self, *words: Any) -> Any:
        await self._connection.send_command(*words, check_health=False)
        return await self._connection.read_response()

    async def _may(self, *words: Any) -> Any:
        """The answer, or None when this user may not ask."""
        try:
            return await self._ask(*words)
        except NoPermissionError:
            return None

    async def _latency(self) -> Finding:
        taken = []
        for _ in range(PINGS):
            asked = time.perf_counter()
            await self._ask("PING")
            taken.append((time.perf_counter() - asked) * 1000)
        return checks.latency(sorted(taken)[PINGS // 2], max(taken))

    async def _fsync(self) -> Finding:
        answer = await self._may("CONFIG", "GET", "appendfsync")
        return checks.fsync(text(answer[1])) if answer else checks.unknown("fsync", "CONFIG GET appendfsync")

    async def _clock(self) -> Finding:
        before = time.time()
        answer = await self._may("TIME")
        if answer is None:
            return checks.unknown("clock", "TIME")
        return checks.clock(int(answer[0]) + int(answer[1]) / 1e6 - (before + time.time()) / 2)

    def _transport(self) -> Finding:
        connection = self._connection
        local = isinstance(connection, UnixDomainSocketConnection) or _is_loopback(connection.host)
        encrypted = isinstance(connection, SSLConnection)
        verified = encrypted and connection.cert_reqs == ssl.CERT_REQUIRED and bool(connection.check_hostname)
        return checks.transport(local=local, encrypted=encrypted, verified=verified)

    # Access. --------------------------------------------------------------------------------------

    async def _access(self, keys: Keys | None) -> Finding:
        if not (await self._may("MULTI") and await self._may("DISCARD")):
            return checks.unknown("access", "MULTI and DISCARD")
        name = await self._may("ACL", "WHOAMI")
        user = "this user" if name is None else f"user {text(name)}"
        if await self._queues("KEYS", "*"):
            who = "whoever reaches this Redis" if self._connection.password is None else user
            return checks.warning("access", f"{who} may do everything, to every agent", "make users with greenroom acl")
        if keys is None:
            return checks.ok("access", f"{user} may not do everything")
        return await self._roles(user, keys)

    async def _roles(self, user: str, keys: Keys) -> Finding:
        """As which of the agent's users this one may act. One with a part of a role's rights is none that is meant to be: a
        script that is denied in its middle leaves things half done.
        """
        may = {"multi", "discard"}
        for command in set(COMMANDS[Role.WORKER]) - may:
            if await self._queues(*trial(command, keys)):
                may.add(command)
        roles: list[str] = []
        known: set[str] = set()
        for role in (Role.OBSERVER, Role.OPERATOR, Role.WORKER):
            more = set(COMMANDS[role]) - known
            known |= more
            lacking = more - may
            if lacking and (role is Role.OBSERVER or lacking != more):
                says = f"{user} has not all rights of the {role} of {keys.agent}: it lacks {', '.join(sorted(lacking))}"
                return checks.error("access", says, f"greenroom acl {keys.agent} prints what is needed")
            if lacking:
                break
            roles.append(role)
        return checks.ok("access", f"{user} has the rights of {', '.join(roles)}")

    async def _queues(self, *words: str) -> bool:
        """Whether this user may do so. Redis looks at rights when it queues a command, and the queue is then thrown away."""
        await self._ask("MULTI")
        try:
            return bool(await self._ask(*words) == b"QUEUED")
        except ResponseError:
            return False
        finally:
            await self._ask("DISCARD")

    async def _data(self, keys: Keys) -> Finding:
        try:
            version = await self._ask("HGET", keys.root, "version")
        except NoPermissionError:
            return checks.unknown("data", "HGET")
        if version is None:
            return checks.ok("data", f"no worker of {keys.agent} has ever joined here")
        if text(version) != str(LAYOUT):
            says = f"the data of {keys.agent} is of version {text(version)}, this greenroom knows {LAYOUT}"
            return checks.error("data", says, "upgrade greenroom here")
        return checks.ok("data", f"the data of {keys.agent} is of version {LAYOUT}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
