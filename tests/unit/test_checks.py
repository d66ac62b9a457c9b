"""What is found wrong with a Redis, from what it says of itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

from greenroom.protocol import checks
from greenroom.protocol.checks import Finding, Severity, server_findings
from greenroom.protocol.connect import check_server
from greenroom.protocol.errors import RedisRefused

GOOD: dict[str, Any] = {
    "redis_version": "7.0.15",
    "maxmemory_policy": "noeviction",
    "maxmemory": 0,
    "used_memory": 10**6,
    "total_system_memory": 8 * 10**9,
    "aof_enabled": 1,
    "aof_last_write_status": "ok",
    "aof_last_bgrewrite_status": "ok",
    "rdb_last_bgsave_status": "ok",
}
FULL = {"maxmemory": 10**6}
BAD: list[tuple[dict[str, Any], str, Severity, str]] = [
    ({"redis_version": "6.0.16"}, "version", Severity.ERROR, "too old"),
    ({"redis_version": "5.0"}, "version", Severity.ERROR, "6.2 or newer"),
    ({"maxmemory": 10**9, "maxmemory_policy": "allkeys-lru"}, "eviction", Severity.ERROR, "noeviction"),
    ({"maxmemory": 10**9, "maxmemory_policy": "volatile-ttl"}, "eviction", Severity.ERROR, "noeviction"),
    ({"maxmemory_policy": "allkeys-lru"}, "eviction", Severity.WARNING, "once it has a memory limit"),
    (FULL, "memory", Severity.ERROR, "refuses writes"),
    ({"maxmemory": 1_100_000}, "memory", Severity.WARNING, "raise maxmemory"),
    ({"used_memory": 7 * 10**9}, "memory", Severity.WARNING, "set maxmemory"),
    ({"aof_enabled": 0}, "persistence", Severity.WARNING, "appendonly yes"),
    ({"aof_last_write_status": "err"}, "persistence", Severity.ERROR, "refuses writes"),
    ({"aof_last_bgrewrite_status": "err"}, "saving", Severity.WARNING, "disk"),
    ({"rdb_last_bgsave_status": "err"}, "saving", Severity.WARNING, "disk"),
    ({"cluster_enabled": 1}, "cluster", Severity.WARNING, "cluster://"),
]


class Server:
    """Answers INFO."""

    connection_pool = None

    def __init__(self, info: dict[str, Any] | Exception) -> None:
        self._info = info

    async def info(self) -> dict[str, Any]:
        if isinstance(self._info, Exception):
            raise self._info
        return self._info


def started_on(info: dict[str, Any] | Exception) -> list[str]:
    """The warnings of a worker that starts there."""
    return asyncio.run(check_server(Server(info)))  # type: ignore[arg-type]  # it is asked for nothing else


def test_a_server_as_it_should_be_is_found_so_and_a_worker_starts_without_a_warning() -> None:
    assert {finding.severity for finding in server_findings(GOOD)} == {Severity.OK}
    assert started_on(GOOD) == []


def test_a_server_that_loads_its_data_is_not_taken_for_one_without_an_append_only_file() -> None:
    assert started_on({**GOOD, "loading": 1, "aof_enabled": 0}) == []


@pytest.mark.parametrize("version", ["6.2.14", "7.0", "7.2.4", "8.10.1", "10.0.0"])
def test_a_version_that_is_new_enough_is_fine(version: str) -> None:
    assert started_on({**GOOD, "redis_version": version}) == []


@pytest.mark.parametrize(("wrong", "check", "severity", "words"), BAD)
def test_each_wrong_set_up_is_found_once_and_said_to_a_worker_that_starts(
    wrong: dict[str, Any], check: str, severity: Severity, words: str
) -> None:
    """row 45: by the same list of checks"""
    info = {**GOOD, **wrong}
    [found] = [finding for finding in server_findings(info) if finding.severity is not Severity.OK]
    assert (found.check, found.severity) == (check, severity)
    assert words in str(found)
    assert found.do
    if severity is Severity.ERROR:
        with pytest.raises(RedisRefused, match=words):
            started_on(info)
    else:
        assert started_on(info) == [str(found)]


def test_a_worker_that_may_not_ask_for_info_starts_with_one_warning() -> None:
    """row 48"""
    [warning] = started_on(NoPermissionError("this user has no permissions to run the 'info' command"))
    assert "INFO" in warning


def test_a_server_that_says_nothing_of_itself_counts_as_too_old() -> None:
    with pytest.raises(RedisRefused, match="too old"):
        started_on({})


def slave(**said: Any) -> dict[str, Any]:
    return {"ip": "10.0.0.2", "port": 6379, "state": "online", "offset": 1, "lag": 0, **said}


@pytest.mark.parametrize(
    ("info", "severity", "words"),
    [
        ({"role": "master", "connected_slaves": 0}, Severity.OK, "primary, 0 replicas"),
        ({"role": "master", "slave0": slave()}, Severity.OK, "primary, 1 replica"),
        ({"role": "master", "slave0": slave(), "slave1": slave(lag=1)}, Severity.OK, "primary, 2 replicas"),
        ({"role": "master", "slave0": slave(state="wait_bgsave")}, Severity.WARNING, "10.0.0.2:6379"),
        ({"role": "master", "slave0": slave(lag=60)}, Severity.WARNING, "not in step"),
        ({"role": "slave"}, Severity.ERROR, "accepts no writes"),
        ({"role": "master", "min_slaves_good_slaves": 0}, Severity.ERROR, "min-replicas-to-write"),
        ({"role": "master", "slave0": slave(), "min_slaves_good_slaves": 1}, Severity.OK, "1 replica"),
    ],
)
def test_replicas_are_looked_at(info: dict[str, Any], severity: Severity, words: str) -> None:
    found = checks.replication(info)
    assert found.severity is severity
    assert words in str(found)


@pytest.mark.parametrize(
    ("found", "severity", "words"),
    [
        (checks.latency(0.2, 900.0), Severity.OK, "0.20 ms"),
        (checks.latency(10.0, 11.0), Severity.WARNING, "near Redis"),
        (checks.clock(0.4), Severity.OK, "agrees"),
        (checks.clock(-0.4), Severity.OK, "agrees"),
        (checks.clock(75.0), Severity.WARNING, "75.0 s ahead of"),
        (checks.clock(-75.0), Severity.WARNING, "75.0 s behind"),
        (checks.fsync("always"), Severity.OK, "nothing"),
        (checks.fsync("everysec"), Severity.OK, "second or two"),
        (checks.fsync("no"), Severity.WARNING, "half a minute"),
        (checks.transport(local=True, encrypted=False, verified=False), Severity.OK, "within this machine"),
        (checks.transport(local=False, encrypted=False, verified=False), Severity.WARNING, "rediss://"),
        (checks.transport(local=False, encrypted=True, verified=False), Severity.WARNING, "not checked"),
        (checks.transport(local=False, encrypted=True, verified=True), Severity.OK, "TLS"),
    ],
)
def test_what_is_measured_is_judged(found: Finding, severity: Severity, words: str) -> None:
    assert found.severity is severity
    assert words in str(found)
    assert bool(found.do) == (severity is not Severity.OK)
