"""A process that fills rooms: each gets as many messages as its queue takes, and now and then an interrupt."""

from __future__ import annotations

import asyncio
import sys

from greenroom.protocol import codec
from greenroom.protocol.connect import connect
from greenroom.protocol.keys import Keys
from greenroom.protocol.store import Answer, Store

QUEUE = 50  # messages that wait in a room at the most: Redis holds no more than that at once
PAGE = 250
FULL_S = 0.05
INTERRUPT_EVERY = 50  # pages


async def fill(store: Store, page: list[str], number: int, name: str) -> None:
    """Put the message ``number`` into each room of the page."""
    body = codec.encode(number)
    while page:
        sent = [store.enqueue(room, body, key=f"{name}-{room}-{number}", key_ttl_s=60, limit=QUEUE) for room in page]
        answers = await asyncio.gather(*sent)
        page = [room for room, answer in zip(page, answers, strict=True) if isinstance(answer, Answer)]
        if page:
            await asyncio.sleep(FULL_S)


async def send(url: str, agent: str, name: str, rooms: list[str], each: int) -> None:
    redis = connect(url)
    store = Store(redis, Keys(agent))
    pages = 0
    for number in range(each):
        for start in range(0, len(rooms), PAGE):
            page = rooms[start : start + PAGE]
            await fill(store, page, number, name)
            pages += 1
            if pages % INTERRUPT_EVERY == 0:
                await store.control("interrupt", tuple(page[:10]), cid=f"{name}-{pages}", by="soak")
    await store.close()
    await redis.aclose()


if __name__ == "__main__":
    _, url, agent, name, first, count, each = sys.argv
    names = [f"room-{number}" for number in range(int(first), int(first) + int(count))]
    asyncio.run(send(url, agent, name, names, int(each)))
