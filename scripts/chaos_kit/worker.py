"""One worker process: ``python -m chaos_kit.worker URL NAME AGENT LEASE_S MAX_ROOMS RECOVERY_RATE``."""

from __future__ import annotations

import logging
import sys
from datetime import timedelta

from greenroom import ActorSystem
from greenroom.supervisors.process import Exit, run_process

from .agent import Chaos

GRACE_S = 1.0  # less than some cycles take: a drain finds some to give back


def main() -> None:
    url, name, agent, lease_s, max_rooms, recovery_rate = sys.argv[1:]
    end = Exit()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    system = ActorSystem(
        Chaos,
        agent=agent,
        redis=url,
        name=name,
        max_rooms=int(max_rooms),
        lease=timedelta(seconds=float(lease_s)),
        recovery_rate=float(recovery_rate),
    )
    end(run_process(system, timedelta(seconds=GRACE_S)))


if __name__ == "__main__":
    main()
