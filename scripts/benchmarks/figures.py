"""What a benchmark finds, and how it is shown."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. ``aim`` is what it ought to be, with its sign: ``> 10,000``; ``met`` None when there is none."""

    section: str
    what: str
    value: float
    unit: str
    aim: str = ""
    met: bool | None = None
    note: str = ""

    def line(self) -> str:
        number = f"{self.value:,.0f}" if abs(self.value) >= 100 else f"{self.value:,.2f}"
        verdict = {None: "", True: "met", False: "missed"}[self.met]
        return f"({self.section}) {self.what:<44} {number:>10} {self.unit:<7} {self.aim:<10} {verdict:<7} {self.note}".rstrip()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


HEAD = f"{'':<3} {'':<44} {'measured':>10} {'':<7} {'aim':<10}"


def above(section: str, what: str, value: float, unit: str, aim: float | None = None, note: str = "") -> Figure:
    """A figure that ought to be above its aim, if it has one."""
    sign, met = ("", None) if aim is None else (f"> {aim:,}", value > aim)
    return Figure(section, what, value, unit, sign, met, note)


def below(section: str, what: str, value: float, unit: str, aim: float | None = None, note: str = "") -> Figure:
    """A figure that ought to be below its aim, if it has one."""
    sign, met = ("", None) if aim is None else (f"< {aim:,}", value < aim)
    return Figure(section, what, value, unit, sign, met, note)


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile; of no values, not a number."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)] if ranked else math.nan


def resident_kib() -> float:
    """Resident memory of this process in KiB."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024
    return float(subprocess.run(["/bin/ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, check=True).stdout)
