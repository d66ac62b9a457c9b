"""The primary that Sentinels or a cluster name: connections go to it, and are cut as soon as another one is named."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio.sentinel import MasterNotFoundError, SentinelConnectionPool

from .log import log

LOOK_S = 1.0  # how often they are asked while connections are open


class PrimaryPool(SentinelConnectionPool):
    """redis-py's pool, which by itself asks the Sentinels only when it connects.

    That is too late for a primary that hangs, which cuts no connection, and for one that was away for a while and does not
    know yet that it was replaced: it would go on to accept what is lost once it is told. All connections of this pool turn to
    the new primary together, so that a signal that was read from one server is not applied to the other.
    """

    nobody = "no Sentinel names a primary {} that is up"

    def __init__(self, service_name: str, sentinel_manager: Any, **options: Any) -> None:
        super().__init__(service_name, sentinel_manager, **options)  # type: ignore[no-untyped-call]
        self._asking = asyncio.Lock()
        self._followed: set[Any] = set()
        self._look: asyncio.Task[None] | None = None

    async def get_master_address(self) -> Any:
        # One at a time: redis-py moves the Sentinel that answered to the front, and two at once can push another off its list.
        async with self._asking:
            try:
                address = await super().get_master_address()  # type: ignore[no-untyped-call]
            except MasterNotFoundError:  # redis-py says so in a thousand characters
                raise MasterNotFoundError(self.nobody.format(self.service_name)) from None
        for connection in self._followed:
            if (connection.host, connection.port) != address and connection._writer is not None:
                log.warning("redis.replaced", was=f"{connection.host}:{connection.port}", now=f"{address[0]}:{address[1]}")
                connection._writer.transport.abort()
        return address

    def follow(self, connection: Any) -> None:
        """Cut this open connection once it does not lead to the primary any more."""
        self._followed.add(connection)
        if self._look is None or self._look.done() or self._look.cancelling():
            self._look = asyncio.create_task(self._keep_looking(), name="greenroom-primary")

    def leave(self, connection: Any) -> None:
        """The connection is closed."""
        self._followed.discard(connection)
        if self._look is not None and not self._followed:
            self._look.cancel()

    async def _keep_looking(self) -> None:
        # Looked at each time: with the time limit that a Sentinel has, redis-py sends by asyncio.wait_for, which on Python 3.11
        # loses a cancellation that comes as it ends.
        looking = asyncio.current_task()
        while looking is not None and not looking.cancelling():
            await asyncio.sleep(LOOK_S)
            try:
                await self.get_master_address()
            except Exception as error:  # nobody answers, or there is no primary just now: keep what there is
                log.debug("primary.unknown", error=str(error))

    async def aclose(self) -> None:
        if self._look is not None:
            self._look.cancel()
            await asyncio.wait([self._look])  # what it is just connecting would not be closed otherwise
        await super().aclose()
        await self.sentinel_manager.aclose()
