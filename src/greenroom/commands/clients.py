"""What commands talk to Redis through."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ..protocol.connect import connect
from ..protocol.keys import Keys
from ..protocol.store import Store
from ..protocol.sync_client import Client
from ..where import url_of

PATIENCE_S = 5.0


def client_of(agent: str, redis: str | None, embedded: Path | None) -> Client:
    """A client of what the options name."""
    _say_nothing()
    return Client(agent, redis=url_of(redis, embedded), timeout=PATIENCE_S)


@asynccontextmanager
async def store_of(agent: str, url: str, patience_s: float = PATIENCE_S) -> AsyncIterator[Store]:
    """The agent's store, for what no client has; it is closed with the block."""
    _say_nothing()
    keys = Keys(agent)
    redis = connect(url, keys.root)
    store = Store(redis, keys, patience_s=patience_s)
    try:
        yield store
    finally:
        await store.close()
        await redis.aclose()


def _say_nothing() -> None:
    # Without a handler, Python prints warnings: what is wrong is said once, by the error.
    logging.getLogger("greenroom").addHandler(logging.NullHandler())
