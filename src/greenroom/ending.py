"""Ctrl-C on the command line."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
STDERR = 2

_restoring: list[bytes] = []


def end_on_ctrl_c() -> None:
    """From here on Ctrl-C ends this process at once, with 130, unless it is ignored, as in a shell's background.

    Commands have nothing to finish. A KeyboardInterrupt comes anywhere: in the middle of an import it is a traceback, and in a
    callback of the garbage collector's Python complains of it and goes on, so that whoever pressed the keys would wait.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_on_ctrl_c() -> None:
    """Have it be a KeyboardInterrupt again, for asyncio, which takes it between two callbacks: for what has more to restore."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def restoring(words: bytes) -> Iterator[None]:
    """Within this block Ctrl-C, SIGTERM and SIGHUP write these words to the terminal before they end the process."""
    _restoring.append(words)
    ending = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in ending:
        signal.signal(number, _end_by)
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)
        _restoring.remove(words)


def _restore() -> None:
    with suppress(OSError):  # there is no terminal any more
        for words in _restoring:
            os.write(STDERR, words)


def _end(*_: object) -> None:
    _restore()
    os._exit(INTERRUPTED)


def _end_by(number: int, _: object) -> None:
    _restore()
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
