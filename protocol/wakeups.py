"""Hints that a room's outbox has grown: one connection for any number of followed rooms.

Pub/Sub loses what is published in a gap, so a hint only ever means "look now"; (re)subscribing hints too, and readers look by
themselves every few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
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

    def watch(self, channel: str) -> Watch:
        """An event that is set whenever there may be something new, for ``async with``."""
        return Watch(self, channel.encode())

    async def begin(self, channel: bytes, event: asyncio.Event) -> None:
        """Set the event with each hint, from now on."""
        first = channel not in self._watched
        self._watched.setdefault(channel, set()).add(event)
        if self._task is None:
            self._task = asyncio.create_task(self._keep_listening(), name="greenroom-wakeups")
        elif first:
            await self._tell("SUBSCRIBE", channel)

    async def end(self, channel: bytes, event: asyncio.Event) -> None:
        """Set it no more."""
        events = self._watched[channel]
        events.discard(event)
        if not events:
            del self._watched[channel]
            await self._tell("UNSUBSCRIBE", channel)

    async def close(self) -> None:
        """Stop listening; whoever waits is told to look, and finds what the connection's end means for him."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for events in self._watched.values():
            for event in events:
                event.set()

    async def _tell(self, *words: str | bytes) -> None:
        """Tell the server, if there is one: a new connection subscribes to all that is watched anyway. One that is lost is not
        written to: redis-py would connect it anew, and nobody would read or close it.
        """
        if self._connection is not None and self._connection.is_connected:
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


class Watch:
    """One reader's interest in a channel. No generator: a loop that ends closes all of those at once, in no order, and so this
    one under the reader's, which is still to leave it.
    """

    def __init__(self, wakeups: Wakeups, channel: bytes) -> None:
        self._wakeups = wakeups
        self._channel = channel
        self._event = asyncio.Event()

    async def __aenter__(self) -> asyncio.Event:
        try:
            await self._wakeups.begin(self._channel, self._event)
        except BaseException:
            await self._wakeups.end(self._channel, self._event)
            raise
        return self._event

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._wakeups.end(self._channel, self._event)


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
