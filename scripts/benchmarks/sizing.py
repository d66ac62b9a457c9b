"""(h) What things take in Redis, of memory and of time, and what a worker takes before it has any: what sizing begins with."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta

from redis import Redis

from greenroom import ActorSystem
from greenroom.protocol import codec
from greenroom.protocol.connect import connect
from greenroom.protocol.keys import Keys
from greenroom.protocol.store import Grant, Store, Terms, read_ready, set_state

from .figures import Figure, below
from .memory import settled_kib
from .workload import PATIENCE_S, Worker, room_names

KEYS = Keys("bench")
ROOMS, EACH, PAGE = 5_000, 50, 1000
DATA = codec.encode("x" * 98)  # a body, a reply or a state, of 100 bytes


def sizing(url: str, *, quick: bool) -> Iterator[Figure]:
    rooms = room_names(ROOMS // 10 if quick else ROOMS)
    count, messages = len(rooms), len(rooms) * EACH
    with Redis.from_url(url) as redis:
        asyncio.run(_enqueue(url, rooms[:1], 1))
        asyncio.run(_work(url))
        redis.flushall()  # the scripts stay, which are no room's share
        empty = _used(redis)
        asyncio.run(_enqueue(url, rooms, 1))
        first = _used(redis)
        stop_us, play_us = asyncio.run(_signal_all(url))
        asyncio.run(_enqueue(url, rooms, EACH - 1))
        queued = _used(redis)
        _forget(redis, f"{KEYS.root}:seen:*")
        unkeyed = _used(redis)
        asyncio.run(_work(url))
        for room in rooms:
            redis.delete(KEYS.room(room))  # it would be gone in a minute
        worked = _used(redis)
        _forget(redis, KEYS.outbox("*"))
        idle = _used(redis)
        redis.flushall()
    key = (queued - unkeyed) / messages
    yield below("h", "an idle room, with 100 bytes of state", (idle - empty) / count, "bytes")
    yield below("h", f"an output of 100 bytes, in an outbox of {EACH}", (worked - idle) / messages, "bytes")
    yield below("h", "a room with a message of 100 bytes", (first - empty) / count - key, "bytes")
    yield below("h", f"each message more, up to {EACH}", (queued - first) / (messages - count) - key, "bytes")
    yield below("h", "the key of a send", key, "bytes")
    yield below("h", "a stop of all rooms, for each that has work", stop_us / count, "µs")
    yield below("h", "a play of all rooms, for each that is held", play_us / count, "µs")
    yield below("h", "a worker with nothing to do", _worker_kib(url) / 1024, "MiB")


def _used(redis: Redis) -> int:
    redis.delete(KEYS.events)  # of the agent, and no room's share
    return int(redis.info("memory")["used_memory"])


def _forget(redis: Redis, pattern: str) -> None:
    keys = list(redis.scan_iter(pattern, count=PAGE))
    for start in range(0, len(keys), PAGE):
        redis.delete(*keys[start : start + PAGE])


async def _enqueue(url: str, rooms: list[str], each: int) -> None:
    """Send ``each`` messages to each room, with keys such as a client makes up."""
    redis = connect(url)
    store = Store(redis, KEYS)
    for _ in range(each):
        for start in range(0, len(rooms), PAGE):
            page = rooms[start : start + PAGE]
            sent = [store.enqueue(room, DATA, key=uuid.uuid4().hex, key_ttl_s=3600, limit=EACH) for room in page]
            await asyncio.gather(*sent)
    await store.close()
    await redis.aclose()


async def _signal_all(url: str) -> tuple[float, float]:
    """How long a stop and a play of all rooms take, in µs: each is one script, and Redis does nothing else meanwhile."""
    redis = connect(url)
    store, took = Store(redis, KEYS), []
    for mode in ("stop", "play"):
        began_s = time.perf_counter()
        await store.control(mode, (), cid=uuid.uuid4().hex, by="bench")
        took.append((time.perf_counter() - began_s) * 1e6)
    await store.close()
    await redis.aclose()
    return took[0], took[1]


async def _work(url: str) -> None:
    """Reply to every message, and leave a state in every room."""
    redis, terms = connect(url), Terms()
    store = Store(redis, KEYS)
    beat = await store.heartbeat("bare", None, lease_ms=600_000, instance="bench", about={})
    group = ("XREADGROUP", "GROUP", "supervisors", "bare", "COUNT", PAGE, "STREAMS", KEYS.ready, ">")

    async def drive(ready: str, room: str) -> None:
        answer = await store.claim(room, worker="bare", incarnation=beat.incarnation, ready=ready, request=ready, terms=terms)
        while isinstance(answer, Grant):
            answer = await store.commit(room, answer.ticket, state=set_state(DATA), reply=DATA, take_next=True, terms=terms)

    while entries := read_ready(await store.pipeline.command(*group)):
        await asyncio.gather(*(drive(ready, room) for ready, room in entries))
    await store.close()
    await redis.aclose()


def _worker_kib(url: str) -> float:
    command = [sys.executable, "-P", "-m", "benchmarks.sizing", url]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE_S)
    return float(done.stdout)


if __name__ == "__main__":
    with ActorSystem(Worker, agent=KEYS.agent, redis=sys.argv[1]) as system:
        print(settled_kib())
        system.stop(timedelta(0))
