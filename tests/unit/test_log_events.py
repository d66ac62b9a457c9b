"""Every line of the log is in the table of ``docs/operations.md``: its event, level and fields."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for name in ("protocol", "actors", "supervisors", "src/greenroom", "src/greenroom/commands")
    for path in sorted((ROOT / name).glob("*.py"))
]
LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")
CYCLE = {"room", "message", "attempt", "ticket"}
# What is added by ``**`` of these, as it is written there. The fields of a thread are those that all its lines have.
ADDED = {
    "failed(failure)": {"error", "exception"},
    "told(error)": {"error", "stack"},
    "told(error, known=known)": {"error", "stack"},
    "told(raised)": {"error", "stack"},
    "names(message, ticket)": CYCLE,
    "names_of(room, exited.machine.grant)": CYCLE,
    "names_of(room, actor.machine.grant if actor is not None else None)": CYCLE,
    "self.names()": CYCLE,
    "self.names(aborted.abort.cid)": {*CYCLE, "cid"},
    "self._aborted.names()": {*CYCLE, "cid"},
    "culprit": {*CYCLE, "task"},
    "self._names": CYCLE,
    "about": {"room", "output", "tries"},
    "self.fields": set(),
    "self._control.fields": set(),
}
OF_THE_THREAD = {"agent", "worker", "relay"}  # `worker` is also said by a parent, of one of its workers

Line = tuple[str, frozenset[str], frozenset[str]]


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Each call of the logger, with the name of its method."""
    for path in SOURCES:
        if path == ROOT / "protocol" / "log.py":  # it repeats what a child process has logged
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
                continue
            if ast.unparse(node.func.value) in ("log", "self._log"):
                yield node.func.attr, node


def line(method: str, call: ast.Call) -> tuple[str, set[str], set[str]]:
    """Event, levels and fields of a call."""
    event = call.args[-1]
    assert isinstance(event, ast.Constant), f"an event has one name: {ast.unparse(call)}"
    levels = {"error"} if method == "exception" else {method}
    if method == "log":
        levels = {word.lower() for word in re.findall(r"logging\.([A-Z]+)", ast.unparse(call.args[0]))}
    fields = {"exception"} if method == "exception" else set()
    for keyword in call.keywords:
        if keyword.arg is None:
            fields |= ADDED[ast.unparse(keyword.value)]
        else:
            fields.add("exception" if keyword.arg == "exc_info" else keyword.arg)
    return str(event.value), levels, fields - OF_THE_THREAD


def in_code() -> dict[str, tuple[set[str], set[str]]]:
    found: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for method, call in calls():
        event, levels, fields = line(method, call)
        found[event][0].update(levels)
        found[event][1].update(fields)
    return dict(found)


def in_docs() -> dict[str, tuple[set[str], set[str]]]:
    text = (ROOT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \| ([a-z, ]+) \| ([^|]*) \|", text, re.MULTILINE)
    events = [event for event, _, _ in rows]
    assert len(events) == len(set(events)), "an event has one row"
    return {event: (set(levels.split(", ")), set(re.findall(r"`([a-z_]+)`", fields))) for event, levels, fields in rows}


def test_the_table_has_each_event_with_its_levels_and_fields_and_no_others() -> None:
    assert in_docs() == in_code()


def test_lines_of_a_cycle_say_which_it_is() -> None:
    for event, (_, fields) in in_code().items():
        if event.startswith(("cycle.", "hook.", "shield.")):
            assert fields >= CYCLE, event
        if event.startswith("room."):
            assert "room" in fields, event
        if event.startswith("hook."):
            assert "cid" in fields, event


def test_errors_of_the_users_code_are_never_logged_with_their_words() -> None:
    """``told`` leaves them out; no other way is used for them."""
    for event in ("cycle.failed", "hook.failed", "listener.failed", "on_end.failed", "loop.task_exited", "relay.failed"):
        assert "exception" not in in_code()[event][1]
        assert "stack" in in_code()[event][1]
