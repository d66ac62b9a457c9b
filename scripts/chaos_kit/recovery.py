"""How long rooms were without a worker after theirs had been killed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from greenroom import Kind

from .ledger import Death, Ledger, Seen


def recovery_ms(ledger: Ledger) -> dict[bool, list[int]]:
    """For each cycle that died with its worker: the ms until its message was taken up again, or ended, or its room was found to
    be held; by whether a worker of the same name came next. From the kill to the entry that closes the dead cycle, which is
    written in the same act as the next grant.
    """
    found: dict[bool, list[int]] = {True: [], False: []}
    for death in ledger.deaths:
        for room, ticket in death.cycles:
            if (closed := _closed(ledger.outputs.get(room, ()), ticket)) is not None:
                found[death.same_name].append(max(0, closed - death.at_ms))
    return found


def unrecovered(deaths: Iterable[Death], ledger: Ledger) -> list[str]:
    """What died with its worker and was never taken up."""
    return [
        f"room {room}: nobody took up ticket {ticket} of {death.worker}, which was killed"
        for death in deaths
        for room, ticket in death.cycles
        if _closed(ledger.outputs.get(room, ()), ticket) is None
    ]


def _closed(outputs: Iterable[Seen], ticket: int) -> int | None:
    for output in outputs:
        if output.of_cycle and (output.ticket > ticket or (output.ticket == ticket and output.kind is not Kind.CHUNK)):
            return output.place[0]
    return None


def lines(ledger: Ledger) -> list[str]:
    """The recovery times as a table, in seconds."""
    found = recovery_ms(ledger)
    rows = {
        "all": [*found[True], *found[False]],
        "restarted at once under its name": found[True],
        "by other workers": found[False],
    }
    return [f"  {what:<36}{_figures(times)}" for what, times in rows.items()]


def _figures(times_ms: Sequence[int]) -> str:
    if not times_ms:
        return "none"
    ranked = sorted(times_ms)
    p50, p99 = (ranked[max(0, math.ceil(len(ranked) * share) - 1)] / 1000 for share in (0.5, 0.99))
    return f"p50 {p50:6.2f} s   p99 {p99:6.2f} s   max {ranked[-1] / 1000:6.2f} s   of {len(ranked)} cycles"
