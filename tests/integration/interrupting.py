"""Ctrl-C at each point in turn of what a main thread does in greenroom's own code."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest


class Presses:
    """Raises KeyboardInterrupt at the ``number``-th point, in functions of these files that the calling thread runs, at which
    Python runs the handlers of signals: where such a function begins, or one that is written in C has returned to it.
    """

    def __init__(self, number: int, *files: str) -> None:
        self._left, self._files = number, files
        self.place: str | None = None

    def __enter__(self) -> Presses:
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "c_return") or not frame.f_code.co_filename.endswith(self._files):
            return
        self._left -= 1
        if self._left < 0 and self.place is None:
            self.place = f"{frame.f_code.co_qualname}:{frame.f_lineno} ({event})"
            raise KeyboardInterrupt


def complaints_of(act: Callable[[Presses], object], *files: str) -> list[str]:
    """What Python says when Ctrl-C comes at each point of ``act`` in turn, until it has come to its end without one."""
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("always")
        for number in range(10_000):
            presses = Presses(number, *files)

            def complain(unraisable: Any, presses: Presses = presses) -> None:
                said.append(f"{presses.place}: {unraisable.err_msg} {unraisable.exc_value!r} {unraisable.object!r}")

            patch.setattr(sys, "unraisablehook", complain)
            patch.setattr(warnings, "showwarning", lambda word, *_, presses=presses: said.append(f"{presses.place}: {word}"))
            try:
                act(presses)
            except KeyboardInterrupt:
                assert presses.place is not None
            gc.collect()
            if presses.place is None:
                return said
    raise AssertionError("it never ends")
