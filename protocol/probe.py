"""Where a worker answers whether it lives, and how it is asked. Kept light: a probe is started every few seconds."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path

LIVE = b"live\n"


def socket_path(folder: Path, agent: str, worker: str) -> Path:
    """The Unix socket of a worker. Its name is short, as such paths have to be, and says nothing that a name may not."""
    return folder / f"{_digest(agent)}-{_digest(worker)}.sock"


def sockets_of(folder: Path, agent: str) -> Iterator[Path]:
    """The sockets of all workers of the agent that have run there."""
    return folder.glob(f"{_digest(agent)}-*.sock")


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def is_live(path: Path, timeout_s: float) -> bool | None:
    """Whether the worker of that socket answers within ``timeout_s``; None when nobody listens there."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(timeout_s)
        try:
            asking.connect(str(path))
            return asking.recv(len(LIVE)) == LIVE
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError:  # also a time-out, and a worker that has too many askers to answer to
            return False
