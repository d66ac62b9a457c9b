"""One worker process, with a lease of its own: ``python -m chaos_kit.worker URL AGENT NAME LEASE_S``."""

from __future__ import annotations

import logging
import sys
from datetime import timedelta

from greenroom import ActorSystem
from greenroom.supervisors.process import Exit, run_process

from .agent import Chaos

GRACE_S = 1.0  # less than some cycles take: a drain finds some to give back
MAX_ROOMS = 12  # less than there are rooms: they must take turns


def main() -> None:
    url, agent, name, lease_s = sys.argv[1:]
    end = Exit()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    lease = timedelta(seconds=float(lease_s))
    system = ActorSystem(Chaos, agent=agent, redis=url, name=name, max_rooms=MAX_ROOMS, lease=lease)
    end(run_process(system, timedelta(seconds=GRACE_S)))


if __name__ == "__main__":
    main()
