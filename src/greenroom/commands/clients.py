"""What commands talk to Redis through."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from ..protocol.connect import connect
from ..protocol.keys import Keys
from ..protocol.keyspace import no_such_agent
from ..protocol.store import Store
from ..protocol.sync_client import Client, agents_instead
from ..supervisors.process import complain
from ..where import url_of

PATIENCE_S = 5.0


def client_of(agent: str, redis: str | None, embedded: Path | None) -> Client:
    """A client of what the options name."""
    _say_nothing()
    return Client(agent, redis=url_of(redis, embedded), timeout=PATIENCE_S)


@contextmanager
def reading(agent: str, redis: str | None, embedded: Path | None, as_json: bool, *, follow: bool = False) -> Iterator[Client]:
    """The same, for commands that look. That there is no such agent is told people, on stderr: a name is soon mistyped. It is
    told at the end, but where there is none.
    """

    def tell() -> None:
        if not as_json and (others := agents_instead(client)) is not None:
            complain(no_such_agent(agent, others))

    with client_of(agent, redis, embedded) as client:
        if follow:
            tell()
        yield client
        if not follow:
            tell()


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
