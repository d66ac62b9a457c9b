"""What several tests share."""

from __future__ import annotations

import itertools
import os

_numbers = itertools.count(1)


def unique(prefix: str = "test") -> str:
    """A valid name that no other test, and no other process of this run, uses."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"
