"""A connection that was reset is lost, on every Python."""

from __future__ import annotations

from functools import cache
from typing import Any

from redis import exceptions as redis_errors
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection


class _Guarded(AbstractConnection):
    """Is not written to once it was reset, which nobody may have read yet: asyncio drops what is written then, and from Python
    3.12 on (https://github.com/python/cpython/issues/136234) raises an AttributeError, which redis-py hands on.
    """

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        if self._writer is not None and self._writer.transport.is_closing():
            await self.disconnect(nowait=True)
            raise redis_errors.ConnectionError("Connection lost")
        await super().send_packed_command(*args, **options)


def guarded(redis: Redis) -> Redis:
    """The same client; to its connections a write fails with redis-py's ConnectionError once they were reset."""
    pool: Any = redis.connection_pool
    pool.connection_class = _guarded(pool.connection_class)
    return redis


@cache
def _guarded(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    return type(kind.__name__, (_Guarded, kind), {})
