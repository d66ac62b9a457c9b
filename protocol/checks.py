"""Whether a Redis can keep greenroom's promises: one list of checks, for workers at their start and for the doctor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MINIMUM_VERSION = (6, 2)
NEARLY_FULL = 0.9  # of maxmemory
MACHINE_NEARLY_FULL = 0.8  # of the machine's memory, by a Redis without a limit
SLOW_PING_MS = 10.0
CLOCKS_APART_S = 1.0
REPLICA_LAG_S = 10

Info = Mapping[str, Any]


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"
    UNKNOWN = "unknown"  # this user may not see it
    WARNING = "warning"  # it works, and some promises are kept less well
    ERROR = "error"  # greenroom does not work, or loses what it must keep


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, and what to do about it."""

    check: str
    severity: Severity
    says: str
    do: str = ""

    def __str__(self) -> str:
        return f"{self.says}: {self.do}" if self.do else self.says


def ok(check: str, says: str) -> Finding:
    return Finding(check, Severity.OK, says)


def warning(check: str, says: str, do: str) -> Finding:
    return Finding(check, Severity.WARNING, says, do)


def error(check: str, says: str, do: str) -> Finding:
    return Finding(check, Severity.ERROR, says, do)


def unknown(check: str, command: str) -> Finding:
    return Finding(check, Severity.UNKNOWN, f"this user may not see it ({command})", "ask as a user who may")


# What INFO says. --------------------------------------------------------------------------------------


def _version(info: Info) -> Finding:
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2]) < MINIMUM_VERSION:
        return error("version", f"Redis {version} is too old", "greenroom needs 6.2 or newer")
    return ok("version", f"Redis {version}")


def _eviction(info: Info) -> Finding:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return ok("eviction", "no key is ever dropped (noeviction)")
    if info.get("maxmemory"):
        return error("eviction", f"Redis may drop keys (maxmemory-policy {policy})", "set it to noeviction")
    return warning(
        "eviction", f"once it has a memory limit, Redis drops keys (maxmemory-policy {policy})", "set it to noeviction"
    )


def _memory(info: Info) -> Finding:
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if most:
        says = f"{_mb(used)} of {_mb(most)} used"
        if used >= most:
            return error("memory", f"{says}: Redis refuses writes", "raise maxmemory, or drop what is not needed")
        if used >= most * NEARLY_FULL:
            return warning("memory", f"{says}, and then Redis refuses writes", "raise maxmemory, or drop what is not needed")
        return ok("memory", says)
    machine = int(info.get("total_system_memory", 0))
    if machine and used >= machine * MACHINE_NEARLY_FULL:
        return warning("memory", f"{_mb(used)} of the machine's {_mb(machine)} used, without a limit", "set maxmemory")
    return ok("memory", f"{_mb(used)} used, without a limit")


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _persistence(info: Info) -> Finding:
    if info.get("loading"):  # Redis 7 switches the append-only file on when it has read it
        return Finding("persistence", Severity.UNKNOWN, "not known while Redis loads its data", "ask again")
    if not info.get("aof_enabled"):
        says = "no append-only file: a restart of Redis forgets what came after its last snapshot, stops included"
        return warning("persistence", says, "set appendonly yes")
    if info.get("aof_last_write_status", "ok") != "ok":
        return error("persistence", "the append-only file cannot be written: Redis refuses writes", "look at its disk")
    return ok("persistence", "append-only file")


def _saving(info: Info) -> Finding:
    if info.get("aof_last_bgrewrite_status", "ok") != "ok":
        return warning("saving", "the append-only file could not be rewritten, and grows", "look at Redis' log and its disk")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return warning(
            "saving", "the last snapshot failed, and by default Redis then refuses writes", "look at Redis' log and its disk"
        )
    return ok("saving", "the last snapshot and rewrite went well")


SERVER_CHECKS: tuple[Callable[[Info], Finding], ...] = (_version, _eviction, _memory, _persistence, _saving)


def server_findings(info: Info, *, follows_cluster: bool = False) -> list[Finding]:
    """What INFO says about how the server is set up. ``follows_cluster``: whether connections follow a cluster's fail-overs."""
    found = [check(info) for check in SERVER_CHECKS]
    if info.get("cluster_enabled"):
        found.append(_cluster(follows_cluster))
    return found


def _cluster(followed: bool) -> Finding:
    if followed:
        return ok("cluster", "a node of a cluster, whose fail-overs are followed")
    return warning("cluster", "a node of a cluster, whose fail-overs are not followed", "use a cluster:// URL")


def loading(info: Info) -> Finding:
    """That the server loads its data, and how far it is."""
    done, left_s = info.get("loading_loaded_perc"), info.get("loading_eta_seconds")
    says = "Redis loads its data" if done is None else f"Redis loads its data: {done} % in memory, about {left_s} s left"
    return error("loading", says, "wait, as workers do")


def replication(info: Info) -> Finding:
    """Whether the server is a primary, and its replicas are in step."""
    if info.get("role") == "slave":
        return error("role", "a replica: it accepts no writes", "name the primary, or Sentinels: sentinel://host,host/name")
    if info.get("min_slaves_good_slaves") == 0:
        says = "primary, which writes nothing without replicas in step, and has none (min-replicas-to-write)"
        return error("role", says, "look at the replicas, or set min-replicas-to-write 0")
    replicas = [replica for name, replica in info.items() if name.startswith("slave") and isinstance(replica, Mapping)]
    late = [each for each in replicas if each.get("state") != "online" or int(each.get("lag", 0)) > REPLICA_LAG_S]
    if late:
        names = ", ".join(f"{each.get('ip')}:{each.get('port')}" for each in late)
        return warning("role", f"primary; not in step: {names}", "look at the replicas: a fail-over now loses what they lack")
    return ok("role", f"primary, {len(replicas)} replica{'' if len(replicas) == 1 else 's'}")


# What is found out otherwise. ------------------------------------------------------------------------


def fsync(policy: str) -> Finding:
    """How often the append-only file is synced: the value of ``appendfsync``."""
    if policy == "always":
        return ok("fsync", "always: nothing that was answered is lost")
    if policy == "everysec":
        return ok("fsync", "everysec: a crash of the host may lose the last second or two")
    return warning("fsync", f"{policy}: a crash of the host may lose half a minute", "set appendfsync everysec, or always")


def latency(p50_ms: float, most_ms: float) -> Finding:
    """How long a PING takes."""
    says = f"PING takes {p50_ms:.2f} ms (p50), {most_ms:.2f} ms at the most"
    if p50_ms >= SLOW_PING_MS:
        return warning("latency", says, "put workers near Redis: each commit, chunk and signal waits for it")
    return ok("latency", says)


def clock(ahead_s: float) -> Finding:
    """How far Redis' clock is from this machine's."""
    says = f"Redis' clock is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    if abs(ahead_s) >= CLOCKS_APART_S:
        return warning("clock", says, "synchronize both: all times that greenroom shows are Redis', those of logs are not")
    return ok("clock", "Redis' clock agrees with this machine's")


def transport(*, local: bool, encrypted: bool, verified: bool) -> Finding:
    """How what is said gets to Redis."""
    if encrypted:
        if not verified:
            return warning(
                "transport",
                "TLS, but Redis' certificate is not checked: anyone in between can pass for it",
                "leave ssl_cert_reqs and ssl_check_hostname as they are by default",
            )
        return ok("transport", "TLS, certificate checked")
    if local:
        return ok("transport", "within this machine")
    return warning("transport", "not encrypted: anyone in between reads and changes all of it", "use rediss://")
