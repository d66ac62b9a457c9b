"""What ails an agent, as an operator should be told it: findings like those about its Redis, each with what to do.

``gather`` looks, with plain reads; the checks below say what it means.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from .checks import Finding, error, ok, warning
from .clock import EPOCH, time_of_entry
from .fleet import WorkerStatus, workers
from .inspection import overview, pending
from .records import AgentStatus, EventKind, text
from .relays import RelayStatus, relays
from .retention import LIMITS
from .store import Store

LONG_CYCLE = dt.timedelta(minutes=10)
LONG_WAIT = dt.timedelta(minutes=1)  # of a room for a worker, of an output for a relay
LATELY, EVENTS, PAGES = dt.timedelta(hours=1), 1000, 20  # how far back events are looked at: so many in a page
OFTEN = 5  # starts of one worker in this time
BLOCKED_S = 1.0  # for so long, an event loop is blocked
NEARLY_ALL = 0.9  # of the dead letters that are kept
_TELLING = (
    EventKind.CYCLE_CRASHED,
    EventKind.MESSAGE_DROPPED,
    EventKind.MESSAGE_NEWER,
    EventKind.OUTPUT_REJECTED,
    EventKind.ROOM_UNREADABLE,
    EventKind.SIGNAL_MALFORMED,
    EventKind.WORKER_LAPSED,
)


@dataclass(frozen=True, slots=True)
class Gathered:
    """An agent at one moment, by the server's clock.

    ``owned`` counts rooms that workers have, ``queued_at`` is since when the first of the others is in line. ``lately`` counts
    the events of the last hour that tell of trouble, ``often`` how often workers have joined that did so again and again: both
    as far as events are kept. ``keeps`` has the limits that are in force.
    """

    at: dt.datetime
    agent: AgentStatus
    workers: list[WorkerStatus]
    relays: list[RelayStatus]
    owned: int
    queued_at: dt.datetime | None
    lately: Mapping[str, int]
    often: Mapping[str, int]
    keeps: Mapping[str, int | None]


async def gather(store: Store) -> Gathered:
    """How the agent is.

    Raises:
        RedisUnavailable, RedisRefused: Redis.
    """
    keys, command = store.keys, store.pipeline.command
    time, agent, owners, listed, summary = await asyncio.gather(
        command("TIME"), overview(store), workers(store), relays(store), pending(store)
    )
    after = f"({text(summary[2])}" if summary and summary[2] else "-"
    queued, happened, said = await asyncio.gather(
        command("XRANGE", keys.ready, after, "+", "COUNT", 1),
        _happened(store, EPOCH + dt.timedelta(seconds=int(time[0])) - LATELY),
        command("HMGET", keys.root, *[f"keep_{limit.field}" for limit in LIMITS]),
    )
    at = EPOCH + dt.timedelta(seconds=int(time[0]), microseconds=int(time[1]))
    kinds = Counter(text(row.get(b"event", b"")) for row in happened if b"by" not in row)  # somebody did that on purpose
    joined = Counter(text(row.get(b"worker", b"")) for row in happened if row.get(b"event") == b"worker.joined")
    return Gathered(
        at=at,
        agent=agent,
        workers=owners,
        relays=listed,
        owned=int(summary[0]) if summary else 0,
        queued_at=_at(queued[0][0]) if queued else None,
        lately={kind: kinds[kind] for kind in _TELLING if kinds[kind]},
        often={name: count for name, count in joined.items() if count >= OFTEN},
        keeps={limit.option: limit.read(value) for limit, value in zip(LIMITS, said, strict=True)},
    )


async def _happened(store: Store, since: dt.datetime) -> list[dict[bytes, bytes]]:
    """What has happened since then, the newest first, page by page."""
    found: list[dict[bytes, bytes]] = []
    end = "+"
    for _ in range(PAGES):
        page = await store.pipeline.command("XREVRANGE", store.keys.events, end, "-", "COUNT", EVENTS)
        recent = [(entry, flat) for entry, flat in page if _at(entry) >= since]
        found += [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in recent]
        if len(recent) < EVENTS:
            break
        end = f"({text(page[-1][0])}"
    return found


def _at(entry: bytes) -> dt.datetime:
    return time_of_entry(text(entry))


def findings(found: Gathered) -> list[Finding]:
    """What is to be said of it, what is fine included."""
    return [
        _workers(found),
        _starts(found),
        _hold(found),
        _cycles(found),
        _queue(found),
        _failing(found),
        _held(found),
        _dead(found),
        *_relays(found),
        _events(found),
        _retention(found),
    ]


def _workers(found: Gathered) -> Finding:
    alive = [worker.name for worker in found.workers if worker.alive]
    left = sum(worker.owns for worker in found.workers if not worker.alive)
    slow = [worker for worker in found.workers if worker.alive and (worker.lag_s or 0) >= BLOCKED_S]
    if slow:
        told = ", ".join(f"{worker.name} for {worker.lag_s:.1f} s" for worker in slow)
        says = f"the agent's code has blocked its event loop within the last minute: {told}"
        return warning("workers", says, "the log of these workers says where (loop.blocked); give such code to a thread")
    if alive:
        gone = f"; {_many(left, 'room')} of gone ones are being taken over" if left else ""
        return ok("workers", f"{', '.join(alive[:10])}{' and more' if len(alive) > 10 else ''} live{gone}")
    work = found.agent.waiting + found.agent.processing
    if work:
        says = f"no worker lives, with work for it: {_many(work, 'room')}"
        return error("workers", says, "start one: greenroom run; the log of the last one says why it ended")
    return warning("workers", "no worker lives: nothing runs, and signals by hand are not read", "start one: greenroom run")


def _starts(found: Gathered) -> Finding:
    if not found.often:
        return ok("starts", "no worker is started again and again")
    says = "in the last hour: " + ", ".join(f"{name} has joined {count} times" for name, count in found.often.items())
    return warning("starts", says, "its log says why it ends; exit code 4: two run under one name, and end one another")


def _hold(found: Gathered) -> Finding:
    hold = found.agent.hold
    if hold is None:
        return ok("mode", "the agent plays")
    why = f", because: {hold.reason}" if hold.reason else ""
    since = f" since {_time(hold.at)}" if hold.at else ""
    says = f"all rooms are held: {hold.mode} by {hold.by or 'unknown'}{since}{why}"
    return warning("mode", says, "greenroom play --everywhere, when that is over")


def _cycles(found: Gathered) -> Finding:
    running, oldest = found.agent.processing, found.agent.oldest
    says = f"{_many(running, 'cycle')} in flight" + (f", the oldest since {_time(oldest)}" if oldest else "")
    if oldest and found.at - oldest > LONG_CYCLE:
        do = "greenroom rooms --sort age; interrupt those that hang, and give the agent a max_cycle"
        return warning("cycles", says, do)
    return ok("cycles", says)


def _queue(found: Gathered) -> Finding:
    queued = max(0, found.agent.waiting + found.agent.processing - found.owned)
    if not queued or found.queued_at is None:
        return ok("queue", "no room waits for a worker")
    alive = [worker for worker in found.workers if worker.alive]
    full = bool(alive) and all(worker.slots is not None and (worker.rooms or 0) >= worker.slots for worker in alive)
    says = f"in line for a worker: {_many(queued, 'room')}, the first since {_time(found.queued_at)}"
    if found.at - found.queued_at > LONG_WAIT:
        says += "; all workers have as many at work as they may" if full else ""
        return warning("queue", says, "start more workers, raise --max-rooms, or end what hangs: greenroom rooms --sort age")
    return ok("queue", says)


def _failing(found: Gathered) -> Finding:
    failing = max(0, found.owned - found.agent.processing)
    if not failing:
        return ok("failures", "no room waits for another try")
    says = f"in a back-off, or about to run: {_many(failing, 'room')}"
    return warning("failures", says, "greenroom rooms --phase backoff says of what they failed, and when they are tried again")


def _held(found: Gathered) -> Finding:
    if not found.agent.held:
        return ok("held", "no room with work is stopped or paused")
    says = f"stopped or paused, with work: {_many(found.agent.held, 'room')}"
    return warning("held", says, "greenroom rooms --phase held says by whom, why and since when; greenroom play ROOM ends it")


def _dead(found: Gathered) -> Finding:
    dead, most = found.agent.dead, found.keeps.get("dead") or 0
    if not dead:
        return ok("dead", "no dead letters")
    says, do = _many(dead, "dead letter"), "greenroom dead list says of what they died; then dead requeue, or dead drop"
    if dead >= most * NEARLY_ALL:
        says += f" of {most} that are kept: the oldest are dropped beyond"
    return warning("dead", says, do)


def _relays(found: Gathered) -> list[Finding]:
    return [_relay(found, relay) for relay in found.relays] or [ok("relays", "none is registered")]


def _relay(found: Gathered, relay: RelayStatus) -> Finding:
    name, oldest = f"relay {relay.name}", relay.oldest
    waits = f"outputs of {_many(relay.rooms, 'room')} wait for it" + (f", the first since {_time(oldest)}" if oldest else "")
    if relay.holder is None:
        since = f" since {_time(relay.seen_at)}" if relay.seen_at else ""
        says = f"it does not run{since}: {waits}, and nothing that is sent from now on is trimmed"
        return warning(name, says, f"start it; if it is gone for good, greenroom relays forget {relay.name}")
    if oldest and found.at - oldest > LONG_WAIT:
        return warning(name, f"it runs, but {waits}", "its log says why (relay.failed): its receiver may be down")
    return ok(name, f"it runs as {relay.holder}" + (f"; {waits}" if relay.rooms else ""))


def _events(found: Gathered) -> Finding:
    if not found.lately:
        return ok("events", "none of the last hour tells of trouble")
    says = "in the last hour: " + ", ".join(f"{count} {kind}" for kind, count in found.lately.items())
    return warning("events", says, "greenroom tail --events says where")


def _retention(found: Gathered) -> Finding:
    return ok("retention", ", ".join(limit.said(found.keeps[limit.option]) for limit in LIMITS))


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _time(at: dt.datetime | None) -> str:
    return "unknown" if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}"
