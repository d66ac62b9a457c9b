"""docs/reference.md names all that is public, as it is, and nothing else.

A heading names what its tables are about, in code. The first word of a table's head says what its rows are: arguments of the
constructor or function, calls, attributes, options, values, functions, errors or events.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import pykka
import pytest

import greenroom.metrics
import greenroom.public
import greenroom.testing
from greenroom.protocol.records import Record
from greenroom.supervisors.listeners import KINDS
from greenroom.supervisors.measures import Measures
from pages import read

PAGE = "docs/reference.md"
FUNCTIONS = {"Callable": ("OnEnd", "Deliver", "Listener", "OnExit"), '"again" or "raise"': ("IfUnknown",)}
# What greenroom makes, and hands to its users.
HANDED = {"Cycle", "ThreadCycle", "RoomHandle", "AsyncRoomHandle", "Stage", "AsyncStage", "ChildInfo", "Measures"}
# Errors that any call may raise, for which the page has one word for all.
ANY_CALL = {"InvalidRequest", "InvalidName", "RedisUnavailable", "RedisRefused", "NewerVersion", "GreenroomError"}
# Names in code that are none of greenroom's.
OTHERS = {"Any", "BaseModel", "Callable", "Iterator", "AsyncIterator", "ActorRef", "ActorProxy", "ActorDeadError", "LoopThread"}
OTHERS |= {"PathLike", "RedisServer", "Running", "Counts", "Backlog", "Metric", "Iterable", "CancelledError", "TaskGroup"}


# What there is. -------------------------------------------------------------------------------------------------


def _public() -> dict[str, Any]:
    names = {name: getattr(greenroom.public, name) for name in greenroom.public.__all__}
    names |= {name: getattr(greenroom.testing, name) for name in greenroom.testing.__all__}
    names |= dict(_defined_in(greenroom.metrics))
    return names | {"Measures": Measures}


def _defined_in(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if not name.startswith("_") and isinstance(value, type | FunctionType) and value.__module__ == module.__name__:
            yield name, value


PUBLIC = _public()


def _classes(kind: type) -> list[type]:
    """The class and those that it is made of, but for what others have made, or have a place of their own on the page."""
    return [each for each in kind.__mro__ if each.__module__.startswith("greenroom") and each is not Record and (
        each is kind or PUBLIC.get(each.__name__) is not each
    )]


def _members(kind: type) -> dict[str, Any]:
    elsewhere = {name for base in kind.__mro__[1:] if PUBLIC.get(base.__name__) is base for name in dir(base)}
    elsewhere |= set(dir(pykka.Actor)) if issubclass(kind, pykka.Actor) else set()
    found = {name: value for each in reversed(_classes(kind)) for name, value in vars(each).items()}
    return {name: value for name, value in found.items() if not name.startswith("_") and name not in elsewhere}


def _calls(kind: type) -> dict[str, FunctionType]:
    return {name: value for name, value in _members(kind).items() if isinstance(value, FunctionType)}


@cache
def _set_in_init(kind: type) -> dict[str, str]:
    """The public attributes that its constructor sets, and their types where that is told."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    [init] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"] or [None]
    found: dict[str, str] = {}
    for node in ast.walk(init) if init is not None else ():
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                found[target.attr] = ""
    return {name: told for name, told in found.items() if not name.startswith("_")}


def _attributes(kind: type) -> dict[str, str]:
    """Names and types, as far as they are told."""
    if issubclass(kind, Record) or is_dataclass(kind):
        found = {name: told for each in reversed(_classes(kind)) for name, told in inspect.get_annotations(each).items()}
    else:
        own = [each for each in reversed(_classes(kind)) if not issubclass(each, pykka.Actor) or each is kind]
        found = {name: told for each in own for name, told in _set_in_init(each).items()}
        found |= {name: told for each in own for name, told in inspect.get_annotations(each).items()}
    found |= {
        name: value.fget.__annotations__["return"] for name, value in _members(kind).items() if isinstance(value, property)
    }
    return {name: told for name, told in found.items() if not name.startswith("_") and name != "model_config"}


# As the page writes it. -----------------------------------------------------------------------------------------


def _split(told: str, at: str) -> list[str]:
    """The parts of an annotation, not splitting what stands in brackets."""
    parts, depth = [""], 0
    for char in told:
        depth += (char in "[(") - (char in "])")
        if char == at and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def _type(told: str) -> str:
    """An annotation: its alternatives, each in code."""
    shown: list[str] = []
    for part in _split(told, "|"):
        part = re.sub(r"\b(dt|os|datetime)\.(?=[a-zA-Z])", "", part)
        part = re.sub(r"\[Any\]$", "", part)
        if found := re.fullmatch(r"(?:Annotated|ClassVar)\[(.*)\]", part):
            shown.append(_type(_split(found[1], ",")[0]))
        elif found := re.fullmatch(r"Literal\[(.*)\]", part):
            shown += [f"`{each}`" for each in _split(found[1], ",")]
        elif part.startswith("Callable[") or part in ("OnEnd", "Deliver", "Listener", "OnExit", "F"):
            shown.append("`Callable`")
        elif part == "IfUnknown":
            shown += ['`"again"`', '`"raise"`']
        elif part == "Code":
            shown += ['`"cancelled"`', '`"killed"`', '`"detached"`', '`"not started"`']
        elif part == "PathLike[str]":
            shown.append("`PathLike`")
        else:
            shown.append(f"`{part}`")
    return " or ".join(shown)


def _value(value: Any) -> str:
    """A default, in a table."""
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        if seconds and seconds % 86_400 == 0:
            return f"{seconds / 86_400:g} d"
        if seconds and seconds % 60 == 0:
            return f"{seconds / 60:g} min"
        return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"
    if value == 1024 * 1024:
        return "1 MiB"
    if isinstance(value, bool | str | tuple) or value is None:
        return f"`{_literal(value)}`"
    if isinstance(value, int | float):
        return str(value)
    return f"`{_literal(value)}`"


def _literal(value: Any) -> str:
    """A default, as Python has it."""
    if isinstance(value, StrEnum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, timedelta):
        return f"timedelta(seconds={value.total_seconds():g})"
    if isinstance(value, greenroom.public.Backoff):
        return "Backoff(…)" if value != greenroom.public.Backoff() else "Backoff()"
    if value is greenroom.testing.stage.ANY:
        return "…"
    return repr(value)


def _parameters(function: Any) -> list[inspect.Parameter]:
    return [each for each in inspect.signature(function).parameters.values() if each.name != "self"]


def _signature(name: str, function: Any) -> str:
    words, star = [], False
    for each in _parameters(function):
        if each.kind is each.VAR_POSITIONAL:
            words.append(f"*{each.name}")
            star = True
            continue
        if each.kind is each.KEYWORD_ONLY and not star:
            words.append("*")
            star = True
        words.append(each.name if each.default is each.empty else f"{each.name}={_literal(each.default)}")
    return f"`{name}({', '.join(words)})`"


def _answer(function: Any) -> str:
    told: str = inspect.signature(function).return_annotation
    if "contextlib" in str(getattr(function, "__globals__", {}).get("__name__", "")) or hasattr(function, "__wrapped__"):
        inner = re.fullmatch(r"(?:Async)?Iterator\[(.*)\]", told)
        assert inner, told
        return "a context manager" if inner[1] == "None" else f"a context manager: {_type(inner[1])}"
    return _type(told)


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


HEADED = {name: table_about for table_about in {table.about for table in TABLES} for name in table_about}
FIRST = [about[0] for about in dict.fromkeys(table.about for table in TABLES) if about]  # of those that share a place


def test_each_public_name_has_its_place_and_nothing_else_has_one() -> None:
    named = [*HEADED, *(_code(row[0]) for row in _rows("error"))]
    named += [_code(row[0]).partition("(")[0] for row in _rows("function")]
    assert sorted(named) == sorted(PUBLIC)


@pytest.mark.parametrize("name", FIRST)
def test_each_argument_is_there_with_type_and_default(name: str) -> None:
    is_made = name not in HANDED and not issubclass_of(PUBLIC[name], Record, StrEnum, BaseException)
    wanted = [(_argument(each), _type(each.annotation), _default(each)) for each in _parameters(PUBLIC[name])] if is_made else []
    if name == "Agent":
        assert not wanted
    assert [row[:3] for row in _rows("argument", name)] == wanted


def issubclass_of(value: Any, *kinds: type) -> bool:
    return isinstance(value, type) and issubclass(value, kinds)


def _argument(each: inspect.Parameter) -> str:
    return f"`{ {each.VAR_POSITIONAL: '*', each.VAR_KEYWORD: '**'}.get(each.kind, '')}{each.name}`"


def _default(each: inspect.Parameter) -> str:
    if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
        return ""
    return "required" if each.default is each.empty else _value(each.default)


@pytest.mark.parametrize("name", [name for name in FIRST if isinstance(PUBLIC[name], type)])
def test_each_call_is_there_with_all_that_it_takes_and_what_it_answers(name: str) -> None:
    wanted = [(_signature(call, function), _answer(function)) for call, function in _calls(PUBLIC[name]).items()]
    assert sorted(row[:2] for row in _rows("call", name)) == sorted(wanted)


@pytest.mark.parametrize("name", [name for name in FIRST if isinstance(PUBLIC[name], type)])
def test_each_attribute_is_there_with_its_type(name: str) -> None:
    if issubclass_of(PUBLIC[name], StrEnum):
        return
    told = _attributes(PUBLIC[name])
    rows = _rows("attribute", name) + [row for row in _rows("argument", name) if is_dataclass(PUBLIC[name])]
    rows += _rows("option", name)
    assert sorted(_code(row[0]) for row in rows) == sorted(told)
    wrong = {row[0]: row[1] for row in rows if told[_code(row[0])] and row[1] != _type(told[_code(row[0])])}
    assert wrong == {}


def test_each_option_of_an_agent_has_its_default() -> None:
    options = {row[0]: row[2] for row in _rows("option", "Agent")}
    assert options == {f"`{name}`": _value(getattr(greenroom.public.Agent, name)) for name in _attributes(greenroom.public.Agent)}
