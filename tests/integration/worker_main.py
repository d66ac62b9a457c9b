"""A worker process for tests that kill or suspend one: ``worker_main.py URL AGENT NAME LEASE_S``.

It prints "started", then a line for each handler that is cancelled, and in the end why it ended. Bodies: "wait" sends
["began", pid, attempt] and waits for ever, "wait chatter" then sends numbers for ever, "wait go" returns "went" after a line on
stdin; anything else is answered with itself. It ends with a line on stdin that says "end".
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from datetime import timedelta
from typing import Any

from greenroom import ActorSystem, Agent, Cycle, GreenroomError, Message

GO = threading.Event()


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class Steered(Agent):
    max_attempts = 5
    abort_timeout = timedelta(seconds=1)

    async def respond(self, message: Message, cycle: Cycle) -> Any:
        if not str(message.body).startswith("wait"):
            return message.body
        try:
            await cycle.send(["began", os.getpid(), message.attempt])
            if message.body == "wait go":
                await asyncio.to_thread(GO.wait)
                return "went"
            number = 0
            while message.body == "wait chatter":
                number += 1
                await cycle.send(number)
            await asyncio.Event().wait()
        finally:
            say("ended", message.room, cycle.ticket)


def read_orders(system: ActorSystem) -> None:
    for line in sys.stdin:
        if line.strip() == "go":
            GO.set()
        elif line.strip() == "end":
            system.stop(timedelta(0))


def main() -> int:
    url, agent, name, lease_s = sys.argv[1:]
    with ActorSystem(Steered, agent=agent, redis=url, name=name, lease=timedelta(seconds=float(lease_s))) as system:
        say("started")
        threading.Thread(target=read_orders, args=(system,), daemon=True).start()
        try:
            system.wait()
        except GreenroomError as error:
            say("failed", type(error).__name__)
            return 3
    say("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
