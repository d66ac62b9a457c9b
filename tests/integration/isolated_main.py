"""A program whose agent is its own and runs in child processes: ``isolated_main.py URL AGENT``. It prints "started", and ends
with a line on stdin, or when that ends.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

from greenroom import ActorSystem, Cycle, Message
from integration.isolated_agents import Pair


class Own(Pair):
    async def respond(self, message: Message, cycle: Cycle) -> Any:
        if message.body == "who":
            return [os.getpid(), os.getppid()]
        return await super().respond(message, cycle)


def main() -> None:
    url, agent = sys.argv[1:]
    with ActorSystem(Own, agent=agent, redis=url) as system:
        sys.stdout.write("started\n")
        sys.stdout.flush()
        sys.stdin.readline()
        system.stop(timedelta(0))


if __name__ == "__main__":
    main()
