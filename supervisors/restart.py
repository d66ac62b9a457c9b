"""When a failed child is started again, and when there have been too many of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from ..actors.backoff import Backoff


class Restart(StrEnum):
    """``permanent``: always; ``transient``: only after a failure; ``temporary``: never."""

    PERMANENT = "permanent"
    TRANSIENT = "transient"
    TEMPORARY = "temporary"

    def after(self, failure: BaseException | None) -> bool:
        """Whether a child that ended so is to be started again."""
        return self is Restart.PERMANENT or (self is Restart.TRANSIENT and failure is not None)


_BACKOFF = Backoff(first=timedelta(milliseconds=50), most=timedelta(seconds=5))


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """At most ``intensity`` restarts within ``period``; each waits as ``backoff`` says, from its first step again once the
    child has been up for ``period``.
    """

    intensity: int = 5
    period: timedelta = timedelta(seconds=30)
    backoff: Backoff = _BACKOFF


@dataclass(slots=True)
class RestartHistory:
    """The restarts of one child, or of one group; times are of a monotonic clock, in seconds."""

    policy: RestartPolicy
    _times: deque[float] = field(default_factory=deque)
    total: int = 0
    _row: int = 0
    _last: float = float("-inf")

    def next_delay_s(self, now_s: float) -> float | None:
        """Record a failure; answer how long to wait before the restart, or None when the budget is spent."""
        period_s = self.policy.period.total_seconds()
        while self._times and now_s - self._times[0] > period_s:
            self._times.popleft()
        if len(self._times) >= self.policy.intensity:
            return None
        self._row = self._row + 1 if now_s - self._last <= period_s else 1
        self._last = now_s
        self._times.append(now_s)
        self.total += 1
        return self.policy.backoff.delay_s(self._row)
