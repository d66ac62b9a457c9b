"""The pool that follows the primary, without servers."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from greenroom.protocol import primary
from greenroom.protocol.primary import PrimaryPool


class DeafSentinels:
    """Answer only when the asking is cancelled, and lose the first cancellation, as redis-py may on Python 3.11."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def discover_master(self, name: str) -> tuple[str, int]:
        first = not self.asked.is_set()
        self.asked.set()
        with contextlib.suppress(asyncio.CancelledError) if first else contextlib.nullcontext():
            await asyncio.Event().wait()
        return "127.0.0.1", 1

    async def aclose(self) -> None:
        pass


class ClosedConnection:
    host, port, _writer = "127.0.0.1", 1, None


def test_a_pool_is_closed_also_when_the_cancellation_of_its_looking_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primary, "LOOK_S", 0.0)

    async def open_and_close() -> None:
        sentinels, connection = DeafSentinels(), ClosedConnection()
        pool = PrimaryPool("rooms", sentinels)
        pool.follow(connection)
        await sentinels.asked.wait()
        pool.leave(connection)
        async with asyncio.timeout(30):
            await pool.aclose()

    asyncio.run(open_and_close())
