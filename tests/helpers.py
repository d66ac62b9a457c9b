"""What several tests share."""

from __future__ import annotations

import itertools
import os
import random
import socket
import time
from pathlib import Path

from greenroom.protocol.server import RedisServer

_numbers = itertools.count(1)
# Each process of this run has ports of its own. They are below those that the system gives to connections: one of these may
# be somebody's before the server that it was meant for has started, or while it is away for a moment.
_BLOCK = 500
_FIRST_PORT = 10_000 + _BLOCK * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 10)
_offsets = itertools.count(random.SystemRandom().randrange(_BLOCK))
BUS = 10_000  # how far above its port the port lies on which a node of a Redis Cluster talks to the others
RECEIVE_S = 60.0


def unique(prefix: str = "test") -> str:
    """A valid name that no other test, and no other process of this run, uses."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"


def free_port() -> int:
    """A port that nobody listens on, nor on its bus port, and that this process has not given to anybody lately."""
    for _ in range(_BLOCK):
        port = _FIRST_PORT + next(_offsets) % _BLOCK
        try:
            for each in (port, port + BUS):
                socket.create_server(("127.0.0.1", each)).close()
        except OSError:
            continue
        return port
    raise AssertionError(f"no port is free from {_FIRST_PORT} on")


def lasting_server(folder: Path) -> RedisServer:
    """A redis-server, not started, that forgets nothing of what it has answered when it is killed."""
    return RedisServer(folder, extra=["--appendfsync", "always"])


class Mute(Exception):
    """An error that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Receiver:
    """Where systemd would listen (``$NOTIFY_SOCKET``): a datagram socket at a path, or with an abstract name (``@…``)."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address[0] == "@" else address)
        self.lines: list[str] = []  # all that was received so far

    def said(self) -> list[str]:
        """The datagrams that have come since the last look."""
        found = []
        while (data := self._receive(0.0)) is not None:
            found.append(data)
        return found

    def wait(self, words: str) -> str:
        """Wait for a line with these words among those that come from here on; answer it."""
        deadline = time.monotonic() + RECEIVE_S
        while (data := self._receive(deadline - time.monotonic())) is not None:
            for line in data.splitlines():
                if words in line:
                    return line
        raise AssertionError(f"not told: {words}, but {self.lines}")

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing comes for so long."""
        return self._receive(seconds) is None

    def _receive(self, seconds: float) -> str | None:
        self._socket.settimeout(max(0.0, seconds))
        try:
            data = self._socket.recv(65536).decode()
        except (BlockingIOError, TimeoutError):
            return None
        self.lines += data.splitlines()
        return data

    def close(self) -> None:
        self._socket.close()
