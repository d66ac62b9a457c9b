"""What ``top`` shows, and what its keys do. It knows neither Redis nor a terminal."""

from __future__ import annotations

import datetime as dt
from collections import deque
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from ..protocol.records import EventKind, Mode, Phase, RoomStatus
from ..protocol.watching import Look
from ..rendering import room_says

HISTORY = 60  # looks in the curve of what is committed
MAX_REASON = 200
LATE = dt.timedelta(seconds=2)  # after which a try that is due is taken to wait for a slot
LISTED = 100  # rooms of a kind, where only these are shown


class Group(IntEnum):
    """What a room is doing, in the order of the table."""

    RUNNING = 0
    BACKOFF = 1
    HELD = 2
    QUEUED = 3
    IDLE = 4


class Asking(StrEnum):
    """What the bottom line asks for."""

    REASON = "reason"
    SEARCH = "search"


@dataclass(frozen=True, slots=True)
class Act:
    """A signal that a key stands for. ``message``: only if that is the one in processing."""

    mode: Mode
    room: str
    message: int | None = None
    reason: str = ""


class Quit:
    """The key that ends ``top``."""


@dataclass(frozen=True, slots=True)
class Row:
    """One room of the table. ``age`` is that of its cycle or hold; negative: so long until it is tried again."""

    status: RoomStatus
    group: Group
    age: dt.timedelta | None
    says: str

    @property
    def room(self) -> str:
        return self.status.room

    @property
    def phase(self) -> str:
        return self.status.phase or ("held" if self.status.hold else "idle")


def _group(status: RoomStatus) -> Group:
    if status.phase is Phase.PROCESSING:
        return Group.RUNNING
    if status.phase is Phase.BACKOFF:
        return Group.BACKOFF
    if status.phase is Phase.HELD or status.hold:
        return Group.HELD
    return Group.QUEUED if status.phase else Group.IDLE


def _row(status: RoomStatus, look: Look) -> Row:
    group = _group(status)
    hold = status.hold or (look.agent.hold if status.phase is Phase.HELD else None)
    begun = {Group.RUNNING: status.claimed_at, Group.BACKOFF: status.retry_at, Group.HELD: hold and hold.at}.get(group)
    flags = ["shielded"] if status.shielded else []
    flags += [f"{status.abort}: its code is ending"] if status.abort else []
    flags += [f"{status.deferred} waits for its shield"] if status.deferred else []
    flags += ["due, and waits for a slot"] if group is Group.BACKOFF and begun and look.at - begun > LATE else []
    if group is Group.HELD and hold is not None:
        whose = "" if status.hold else " (all rooms)"
        flags.append(f"{hold.mode} by {hold.by or 'unknown'}{whose}{hold.reason and ': '}{hold.reason}")
        said = status.last_error or ""
    else:
        said = room_says(status)
    return Row(status, group, look.at - begun if begun else None, "; ".join(filter(None, [*flags, said])))


def _order(row: Row) -> tuple[Group, bool, float, str]:
    """The oldest cycle first, the next retry first, the newest hold first; those that were held with all others last."""
    age = row.age.total_seconds() if row.age else 0.0
    return (row.group, row.status.hold is None, age if row.group is Group.HELD else -age, row.room)


class View:
    """The state of the screen. ``take`` what a look has found; ``press`` a key, and do what it answers."""

    def __init__(self) -> None:
        self.look: Look | None = None
        self.rows: list[Row] = []
        self.selected: str | None = None
        self.first = 0  # the row at the top
        self.height = 10  # rows that fit
        self.search = ""
        self.only: Group | None = None  # the one kind of rooms that is shown
        self.asking: Asking | None = None
        self.typed = ""
        self.helping = False
        self.notice = ""
        self.trouble = ""  # why the last look failed
        self.committed: deque[float] = deque(maxlen=HISTORY)
        self._about: RoomStatus | None = None  # the room that the reason is for

    # What is shown. -----------------------------------------------------------------------------------

    def take(self, look: Look) -> None:
        """Show this. The selected room stays where it is on the screen if it has nothing to do any more."""
        self.look, self.trouble = look, ""
        self.committed.append(look.a_second[EventKind.CYCLE_COMMITTED])
        before = self._place()
        last = None if before is None else self.rows[before]
        rows = sorted((_row(status, look) for status in look.rooms if self.search in status.room), key=_order)
        self.rows = rows if self.search else self._chosen_of(rows)
        if before is not None and last is not None and self._place() is None:
            now = next((row for row in rows if row.room == self.selected), last)
            self.rows.insert(min(before, len(self.rows)), now)
        self._scroll()

    def _chosen_of(self, rows: list[Row]) -> list[Row]:
        """Those of the one kind; or of all kinds as many as there is room for, so that none hides another."""
        told = [row for row in rows if row.group is not Group.IDLE or row.says]  # idle, but its record cannot be read
        kinds = [[row for row in told if row.group is group] for group in Group]
        if self.only is not None:
            return kinds[self.only]
        left, most = self.height, [0] * len(kinds)
        # The smallest first: it leaves to the others what it does not need.
        smallest_first = sorted(range(len(kinds)), key=lambda place: len(kinds[place]))
        for shares, place in zip(range(len(kinds), 0, -1), smallest_first, strict=True):
            most[place] = min(len(kinds[place]), left // shares)
            left -= most[place]
        return [row for kind, count in zip(kinds, most, strict=True) for row in kind[:count]]

    @property
    def most(self) -> int:
        """How many rooms of a kind are worth to be looked at."""
        return self.height if self.only is None and not self.search else max(self.height, LISTED)

    @property
    def there_are(self) -> int:
        """How many rows there would be if all were listed."""
        if self.look is None or self.search:
            return len(self.rows)
        agent = self.look.agent
        known = {None: agent.processing + agent.waiting + agent.held, Group.RUNNING: agent.processing, Group.HELD: agent.held}
        return max(len(self.rows), known.get(self.only, 0))

    def resize(self, height: int) -> None:
        """So many rows fit."""
        self.height = max(1, height)
        self._scroll()

    @property
    def shown(self) -> list[Row]:
        return self.rows[self.first : self.first + self.height]

    @property
    def chosen(self) -> RoomStatus | None:
        place = self._place()
        return None if place is None else self.rows[place].status

    def _place(self) -> int | None:
        return next((place for place, row in enumerate(self.rows) if row.room == self.selected), None)

    def _scroll(self) -> None:
        place = self._place()
        if place is not None:
            self.first = min(max(self.first, place - self.height + 1), place)
        self.first = max(0, min(self.first, len(self.rows) - self.height))

    # What keys do. ------------------------------------------------------------------------------------

    def press(self, key: str) -> Act | Quit | None:
        """What this key asks for, beyond what is shown. A key is a character, or a name such as ``up`` or ``enter``."""
        if self.helping:
            self.helping = False
            return None
        if self.asking is not None:
            return self._type(key)
        self.notice = ""
        if key == "q":
            return Quit()
        if key in _MOVES:
            self._move(key)
        elif key == "escape":
            self.selected, self.search, self.only = None, "", None
        elif key == "/":
            self.asking, self.typed = Asking.SEARCH, self.search
        elif key == "?":
            self.helping = True
        elif key in _KINDS:
            self.only, self.search, self.selected, self.first = _KINDS[key], "", None, 0
        elif key in _ACTS:
            return self._act(_ACTS[key])
        return None

    def _move(self, key: str) -> None:
        if not self.rows:
            return
        place, last = self._place(), len(self.rows) - 1
        if key == "home" or (place is None and key in ("down", "j", "page-down")):
            place = 0
        elif key == "end" or place is None:
            place = last
        else:
            place = min(max(place + _MOVES[key] * (self.height if "page" in key else 1), 0), last)
        self.selected = self.rows[place].room
        self._scroll()

    def _act(self, mode: Mode) -> Act | None:
        status = self.chosen
        if status is None:
            self.notice = "no room is selected: choose one with the arrows"
            return None
        if mode is Mode.STOP:
            self.asking, self.typed, self._about = Asking.REASON, "", status
            return None
        if mode is Mode.INTERRUPT:
            if status.processing is None:
                self.notice = f"{status.room} has nothing in processing"
                return None
            return Act(mode, status.room, status.processing)  # the message that was seen, and no later one
        return Act(mode, status.room)

    def _type(self, key: str) -> Act | None:
        if key == "backspace":
            self.typed = self.typed[:-1]
        elif key == "escape":
            self.asking = None
        elif key == "enter":
            asked, self.asking = self.asking, None
            if asked is Asking.SEARCH:
                self.search, self.only, self.selected, self.first = self.typed.strip(), None, None, 0
            elif self._about is not None:
                return Act(Mode.STOP, self._about.room, reason=self.typed.strip())
        elif len(key) == 1 and key.isprintable() and len(self.typed) < MAX_REASON:
            self.typed += key
        return None


_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "page-up": -1, "page-down": 1, "home": 0, "end": 0}
_KINDS = {"0": None, "1": Group.RUNNING, "2": Group.BACKOFF, "3": Group.HELD, "4": Group.QUEUED}
_ACTS = {"i": Mode.INTERRUPT, "s": Mode.STOP, "p": Mode.PLAY, "P": Mode.PAUSE}
