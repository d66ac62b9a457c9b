"""What Redis and the workers hold, and whether that is what they held before."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from redis import Redis

from greenroom.protocol.keys import Keys

# What may be left, and why. A leak of anything a message shows as hundreds of megabytes, or objects, in a run of a million.
REDIS_MIB = 4.0  # events, control and dead letters at their limits, scripts, buffers of connections
WORKER_MIB = 16.0  # Python gives memory back to the system by arenas, and an arena is kept for the last object in it
OBJECTS = 1000  # that the garbage collector knows: a new connection, a log record, the last rooms
TASKS = 4  # a script or a look that happens to be under way
OF_THE_AGENT = {"", "ready", "control", "dead", "events", "workers", "worker"}  # kinds of keys that every agent has


@dataclass(frozen=True, slots=True)
class Holdings:
    """Of Redis, and of the workers: one row each."""

    used_mib: float
    keys: dict[str, int]
    workers: list[dict[str, int]]

    def lines(self) -> list[str]:
        kinds = ", ".join(f"{count} {kind or 'agent'}" for kind, count in sorted(self.keys.items()))
        rows = [
            f"worker {n}: {row['rss_kib'] / 1024:.1f} MiB, {row['objects']} objects, {row['rooms']} rooms, "
            f"{row['tasks']} tasks, {row['cycles']} cycles so far"
            for n, row in enumerate(self.workers, 1)
        ]
        return [f"Redis: {self.used_mib:.2f} MiB used; keys: {kinds}", *rows]


def kinds_of(redis: Redis, agent: str) -> dict[str, int]:
    """How many keys of each kind the agent has: ``room`` is a room's hash, ``room:state`` its state, and so on."""
    root, found = Keys(agent).root, Counter[str]()
    for key in redis.scan_iter(count=1000):
        kind, _, rest = key.decode().removeprefix(root).removeprefix(":").partition(":")
        part = rest.partition(":")[2] if kind == "room" else ""
        found[f"{kind}:{part}" if part else kind] += 1
    return dict(found)


def used_mib(redis: Redis) -> float:
    about: Any = redis.info("memory")
    return float(about["used_memory"]) / 2**20


def left_over(redis: Redis, agent: str) -> dict[str, int]:
    """The keys that should be gone."""
    return {kind: count for kind, count in kinds_of(redis, agent).items() if kind not in OF_THE_AGENT}


def differences(before: Holdings, after: Holdings) -> list[str]:
    """What did not come back, in words; empty when all did."""
    found = [f"{count} keys of kind {kind} are left" for kind, count in after.keys.items() if kind not in OF_THE_AGENT]
    grown = after.used_mib - before.used_mib
    if grown > REDIS_MIB:
        found.append(f"Redis has {grown:.2f} MiB more than before: want {REDIS_MIB} at the most")
    for number, (was, now) in enumerate(zip(before.workers, after.workers, strict=True), 1):
        limits = {"rss_kib": WORKER_MIB * 1024, "objects": OBJECTS, "tasks": TASKS}
        found += [
            f"worker {number} has {now[what] - was[what]} {what} more than before: want {limit:.0f} at the most"
            for what, limit in limits.items()
            if now[what] - was[what] > limit
        ]
        if now["rooms"]:
            found.append(f"worker {number} has {now['rooms']} rooms")
    return found
