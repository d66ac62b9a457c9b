"""The client of a command."""

from __future__ import annotations

import logging
from pathlib import Path

from ..protocol.sync_client import Client
from ..running import url_of

PATIENCE_S = 5.0


def client_of(agent: str, redis: str | None, embedded: Path | None) -> Client:
    """A client of what the options name."""
    # Without a handler, Python prints warnings: what is wrong is said once, by the error.
    logging.getLogger("greenroom").addHandler(logging.NullHandler())
    return Client(agent, redis=url_of(redis, embedded), timeout=PATIENCE_S)
