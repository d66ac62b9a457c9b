"""Why a message is not answered yet, in words for those who wait for it."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Sequence

from . import fleet, inspection
from .errors import GreenroomError
from .fleet import WorkerStatus
from .records import AgentStatus, Hold, Phase, RoomStatus
from .store import Store

LOOK_S = 1.0


async def reason(store: Store, room: str, message: int) -> str:
    """Why that message of the room still waits, with a colon before it; nothing if Redis does not say so within a second."""
    try:
        async with asyncio.timeout(LOOK_S):
            status, agent, workers = await asyncio.gather(
                inspection.statuses(store, [room]), inspection.overview(store), fleet.workers(store)
            )
    except (TimeoutError, OSError, GreenroomError):  # it is of no more than help
        return ""
    words = why(status[0], agent, workers, message)
    return words and f": {words}"


def why(status: RoomStatus, agent: AgentStatus, workers: Sequence[WorkerStatus], message: int | None = None) -> str:
    """What a room with work waits for, or is at; nothing for one without work. ``message`` is the one that is asked about."""
    if status.phase is None:
        return ""
    alive = {worker.name: worker for worker in workers if worker.alive}
    if status.phase is Phase.PROCESSING:
        return _at_work(status, alive.get(status.owner or ""), message)
    if status.hold is not None:
        return f"the room is held until play: {_held(status.hold)}"
    if agent.hold is not None:
        return f"the whole agent is held until play: {_held(agent.hold)}"
    if not alive:
        return f"no worker of the agent {agent.agent} is running"
    if status.phase is Phase.BACKOFF:
        at = f"at {_time(status.retry_at)}" if status.retry_at is not None else "soon"
        failed = f"attempt {status.attempt} failed" if status.attempt else "it cannot be begun"  # no attempt was charged
        return f"{_before(status, message)}{failed} ({status.last_error}), and it is tried again {at}"
    return "no worker has taken the room yet" + (f" ({status.last_error})" if status.last_error else "")


def _at_work(status: RoomStatus, worker: WorkerStatus | None, message: int | None) -> str:
    whose = f"{_before(status, message)}its cycle"
    since = "" if status.claimed_at is None else f" since {_time(status.claimed_at)}"
    if worker is None:
        name = "a worker" if status.owner is None else f"worker {status.owner}"  # it has no owner once it was adopted
        return f"{whose} has been running{since} on {name}, which is gone: another one takes the room over"
    return f"{whose} has been running{since} on worker {worker.name} (process {worker.pid} on {worker.host})"


def _before(status: RoomStatus, message: int | None) -> str:
    return "" if message in (None, status.processing) else f"message {status.processing} is before it: "


def _held(hold: Hold) -> str:
    return f"{hold.mode} by {hold.by or 'unknown'} at {_time(hold.at)}" + (f", because: {hold.reason}" if hold.reason else "")


def _time(at: dt.datetime | None) -> str:
    return "an unknown time" if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}"
