"""Where a worker answers how it is, and how it is asked. Kept light: a probe is started every few seconds."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path

LIVE, READY = b"live\n", b"ready\n"  # all that a worker says: its control loop turns; and it works, too


def socket_path(folder: Path, agent: str, worker: str) -> Path:
    """The Unix socket of a worker. Its name is short, as such paths have to be, and says nothing that a name may not."""
    return folder / f"{_digest(agent)}-{_digest(worker)}.sock"


def sockets_of(folder: Path, agent: str) -> Iterator[Path]:
    """The sockets of all workers of the agent that have run there."""
    return folder.glob(f"{_digest(agent)}-*.sock")


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def ask_worker(path: Path, timeout_s: float) -> bytes | None:
    """What the worker of that socket says; nothing when it does not within ``timeout_s``; None when nobody listens there."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(timeout_s)
        try:
            asking.connect(str(path))
            return asking.recv(max(len(LIVE), len(READY)))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError:  # also a time-out, and a worker that has more askers than it can answer
            return b""
