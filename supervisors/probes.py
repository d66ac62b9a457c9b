"""The socket on which a worker answers probes: its control loop does, so one that hangs does not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from ..protocol.errors import InvalidRequest
from ..protocol.probe import LIVE, READY, socket_path


class ProbeSocket:
    """Tells whoever connects that the worker lives, and whether it is ``ready``. It asks nobody, Redis neither."""

    def __init__(self, folder: Path, agent: str, worker: str, ready: Callable[[], bool]) -> None:
        self._ready = ready
        self._path = socket_path(folder, agent, worker)
        self._server: asyncio.Server | None = None
        self._inode = 0

    async def open(self) -> None:
        """Listen, in place of a former worker of the same name.

        Raises:
            InvalidRequest: the directory cannot be used.
        """
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._server = await asyncio.start_unix_server(self._answer, self._path)
            self._inode = os.stat(self._path).st_ino
        except OSError as error:
            raise InvalidRequest(f"probes: {self._path.parent} cannot hold a Unix socket: {error}") from None

    def close(self) -> None:
        """Listen no more. A second call, or one before ``open``, does nothing."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        try:
            if os.stat(self._path).st_ino == self._inode:  # a newer worker of this name may have put its own there
                os.unlink(self._path)
        except OSError:  # gone already
            pass

    async def _answer(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(READY if self._ready() else LIVE)
        writer.close()
