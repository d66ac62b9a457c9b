"""docs/reference.md names all that is public, as it is, and nothing else.

A heading names what its tables are about, in code. The first word of a table's head says what its rows are: arguments of the
constructor or function, calls, attributes, options, values, functions, errors or events.
"""

from __future__ import annotations

import builtins
import inspect
import re
from dataclasses import dataclass, is_dataclass
from enum import StrEnum
from types import FunctionType
from typing import Any

import pytest

from greenroom import Agent, EventKind
from greenroom.protocol.records import Record
from greenroom.supervisors.listeners import KINDS
from pages import read
from unit.surface import ERRORS, PUBLIC, answer, attributes, calls, default_of, parameters, signature, type_of

PAGE = "docs/reference.md"
KINDS_OF_ROWS = {"argument", "attribute", "call", "error", "event", "function", "option", "value"}
# What greenroom makes, and hands to its users.
HANDED = {"Cycle", "ThreadCycle", "RoomHandle", "AsyncRoomHandle", "Stage", "AsyncStage", "ChildInfo", "Measures"}
# Errors that any call may raise, for which the page has one word for all.
ANY_CALL = {"InvalidRequest", "InvalidName", "RedisUnavailable", "RedisRefused", "NewerVersion", "GreenroomError"}
ALL_SAID = {"is_alive"}  # calls whose names say all
# Names in code that are others', or not public.
TYPING = {"Any", "Callable", "Iterable", "Iterator", "AsyncIterator", "PathLike", "Self", "Sequence"}
OTHERS = TYPING | {"ActorDeadError", "ActorProxy", "ActorRef", "BaseModel", "Metric"}
INSIDE = {"Backlog", "Counts", "LoopThread", "RedisServer", "Running"}

# What the page says. --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    about: tuple[str, ...]  # the names in the heading above
    kind: str
    rows: tuple[tuple[str, ...], ...]


def _tables() -> list[Table]:
    found: list[Table] = []
    about: tuple[str, ...] = ()
    lines = [*read(PAGE).splitlines(), ""]
    start = 0
    for number, line in enumerate(lines):
        if line.startswith("#"):
            about = tuple(re.findall(r"`(\w+)`", line))
        if line.startswith("|") and not lines[number - 1].startswith("|"):
            start = number
        if not line.startswith("|") and number and lines[number - 1].startswith("|"):
            head, _, *rows = [tuple(cell.strip() for cell in row.strip().strip("|").split("|")) for row in lines[start:number]]
            assert all(len(row) == len(head) for row in rows), rows
            found.append(Table(about, head[0], tuple(rows)))
    return found


TABLES = _tables()


def _rows(kind: str, about: str | None = None) -> list[tuple[str, ...]]:
    return [row for table in TABLES if table.kind == kind and about in (None, *table.about) for row in table.rows]


def _code(cell: str) -> str:
    found = re.fullmatch(r"`([^`]*)`", cell)
    assert found, f"want one name in code: {cell}"
    return found[1]


PLACES = [about for about in dict.fromkeys(table.about for table in TABLES) if about]
HEADED = [name for about in PLACES for name in about]
FIRST = [about[0] for about in PLACES if PUBLIC.keys() >= set(about)]  # of those that share a place
CLASSES = [name for name in FIRST if isinstance(PUBLIC[name], type)]
ENUMS = [name for name in CLASSES if issubclass(PUBLIC[name], StrEnum)]


def test_each_public_name_has_its_place_and_nothing_else_has_one() -> None:
    named = [*HEADED, *(_code(row[0]) for row in _rows("error"))]
    named += [_code(row[0]).partition("(")[0] for row in _rows("function")]
    assert sorted(named) == sorted(PUBLIC)
    assert {table.kind for table in TABLES} == KINDS_OF_ROWS


@pytest.mark.parametrize("name", FIRST)
def test_each_argument_is_there_with_type_and_default(name: str) -> None:
    is_made = name not in HANDED and not _is(PUBLIC[name], Record, StrEnum, BaseException)
    wanted = (
        [(_argument(each), type_of(each.annotation), _default(each)) for each in parameters(PUBLIC[name])] if is_made else []
    )
    assert [row[:3] for row in _rows("argument", name)] == wanted


def _is(value: Any, *kinds: type) -> bool:
    return isinstance(value, type) and issubclass(value, kinds)


def _argument(each: inspect.Parameter) -> str:
    stars = "*" * ((each.kind is each.VAR_POSITIONAL) + 2 * (each.kind is each.VAR_KEYWORD))
    return f"`{stars}{each.name}{'=' if each.kind is each.KEYWORD_ONLY else ''}`"


def _default(each: inspect.Parameter) -> str:
    if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
        return ""
    return "required" if each.default is each.empty else default_of(each.default)


@pytest.mark.parametrize("name", CLASSES)
def test_each_call_is_there_with_all_that_it_takes_and_what_it_answers(name: str) -> None:
    wanted = [(signature(call, function), answer(function)) for call, function in calls(PUBLIC[name]).items()]
    assert sorted(row[:2] for row in _rows("call", name)) == sorted(wanted)


@pytest.mark.parametrize("name", [name for name in CLASSES if name not in ENUMS])
def test_each_attribute_is_there_with_its_type(name: str) -> None:
    told = attributes(PUBLIC[name])
    rows = _rows("attribute", name) + [row for row in _rows("argument", name) if is_dataclass(PUBLIC[name])]
    rows += _rows("option", name)
    assert sorted(_code(row[0]) for row in rows) == sorted(told)
    wrong = {row[0]: row[1] for row in rows if told[_code(row[0])] and row[1] != type_of(told[_code(row[0])])}
    assert wrong == {}


def test_each_option_of_an_agent_has_its_default() -> None:
    options = {row[0]: row[2] for row in _rows("option", "Agent")}
    assert options == {f"`{name}`": default_of(getattr(Agent, name)) for name in attributes(Agent)}


@pytest.mark.parametrize("name", [name for name in ENUMS if name != "EventKind"])
def test_each_value_is_there_and_its_name_is_it_in_capitals(name: str) -> None:
    assert [_code(row[0]) for row in _rows("value", name)] == [each.value for each in PUBLIC[name]]
    assert all(each.name == each.value.upper() for each in PUBLIC[name])


def test_each_event_is_there_and_whether_a_system_tells_listeners_of_it() -> None:
    assert [row[:2] for row in _rows("event")] == [(f"`{kind}`", "yes" if kind in KINDS else "no") for kind in EventKind]
    assert all(kind.name == kind.value.upper().replace(".", "_") for kind in EventKind)


def test_each_error_is_there_with_its_bases_and_what_it_has() -> None:
    wanted = {
        name: (", ".join(f"`{base.__name__}`" for base in value.__bases__), sorted(attributes(value)))
        for name, value in PUBLIC.items()
        if name in ERRORS
    }
    assert {_code(row[0]): (row[1], sorted(re.findall(r"`\.(\w+)`", row[2]))) for row in _rows("error")} == wanted


def test_each_function_is_there_with_all_that_it_takes() -> None:
    functions = {name: PUBLIC[name] for name, value in PUBLIC.items() if isinstance(value, FunctionType) and name not in HEADED}
    assert sorted(row[:2] for row in _rows("function")) == sorted(
        (signature(*each), answer(each[1])) for each in functions.items()
    )


def _raised(function: Any) -> set[str]:
    """The errors of greenroom that a docstring says a call raises, but for those that any may."""
    _, _, told = inspect.cleandoc(function.__doc__ or "").partition("Raises:\n")
    told = told.partition("\n\n")[0]
    names = re.findall(r"^    ([A-Z]\w*(?:, [A-Z]\w*)*)", told, re.MULTILINE)
    return {name for line in names for name in line.split(", ")} & ERRORS - ANY_CALL


@pytest.mark.parametrize("name", [name for name in CLASSES if calls(PUBLIC[name])])
def test_what_a_call_raises_stands_in_its_docstring_and_on_the_page_alike(name: str) -> None:
    there = calls(PUBLIC[name])
    assert [call for call, function in there.items() if not function.__doc__ and call not in ALL_SAID] == []
    if name == "RoomHandle":  # "as there"
        return
    told = {
        _code(row[0]).partition("(")[0]: set(re.findall(r"`(\w+)`", row[2])) & ERRORS - ANY_CALL for row in _rows("call", name)
    }
    assert told == {call: _raised(function) for call, function in there.items()}


@pytest.mark.parametrize("twins", [about for about in PLACES if len(about) == 2 and about[0] in FIRST], ids=" and ".join)
def test_those_that_share_a_place_differ_in_what_is_awaited_only(twins: tuple[str, str]) -> None:
    ours, other = (PUBLIC[name] for name in twins)
    pairs = {name: (function, calls(other)[name]) for name, function in calls(ours).items()}
    assert set(pairs) == set(calls(other))
    assert set(attributes(ours)) == set(attributes(other))
    for name, (one, two) in pairs.items():
        assert signature(name, one) == signature(name, two)
        if name != "ask":
            assert answer(one).replace("RoomHandle", "AsyncRoomHandle") in (
                answer(two),
                answer(two).replace("AsyncIterator", "Iterator"),
            )
    if twins[0] not in HANDED:
        assert [str(each) for each in parameters(ours)] == [str(each) for each in parameters(other)]


def test_a_handle_has_all_verbs_that_are_of_one_room() -> None:
    of_one = {
        name for name, call in calls(PUBLIC["Client"]).items() if {"room", "rooms"} & set(inspect.signature(call).parameters)
    }
    assert set(calls(PUBLIC["RoomHandle"])) == of_one - {"room"}


def test_the_page_names_nothing_that_is_not_there() -> None:
    code = re.findall(r"`([^`]+)`", read(PAGE))
    capitals = {word for each in code for word in re.findall(r"(?<![\w.\"])[A-Z][a-z]\w*", each)}
    known = PUBLIC.keys() | OTHERS | INSIDE | set(dir(builtins)) | set(attributes(Agent))
    assert capitals - known == set()
    dotted = {found for each in code for found in re.findall(r"\b([A-Z]\w+)\.(\w+)", each) if found[0] in PUBLIC}
    assert {found for found in dotted if not hasattr(PUBLIC[found[0]], found[1])} == set()
