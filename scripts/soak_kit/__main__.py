"""Runs senders and workers against one redis-server of their own, and compares before with after."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from redis import Redis

from greenroom.protocol.keys import Keys
from greenroom.protocol.server import RedisServer

from .measure import Holdings, differences, kinds_of, left_over, used_mib

AGENT = "soak"
WARM_UP = 20  # messages a room, after which the workers have loaded and made all that they keep
LOOK_S = 1.0
PROGRESS_S = 15.0
STUCK_S = 120.0  # without one cycle: give up, rather than hang
EXPIRY_S = 180.0  # a minute for hashes, keys and receipts, a few rounds of the housekeeper, and a slow machine


class Soak:
    """The workers, and what is done with them."""

    def __init__(self, url: str, rooms: int, workers: int, senders: int) -> None:
        self._url = url
        self._rooms = rooms
        self._senders = senders
        self._names = iter(range(1_000_000))
        command = [sys.executable, "-P", "-m", "soak_kit.worker", url, AGENT]
        self._workers = [
            subprocess.Popen([*command, f"soak-{number}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for number in range(workers)
        ]
        self.redis: Redis = Redis.from_url(url)
        self._ask("cycles")  # each answers when it has started

    def close(self) -> None:
        self.redis.close()
        for worker in self._workers:
            worker.communicate()

    def _ask(self, what: str) -> list[dict[str, int]]:
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{what}\n")
            worker.stdin.flush()
        answers = []
        for worker in self._workers:
            assert worker.stdout is not None
            answers.append(json.loads(worker.stdout.readline()))
        return answers

    def holds(self) -> Holdings:
        return Holdings(used_mib(self.redis), kinds_of(self.redis, AGENT), self._ask("holds"))

    def push(self, each: int) -> None:
        """Send so many messages to each room, and wait until all have ended."""
        share, name = -(-self._rooms // self._senders), next(self._names)
        command = [sys.executable, "-P", "-m", "soak_kit.sender", self._url, AGENT]
        senders = [
            subprocess.Popen([*command, f"s{name}-{first}", str(first), str(min(share, self._rooms - first)), str(each)])
            for first in range(0, self._rooms, share)
        ]
        try:
            self._wait_ended(senders)
        finally:
            for sender in senders:
                sender.kill()  # those that have ended are left alone
                sender.wait()
        if any(sender.returncode for sender in senders):
            raise SystemExit("a sender has failed: see above")

    def _wait_ended(self, senders: list[subprocess.Popen[bytes]]) -> None:
        started = told_at = moved_at = time.monotonic()
        cycles = first = sum(row["cycles"] for row in self._ask("cycles"))
        keys = Keys(AGENT)
        while any(sender.poll() is None for sender in senders) or self.redis.xlen(keys.ready) or self.redis.scard(keys.held):
            time.sleep(LOOK_S)
            now, done = time.monotonic(), sum(row["cycles"] for row in self._ask("cycles"))
            if done > cycles:
                cycles, moved_at = done, now
            if now - told_at > PROGRESS_S:
                told_at = now
                print(f"  {done - first:,} cycles, {(done - first) / (now - started):,.0f} a second", flush=True)
            if now - moved_at > STUCK_S:
                raise SystemExit(f"no cycle for {STUCK_S:.0f} s: {self.redis.xlen(keys.ready)} rooms have work")

    def wait_expired(self) -> None:
        """Wait until nothing is left that ought to go, or for as long as that may take."""
        give_up = time.monotonic() + EXPIRY_S
        while left_over(self.redis, AGENT) and time.monotonic() < give_up:
            time.sleep(LOOK_S)


@contextlib.contextmanager
def soaking(options: argparse.Namespace) -> Iterator[Soak]:
    with (
        tempfile.TemporaryDirectory(prefix="greenroom-soak-") as folder,
        RedisServer(folder) as server,
        contextlib.closing(Soak(server.url, options.rooms, options.workers, options.senders)) as soak,
    ):
        yield soak


def show(when: str, holdings: Holdings) -> None:
    print(when, *holdings.lines(), sep="\n  ", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="how many (1,000,000)")
    parser.add_argument("--rooms", type=int, default=1000, help="through how many rooms (1,000)")
    parser.add_argument("--workers", type=int, default=1, help="worker processes (1)")
    parser.add_argument("--senders", type=int, default=2, help="sending processes (2)")
    options = parser.parse_args()
    for name in ("messages", "rooms", "workers", "senders"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: want 1 or more, got {getattr(options, name)}")
    return options


def main() -> int:
    options = parse()
    each = -(-options.messages // options.rooms)
    with soaking(options) as soak:
        empty_mib = used_mib(soak.redis)
        soak.push(WARM_UP)
        warm = soak.holds()
        before = Holdings(empty_mib, warm.keys, warm.workers)
        show(f"before: workers after {WARM_UP} messages a room, Redis ahead of them ({empty_mib:.2f} MiB)", warm)
        started = time.monotonic()
        soak.push(each)
        spent_s = time.monotonic() - started
        show(
            f"{each * options.rooms:,} messages in {spent_s:.0f} s, {each * options.rooms / spent_s:,.0f} a second",
            soak.holds(),
        )
        soak.wait_expired()
        after = soak.holds()
        show("after all that is kept for some time has gone", after)
    found = differences(before, after)
    print("\n".join(found) or "Redis and the workers are back where they were")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
