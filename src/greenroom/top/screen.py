"""The terminal of ``top``: its other screen, no cursor, keys without echo; as it was before, however the block ends."""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text


class Screen:
    """Takes the terminal over for a block; ``suspend`` gives it back until the process is continued."""

    def __init__(self) -> None:
        self.console = Console()
        self.keys = sys.stdin.fileno()
        self._before: list[Any] = []
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self.keys)
        try:
            tty.setcbreak(self.keys)
            self._live = Live(console=self.console, screen=True, auto_refresh=False)
            self._live.start()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._restore()

    def _restore(self) -> None:
        try:
            if self._live is not None:
                self._live.stop()
        finally:
            self._live = None
            termios.tcsetattr(self.keys, termios.TCSADRAIN, self._before)

    def show(self, lines: list[Text]) -> None:
        assert self._live is not None, "within the block"
        self._live.update(Group(*lines), refresh=True)

    def suspend(self) -> None:
        """As Ctrl-Z: the shell has its terminal back, and this process stands still until it is continued."""
        self._restore()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.__enter__()
