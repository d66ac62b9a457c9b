"""Where Redis is, as the options of the command line say it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .protocol.connect import DEFAULT_REDIS
from .protocol.errors import InvalidRequest, RedisUnavailable
from .protocol.server import RedisServer

URL_VARIABLE = "GREENROOM_REDIS_URL"
EMBEDDED_VARIABLE = "GREENROOM_EMBEDDED"


def is_default(arguments: Sequence[str]) -> bool:
    """Whether a command with these arguments talks to the usual address because nobody has named another."""
    named = any(word.startswith(("--redis", "--embedded")) for word in arguments)
    return not named and not os.environ.get(URL_VARIABLE) and not os.environ.get(EMBEDDED_VARIABLE)


def server_of(redis: str | None, embedded: Path | None) -> str | RedisServer:
    """The URL, or the embedded server, that the options name; without them the variables, a URL before a directory."""
    if redis is not None and embedded is not None:
        raise InvalidRequest("--redis or --embedded, not both")
    if redis is None and embedded is None:
        redis, folder = os.environ.get(URL_VARIABLE) or None, os.environ.get(EMBEDDED_VARIABLE)
        embedded = Path(folder) if folder else None
    if redis is None and embedded is not None:
        return RedisServer(embedded)
    return DEFAULT_REDIS if redis is None else redis


def url_of(redis: str | None, embedded: Path | None) -> str:
    """The URL that the options name, of an embedded server only if it runs.

    Raises:
        RedisUnavailable: it does not.
    """
    server = server_of(redis, embedded)
    if isinstance(server, str):
        return server
    if not server.find():
        folder = server.directory
        raise RedisUnavailable(f"no embedded Redis runs in {folder}: greenroom run … --embedded {folder} starts it")
    return server.url
