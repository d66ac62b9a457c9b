"""How long to wait before the next try."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta

from ..protocol.errors import AgentError


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential with jitter: ``first``, doubled with each try up to ``most``; each wait is drawn from its upper half.

    Raises:
        AgentError: for durations that make no sense.
    """

    first: timedelta = timedelta(seconds=1)
    most: timedelta = timedelta(minutes=1)

    def __post_init__(self) -> None:
        if not isinstance(self.first, timedelta) or not isinstance(self.most, timedelta):
            raise AgentError("Backoff: first and most are timedelta")
        if not timedelta(0) <= self.first <= self.most:
            raise AgentError(f"Backoff: want 0 <= first <= most, got first={self.first}, most={self.most}")

    def delay_s(self, tries: int) -> float:
        """Seconds to wait after ``tries`` (1 or more) failed tries."""
        whole = min(self.most.total_seconds(), self.first.total_seconds() * 2 ** min(tries - 1, 40))
        return random.uniform(whole / 2, whole)
