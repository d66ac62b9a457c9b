"""A worker process: for each line on stdin it prints, as JSON, what it has done and what it holds."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
from datetime import timedelta
from typing import Any, ClassVar

from benchmarks.figures import resident_kib

from greenroom import ActorSystem, Agent, Backoff, Cycle, Message, Reject, Retention

# As short as each may be: the soak waits them out.
RETENTION = Retention(
    outbox=100,
    outbox_for=timedelta(seconds=5),
    events=1000,
    control=1000,
    receipts=timedelta(minutes=1),
    dead=100,
    idle_rooms=timedelta(seconds=5),
)


async def nothing() -> None:
    """What a step does here."""


class Soaking(Agent):
    """Does a little of everything, by the number that each message is."""

    retry = Backoff(first=timedelta(milliseconds=10), most=timedelta(milliseconds=10))
    ended: ClassVar[int] = 0

    async def respond(self, message: Message, cycle: Cycle) -> Any:
        number = message.body
        Soaking.ended += 1
        if number % 10 == 1:
            await cycle.step("step", nothing)
            await cycle.stream("chunk")
        if number % 100 == 2 and message.attempt == 1:
            raise RuntimeError("fails once")
        if number % 100 == 3:
            raise Reject("is no use")
        cycle.state["n"] = cycle.state.get("n", 0) + 1
        return cycle.state["n"]


def holds(system: ActorSystem) -> dict[str, int]:
    for _ in range(3):  # what a finalizer lets go of is the next round's
        gc.collect()
    rooms = system._worker.rooms
    supervisor = rooms._actor_weakref() if rooms is not None else None
    return {
        "cycles": Soaking.ended,
        "rss_kib": int(resident_kib()),
        "objects": len(gc.get_objects()),
        "rooms": len(supervisor) if supervisor is not None else 0,
        "tasks": sum(len(asyncio.all_tasks(thread.loop)) for thread in (system._control, system._user)),
    }


def main() -> None:
    _, url, agent, name = sys.argv
    logging.getLogger("greenroom").setLevel(logging.ERROR)  # failures and dropped letters are what this is about
    with ActorSystem(Soaking, agent=agent, redis=url, name=name, retention=RETENTION) as system:
        for line in sys.stdin:
            print(json.dumps(holds(system) if line == "holds\n" else {"cycles": Soaking.ended}), flush=True)


if __name__ == "__main__":
    main()
