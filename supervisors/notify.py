"""How a process tells whoever has started it that it works: systemd (``Type=notify``), or the parent of several workers.

Both are told in the words of systemd's protocol: READY=1, STATUS=…, WATCHDOG=1, STOPPING=1.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Self

SOCKET, PERIOD, PROCESS = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
STATUS_S = 10.0  # how often the status is told where no watchdog asks for more
MAX_STATUS_CHARS = 400


class Notifier:
    """Tells over ``connection``: to the address ``to``, or to who is at its other end; None: nobody. Never waits or raises.

    ``watchdog_s``: after how long a silence this process is taken for hung; None: never. A context manager, which closes it.
    """

    def __init__(self, connection: socket.socket | None = None, watchdog_s: float | None = None, to: str = "") -> None:
        self._connection = connection
        self._to = to
        self.watchdog_s = watchdog_s
        self._status = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Self:
        """Of what systemd has set, which is taken out: it is meant for this process, and for none that this one starts."""
        address = environment.pop(SOCKET, "")
        watchdog_s = _watchdog_s(environment)
        if address[:1] not in ("/", "@"):
            return cls()
        to = "\0" + address[1:] if address[0] == "@" else address
        return cls(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), watchdog_s, to)

    @classmethod
    def to_parent(cls, lifeline: int, environment: MutableMapping[str, str] = os.environ) -> Self:
        """Over the lifeline that a parent has given, if it goes both ways."""
        watchdog_s, connection = _watchdog_s(environment), None
        with suppress(OSError):
            end = os.dup(lifeline)
            try:
                connection = socket.socket(fileno=end)
            except OSError:  # a pipe
                os.close(end)
        return cls(connection, watchdog_s)

    @property
    def period_s(self) -> float:
        """How often ``alive`` is to be called: twice as often as a silence would be noticed."""
        return STATUS_S if self.watchdog_s is None else self.watchdog_s / 2

    def ready(self, status: str) -> None:
        self._tell("READY=1", status)

    def alive(self, status: str | None = None) -> None:
        """Call it only from where the work is seen to go on; None: the status is as before."""
        self._tell("" if self.watchdog_s is None else "WATCHDOG=1", self._status if status is None else status)

    def stopping(self, status: str) -> None:
        self._tell("STOPPING=1", status)

    def say(self, status: str) -> None:
        self._tell("", status)

    def _tell(self, word: str, status: str) -> None:
        status = " ".join(status.split())[:MAX_STATUS_CHARS]
        lines = [word] if word else []
        if status != self._status:
            lines.append(f"STATUS={status}")
            self._status = status
        if lines and self._connection is not None:
            data = "".join(f"{line}\n" for line in lines).encode(errors="replace")
            # Not by making the socket one that never waits: the other user of a lifeline does.
            where = (socket.MSG_DONTWAIT, self._to) if self._to else (socket.MSG_DONTWAIT,)
            with suppress(OSError):  # who is told has gone, or does not listen: no reason to do anything else
                self._connection.sendmsg([data], [], *where)


def _watchdog_s(environment: MutableMapping[str, str]) -> float | None:
    period, process = environment.pop(PERIOD, ""), environment.pop(PROCESS, "")
    if not (period.isascii() and period.isdigit() and int(period)) or process not in ("", str(os.getpid())):
        return None
    return int(period) / 1e6
