"""Runs the benchmarks that are asked for, against one redis-server of their own, and prints one table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redis import Redis

from greenroom.protocol.server import RedisServer

from .figures import HEAD, Figure
from .inside import inside
from .isolated import isolated
from .latency import latency
from .memory import memory
from .recovery import recovery
from .sizing import sizing
from .throughput import throughput

SECTIONS = {
    "a": "messages a second through an actor system: state and reply each, enqueued beforehand",
    "b": "the ceiling: the same scripts from one bare event loop",
    "c": "an interrupt from another process: to the CancelledError in the handler, and to the answer",
    "d": "resident memory of a worker",
    "e": "recovery after SIGKILL of a worker: until what it had in processing is replayed",
    "f": "inside a cycle: what a step and a chunk cost, and chunks a second of many streaming rooms",
    "g": "cycles in child processes: what one costs, and how long a child outlives the stop of its cycle",
    "h": "sizing: what rooms, messages and outputs take of Redis' memory, and a worker with nothing to do",
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measures greenroom on this machine.")
    listing = "; ".join(f"{letter}: {what}" for letter, what in SECTIONS.items())
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"sections, separated by commas ({listing})")
    parser.add_argument("--quick", action="store_true", help="a tenth of the numbers, once: to see that it works")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each shape of (a), (b), (f) and (g); the median counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    options.sections = set(options.only.split(","))
    if not options.sections <= set(SECTIONS):
        parser.error(f"--only: want some of {', '.join(SECTIONS)}, got {options.only}")
    if options.repeats < 1:
        parser.error(f"--repeats: want 1 or more, got {options.repeats}")
    return options


def figures(url: str, options: argparse.Namespace) -> Iterator[Figure]:
    sections, quick = options.sections, options.quick
    if sections & {"a", "b"}:
        yield from throughput(url, sections, quick=quick, repeats=1 if quick else options.repeats)
    if "c" in sections:
        yield from latency(url, quick=quick)
    if "d" in sections:
        yield from memory(url, quick=quick)
    if "e" in sections:
        yield from recovery(url, quick=quick)
    if "f" in sections:
        yield from inside(url, quick=quick, repeats=1 if quick else options.repeats)
    if "g" in sections:
        yield from isolated(url, quick=quick, repeats=1 if quick else options.repeats)
    if "h" in sections:
        yield from sizing(url, quick=quick)


def machine(url: str) -> dict[str, Any]:
    with Redis.from_url(url) as redis:
        version = redis.info("server")["redis_version"]
    return {"cpus": os.cpu_count(), "python": platform.python_version(), "redis": version, "machine": platform.machine()}


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="greenroom-bench-") as folder, RedisServer(folder) as server:
        about = machine(server.url)
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        cpus = f"{about['cpus']} CPUs ({about['machine']}, load {load})"
        print(f"{cpus}, Python {about['python']}, Redis {about['redis']} with an append-only file")
        for letter in sorted(options.sections):
            print(f"({letter}) {SECTIONS[letter]}")
        print(HEAD)
        found = []
        for figure in figures(server.url, options):
            found.append(figure)
            print(figure.line(), flush=True)
    if options.json is not None:
        options.json.write_text(
            json.dumps({"machine": about, "figures": [figure.as_dict() for figure in found]}, indent=2) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
