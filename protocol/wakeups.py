"""Hints that a room's outbox has grown: one connection for any number of followed rooms.

Pub/Sub loses what is published in a gap, so a hint only ever means "look now"; (re)subscribing hints too, and readers look by
themselves every few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from .connect import back_off, open_connection
from .log import log

QUIET_S = 10.0  # after this long without a word from the server it is asked for one, and after twice as long given up


class Wakeups:
    """Watches channels for one event loop."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._watched: dict[bytes, set[asyncio.Event]] = {}
        self._connection: AbstractConnection | None = None
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watch(self, channel: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever there may be something new."""
        name, event = channel.encode(), asyncio.Event()
        first = name not in self._watched
        self._watched.setdefault(name, set()).add(event)
        try:
            if self._task is None:
                self._task = asyncio.create_task(self._keep_listening(), name="greenroom-wakeups")
            elif first:
                await self._tell("SUBSCRIBE", name)
            yield event
        finally:
            self._watched[name].discard(event)
            if not self._watched[name]:
                del self._watched[name]
                await self._tell("UNSUBSCRIBE", name)

    async def close(self) -> None:
        """Stop listening; whoever waits is told to look, and finds what the connection's end means for him."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for events in self._watched.values():
            for event in events:
                event.set()

    async def _tell(self, *words: str | bytes) -> None:
        """Tell the server, if there is one: a new connection subscribes to all that is watched anyway."""
        if self._connection is not None:
            try:
                await self._connection.send_command(*words, check_health=False)
            except (RedisError, OSError):
                self._connection = None

    async def _keep_listening(self) -> None:
        failures = 0
        while True:
            try:
                async with open_connection(self._redis) as connection:
                    self._connection = connection
                    if self._watched:
                        await self._tell("SUBSCRIBE", *self._watched)
                    await self._listen(connection)
            except (RedisError, OSError, TimeoutError) as error:
                log.debug("wakeups.lost", error=str(error))
            finally:
                self._connection = None
            await back_off(failures)
            failures = min(failures + 1, 5)

    async def _listen(self, connection: AbstractConnection) -> None:
        async for reply in published(connection):
            for event in self._watched.get(reply[1], ()):
                event.set()


async def published(connection: AbstractConnection) -> AsyncIterator[list[Any]]:
    """What the server says on a connection that has subscribed; one that says nothing for long is asked for a word.

    Raises:
        TimeoutError: it has none.
    """
    asked = False
    while True:
        reply = await connection.read_response(timeout=QUIET_S)
        if reply is None:
            if asked:
                raise TimeoutError("the server is silent")
            asked = True
            await connection.send_command("PING", check_health=False)
            continue
        asked = False
        yield reply
