"""What has happened in this worker, as numbers: counted where it happens, read by whoever exports them.

Written on the control loop only, read from any thread: one number may be a moment older than another.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

# Upper bounds of histograms, in seconds. A cycle is a call of a model, or of several; a signal is a read that was waiting.
CYCLE_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
SIGNAL_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
PINGS = 120  # of the agent's loop that are remembered: a minute of them, when it answers

# How a cycle, or its message, can end in this worker: the event that says so, and the word for it.
OUTCOMES = {
    "cycle.committed": "committed",
    "cycle.interrupted": "interrupted",
    "cycle.stopped": "stopped",
    "cycle.released": "released",
    "cycle.failed": "failed",
    "cycle.crashed": "crashed",
    "message.dead": "dead",
}
RESTARTS = ("failed", "crashed", "redis")
# What a signal can come to.
SIGNALS = (
    *(("interrupt", outcome) for outcome in ("applied", "idle", "held", "deferred", "already")),
    *(("stop", outcome) for outcome in ("applied", "deferred", "already")),
    *((mode, outcome) for mode in ("pause", "play") for outcome in ("applied", "already")),
)


class Histogram:
    """How many observations were how large. ``counts`` has one number more than ``bounds``: of those above all of them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Lag:
    """How long the agent's event loop takes to answer."""

    __slots__ = ("_answers", "_asked_s")

    def __init__(self) -> None:
        self._answers: deque[float] = deque(maxlen=PINGS)
        self._asked_s: float | None = None

    def asked(self) -> None:
        self._asked_s = time.monotonic()

    def answered(self) -> None:
        if self._asked_s is not None:
            self._answers.append(time.monotonic() - self._asked_s)
        self.forget()

    def forget(self) -> None:
        """Nobody waits for the answer any more."""
        self._asked_s = None

    def most_s(self) -> float:
        """The longest of the last minute or so, one that it still owes included."""
        asked_s = self._asked_s
        owed_s = 0.0 if asked_s is None else time.monotonic() - asked_s
        return max(owed_s, *tuple(self._answers), 0.0)


@dataclass(slots=True)
class Counts:
    """One worker's numbers since its start."""

    ended: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES.values(), 0))
    in_flight: int = 0  # cycles whose code runs, and is waited for
    fenced: int = 0  # effects that Redis refused, because the cycle was not the live one any more
    cycle_s: Histogram = field(default_factory=lambda: Histogram(CYCLE_BOUNDS_S))
    signals: dict[tuple[str, str], int] = field(default_factory=lambda: dict.fromkeys(SIGNALS, 0))  # heard, by mode, outcome
    signal_s: Histogram = field(default_factory=lambda: Histogram(SIGNAL_BOUNDS_S))
    restarts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RESTARTS, 0))  # of rooms
    connected: dict[str, int] = field(default_factory=lambda: {"control": 0, "ready": 0})  # by what is read there
    leases_lost: int = 0
    lag: Lag = field(default_factory=Lag)

    def happened(self, events: str) -> None:
        """Count what a script has told of: the events that it wrote, by their names."""
        for event in events.split():
            if (outcome := OUTCOMES.get(event)) is not None:
                self.ended[outcome] += 1
