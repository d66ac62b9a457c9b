"""The screen of ``top`` as lines, for any size: columns keep their places, and nothing wraps."""

from __future__ import annotations

import datetime as dt

from rich.cells import cell_len
from rich.text import Text

from ..protocol.records import AgentStatus, Event
from ..protocol.watching import Look
from ..rendering import cell
from ..tables import GAP, fit
from .view import Asking, Group, Row, View

KEYS = "i interrupt  s stop  p play  P pause  / find  ? help  q quit"
HELP = (
    "up, down, j, k   choose a room; page up, page down, home, end",
    "i   interrupt it: its message is consumed, the next one runs",
    "s   stop it, and say why: its message is kept; nothing runs until play",
    "P   pause it: what runs may finish; nothing runs until play",
    "p   play it",
    "1, 2, 3, 4   show only running rooms; those in a back-off; held; queued",
    "/   show the rooms with a text in their names, also idle ones",
    "escape, 0   choose none, and show some of each kind again",
    "q, Ctrl-C   quit",
    "",
    "Running rooms, the longest first; those in a back-off, the next try first;",
    "held ones, the newest hold first; some that are queued.",
    "AGE: of the cycle, or the hold; in a back-off, when it is tried again.",
    "TRY: the attempt. QUEUE: messages, the one in processing included.",
    "waiting: rooms that may run, and are queued or in a back-off.",
    "a second: over the last 5 s.",
)
_STYLES = {Group.RUNNING: "green", Group.BACKOFF: "yellow", Group.HELD: "magenta", Group.QUEUED: "cyan", Group.IDLE: "dim"}
_KINDS = {Group.RUNNING: "running", Group.BACKOFF: "in a back-off", Group.HELD: "held", Group.QUEUED: "queued"}
_BARS = "▁▂▃▄▅▆▇█"
HEAD_LINES, FOOT_LINES = 7, 2  # above and below the rows


def rows_that_fit(height: int) -> int:
    return max(1, height - HEAD_LINES - FOOT_LINES)


def draw(view: View, width: int, height: int) -> list[Text]:
    """As many lines as the screen has, none of them wider."""
    view.resize(rows_that_fit(height))
    look = view.look
    assert look is not None, "nothing is drawn before the first look"
    lines = head(look, view, width)
    if view.helping:
        lines += [Text(line) for line in HELP]
    else:
        lines += table(view, width)
    most = max(0, height - FOOT_LINES)
    lines = lines[:most] + [Text("") for _ in range(most - len(lines))] + [_detail(view), _bottom(view, width)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines[-height:]


def head(look: Look, view: View, width: int) -> list[Text]:
    """How the agent is as a whole."""
    agent, clock = look.agent, f"{look.at:%H:%M:%SZ}"
    mood = Text(" plays", "green") if agent.hold is None else Text(f" {_hold(look, agent)}", "bold red")
    first = Text(agent.agent, "bold") + mood
    dead = Text(f" {_many(agent.dead, 'dead letter')}" if agent.dead else "", "red")
    first.truncate(max(0, width - len(dead) - len(clock) - 1), overflow="ellipsis", pad=True)
    trouble = Text(f"This is as it was at {clock}: {cell(view.trouble)}", "bold red") if view.trouble else Text("")
    lines = [Text(_counts(look)), _rates(look, view, width), _workers(look), _lately(look), trouble]
    return [first + dead + Text(f" {clock}"), *lines]


def _hold(look: Look, agent: AgentStatus) -> str:
    hold = agent.hold
    assert hold is not None
    since = "" if hold.at is None else f" for {span(look.at - hold.at)}"
    why = f": {cell(hold.reason)}" if hold.reason else ""
    return f"{'STOPPED' if hold.mode == 'stop' else 'PAUSED'} by {cell(hold.by or 'unknown')}{since}{why}"


def _counts(look: Look) -> str:
    agent = look.agent
    oldest = f" (oldest {span(look.at - agent.oldest)})" if agent.oldest else ""
    idle = max(0, agent.rooms - agent.processing - agent.waiting - agent.held)
    busy = f"{agent.processing} running{oldest}, {agent.waiting} waiting, {agent.held} held"
    return f"{_many(agent.rooms, 'room')}: {busy}, {idle} idle"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _rates(look: Look, view: View, width: int) -> Text:
    told = (f"{rate:.1f} {kind.removeprefix('cycle.')}" for kind, rate in look.a_second.items())
    line = Text("a second: " + ", ".join(told))
    most, left = max(view.committed, default=0.0), width - len(line) - len(GAP)
    if most > 0 and left > 0:
        curve = [_BARS[round(value / most * (len(_BARS) - 1))] for value in view.committed]
        line.append(GAP + "".join(curve[-left:]), "green")
    return line


def _workers(look: Look) -> Text:
    if not look.workers:
        work = look.agent.waiting + look.agent.processing
        return Text("workers: none, so nothing runs", "bold red") if work else Text("workers: none")
    line = Text("workers: ")
    for place, worker in enumerate(look.workers):
        line.append(", " if place else "")
        gone = "" if worker.alive else " GONE"
        line.append(f"{cell(worker.name)}{gone} {worker.owns}", "" if worker.alive else "bold red")
    return line


def _lately(look: Look) -> Text:
    return Text("lately: " + (", ".join(map(_told, look.lately)) or "-"))


def _told(event: Event) -> str:
    about = event.room or event.worker or ""
    return f"{event.at:%H:%M:%S} {event.kind} {cell(about)}"


# The rooms. ----------------------------------------------------------------------------------------------


def table(view: View, width: int) -> list[Text]:
    """The names of the columns, and the rows that fit."""
    room, worker = min(40, max(12, width // 4)), min(24, max(8, width // 10))
    lines = [Text(_line(("ROOM", "PHASE", "AGE", "TRY", "QUEUE", "WORKER", "SAYS"), room, worker), "bold")]
    for row in view.shown:
        selected = row.room == view.selected
        line = Text(_line(_cells(row), room, worker, ">" if selected else " "), _STYLES[row.group])
        if selected:
            line.truncate(width, overflow="ellipsis", pad=True)
            line.stylize("reverse")
        lines.append(line)
    if not view.rows:
        nothing = f"no room with {view.search!r} in its name" if view.search else "no room has anything to do"
        nothing = f"no room is {_KINDS[view.only]}" if view.only is not None else nothing
        lines.append(Text(f"  {nothing}", "dim"))
    return lines


def _line(cells: tuple[str, ...], room: int, worker: int, mark: str = " ") -> str:
    widths = (room, 10, 8, 3, 5, worker)
    fixed = (fit(text, width) for text, width in zip(cells, widths, strict=False))
    return f"{mark} {' '.join(fixed)} {cells[-1]}"


def _cells(row: Row) -> tuple[str, ...]:
    status, coming = row.status, row.age is not None and row.age < dt.timedelta(0)
    age = "-" if row.age is None else f"{'in ' if coming else ''}{span(row.age)}"
    attempt, owner = cell(status.attempt or None), cell(status.owner)
    return (cell(row.room), row.phase, age, attempt, str(status.waiting), owner, cell(row.says or " "))


def span(age: dt.timedelta) -> str:
    """A duration in at most five characters, for ten years."""
    seconds = int(abs(age.total_seconds()))
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02}"
    if seconds < 86_400:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02}"
    return f"{seconds // 86_400}d"


def _detail(view: View) -> Text:
    """All that is said of the selected room, where its row has no place for it."""
    row = next((row for row in view.rows if row.room == view.selected), None)
    if row is None or view.helping:
        return Text("")
    return Text(": ".join(filter(None, (cell(row.room), cell(row.says) if row.says else ""))), _STYLES[row.group])


def _bottom(view: View, width: int) -> Text:
    if view.asking is not None:
        what = "find rooms with: " if view.asking is Asking.SEARCH else f"stop {cell(view.selected)}, because: "
        left = width - cell_len(what) - 1
        return Text(what, "bold") + Text(view.typed[-left:] if left > 0 else "") + Text("_", "blink")
    if view.notice:
        line = Text(cell(view.notice), "bold")
    elif view.search:
        line = Text(f"with {view.search!r} in their names; escape shows all again", "bold")
    elif view.only is not None:
        line = Text(f"only {_KINDS[view.only]}; escape shows all again", "bold")
    else:
        line = Text(KEYS, "dim")
    where = f" {_where(view)} of {view.there_are}" if view.rows else ""
    line.truncate(max(0, width - len(where)), overflow="ellipsis", pad=True)
    return line + Text(where, "dim")


def _where(view: View) -> str:
    some_of_each = view.only is None and not view.search and len(view.rows) < view.there_are
    return str(len(view.rows)) if some_of_each else f"{view.first + 1}-{view.first + len(view.shown)}"


def snapshot(view: View, width: int) -> list[str]:
    """All that there is to show, once, as plain text."""
    look = view.look
    assert look is not None, "nothing is drawn before the first look"
    view.resize(max(1, len(view.rows)))
    return [line.plain.rstrip() for line in (*head(look, view, width), *table(view, width))]
