"""The explorer on the command line: N runs from seed S on a redis-server of its own."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time

from greenroom.protocol.server import RedisServer

from .checks import Violation
from .explorer import Explorer

PROGRESS_EVERY = 500


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/explore", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="how many runs (1000)")
    parser.add_argument("--seed", type=int, default=1, help="the first one's seed; each next one is greater by 1 (1)")
    parser.add_argument("--redis-server", help="the executable (default: as for every greenroom)")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        RedisServer(directory, executable=options.redis_server, appendonly=False) as server,
    ):
        return explore(server.url, options.seed, options.runs)


def explore(url: str, first: int, runs: int) -> int:
    """Run these seeds; 1 at the first violation, else 0."""
    explorer, started = Explorer(url), time.monotonic()
    try:
        for done in range(runs):
            if done and done % PROGRESS_EVERY == 0:
                print(f"{done} runs, {done / (time.monotonic() - started):.0f} a second", flush=True)
            explorer.run(first + done)
    except Violation as violation:
        print(violation)
        print(f"{done + 1} runs, 1 violation")
        return 1
    finally:
        explorer.close()
    print(f"{runs} runs, 0 violations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
