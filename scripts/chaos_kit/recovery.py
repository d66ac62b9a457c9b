"""How long rooms were without a worker after theirs had been killed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from greenroom import Kind
from greenroom.supervisors.worker import BEATS_A_LEASE

from .fleet import LEASE_S
from .ledger import Death, Ledger, Seen

TAKE_OVER_S = LEASE_S + 1.0  # within which another worker takes over, if nothing keeps it from doing so


@dataclass(frozen=True, slots=True)
class Recovery:
    """A cycle that died with its worker: the ms until its message was taken up again, or had ended, or its room was found held.

    ``undisturbed``: since the dead worker's lease could have run out, Redis was there and cut no connections, and whoever took
    over ran all the time. What was over by then made no difference.
    """

    ms: int
    same_name: bool
    undisturbed: bool


def recoveries(ledger: Ledger) -> list[Recovery]:
    """From each kill to the entry that closes the dead cycle, which is written in the same act as the next grant."""
    found = []
    for death in ledger.deaths:
        for room, ticket in death.cycles:
            if (closed := _closed(ledger.outputs.get(room, ()), ticket)) is not None:
                undisturbed = _is_undisturbed(ledger, room, death.at_ms, closed)
                found.append(Recovery(max(0, closed - death.at_ms), death.same_name, undisturbed))
    return found


def _is_undisturbed(ledger: Ledger, room: str, since_ms: int, until_ms: int) -> bool:
    """Whether nothing but the lease kept the room waiting since the kill."""
    takers = {
        adoption.worker for adoption in ledger.adoptions if adoption.room == room and since_ms <= adoption.at_ms <= until_ms
    }
    lapsed_ms = since_ms + LEASE_S * 1000 * (1 - 1 / BEATS_A_LEASE)  # at the earliest
    return bool(takers) and not any(
        trouble.worker in (None, *takers) and trouble.since_ms <= until_ms and lapsed_ms <= trouble.until_ms
        for trouble in ledger.troubles
    )


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
    found = recoveries(ledger)
    undisturbed = [recovery.ms for recovery in found if recovery.undisturbed and not recovery.same_name]
    within = sum(ms <= TAKE_OVER_S * 1000 for ms in undisturbed)
    rows = {
        "all": _figures([recovery.ms for recovery in found]),
        "restarted at once under its name": _figures([recovery.ms for recovery in found if recovery.same_name]),
        "by other workers": _figures([recovery.ms for recovery in found if not recovery.same_name]),
        "  with no other trouble meanwhile": _figures(undisturbed),
        f"    within the lease + 1 s ({TAKE_OVER_S:g} s)": f"{within} of {len(undisturbed)}",
    }
    return [f"  {what:<36}{figures}" for what, figures in rows.items()]


def _figures(times_ms: Sequence[int]) -> str:
    if not times_ms:
        return "none"
    ranked = sorted(times_ms)
    p50, p99 = (ranked[max(0, math.ceil(len(ranked) * share) - 1)] / 1000 for share in (0.5, 0.99))
    return f"p50 {p50:6.2f} s   p99 {p99:6.2f} s   max {ranked[-1] / 1000:6.2f} s   of {len(ranked)} cycles"
