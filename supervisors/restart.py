"""When a failed child is started again, and when there have been too many of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from ..actors.backoff import Backoff
from ..protocol.errors import InvalidRequest


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

    Raises:
        InvalidRequest: an argument cannot be used.
    """

    intensity: int = 5
    period: timedelta = timedelta(seconds=30)
    backoff: Backoff = _BACKOFF

    def __post_init__(self) -> None:
        if not isinstance(self.intensity, int) or isinstance(self.intensity, bool) or self.intensity < 0:
            raise InvalidRequest(f"RestartPolicy: intensity: want a whole number of 0 or more, got {self.intensity!r}")
        if not isinstance(self.period, timedelta) or self.period <= timedelta(0):
            raise InvalidRequest(f"RestartPolicy: period: want a timedelta of more than 0, got {self.period!r}")
        if not isinstance(self.backoff, Backoff):
            raise InvalidRequest(f"RestartPolicy: backoff: want a Backoff, got {self.backoff!r}")


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
