"""What the signals demand of one room: when it may not begin a cycle, and what may not be said any more.

The control stream is in the order in which Redis accepted the signals. Each entry has the agent's clock at that instant
(``upto``), from which tickets come too, so it is certain which cycles had been granted before a signal and which after it.
Whether something was *said* after it is told by the position of the outbox once the signal had answered, and by the server's
clock, which is taken not to have been set back meanwhile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from .ledger import Control, Place, Seen, Signalled

FOR_EVER = 1 << 62


class Signals:
    """All signals of a run, sorted by the room that they act on."""

    def __init__(self, control: Iterable[Control], answered: Iterable[Signalled]) -> None:
        self._positions = {signal.cid: signal.positions for signal in answered}
        self._rooms: dict[str, list[Control]] = {}
        self._everywhere: list[Control] = []
        cids: set[str] = set()
        for entry in control:
            if entry.room is None:
                self._everywhere.append(entry)
                cids.add(entry.cid)
            else:
                self._rooms.setdefault(entry.room, []).append(entry)
        # An everywhere signal has an entry of its own, and one more for each room whose cycle it met.
        self._whole = cids

    def of(self, room: str) -> list[Control]:
        """The entries that concern the room, in order."""
        return sorted([*self._rooms.get(room, ()), *self._everywhere], key=lambda entry: entry.place)

    def holds(self, room: str) -> list[tuple[int, int]]:
        """The times (after, up to) by the agent's clock within which no cycle of the room may be granted."""
        found: list[tuple[int, int]] = []
        modes = {"room": "", "whole": ""}
        since = -1
        for entry in self.of(room):
            if entry.mode == "interrupt" or (entry.room is not None and entry.cid in self._whole):
                continue
            if entry.outcome in ("applied", "deferred"):
                modes["room" if entry.room is not None else "whole"] = "" if entry.mode == "play" else entry.mode
            held = any(modes.values())
            if held and since < 0:
                since = entry.upto
            elif not held and since >= 0:
                found.append((since, entry.upto))
                since = -1
        return [*found, (since, FOR_EVER)] if since >= 0 else found

    def late(self, room: str, outputs: Sequence[Seen]) -> Iterator[tuple[Seen, str]]:
        """Speech of a cycle that had been stopped or interrupted, and by what. ``outputs`` are in order."""
        entries = self.of(room)
        deferred = {entry.cid for entry in entries if entry.room is not None and entry.outcome == "deferred"}
        places = [output.place for output in outputs]
        for entry in entries:
            if entry.outcome != "applied" or entry.mode not in ("interrupt", "stop") or entry.cid in deferred:
                continue
            if entry.mode == "interrupt" and entry.room is None:
                continue  # each room that it interrupted has an entry of its own
            first = min(bisect_right(places, self._last_moment(entry)), bisect_right(places, self._position(entry, room)))
            for output in outputs[first:]:
                if output.of_cycle and output.ticket > entry.upto:
                    break  # what an older cycle says after this is found by the order of tickets
                if output.is_speech:
                    yield output, entry.mode

    def _last_moment(self, entry: Control) -> Place:
        return entry.place[0], FOR_EVER

    def _position(self, entry: Control, room: str) -> Place:
        return self._positions.get(entry.cid, {}).get(room, (FOR_EVER, 0))


def held(ticket: int, holds: Sequence[tuple[int, int]]) -> bool:
    """Whether a cycle with this ticket was granted within one of the holds, which are in order."""
    index = bisect_right(holds, (ticket - 1, FOR_EVER)) - 1
    return index >= 0 and holds[index][0] < ticket <= holds[index][1]
