"""All that greenroom's users may name, and how docs/reference.md writes it."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from datetime import timedelta
from enum import StrEnum
from types import FunctionType, ModuleType
from typing import Any

import pykka

import greenroom.metrics
import greenroom.public
import greenroom.testing
from greenroom.protocol.records import Record
from greenroom.supervisors.measures import Measures

# What there is. -------------------------------------------------------------------------------------------------


def _everything() -> dict[str, Any]:
    names = {name: getattr(greenroom.public, name) for name in greenroom.public.__all__}
    names |= {name: getattr(greenroom.testing, name) for name in greenroom.testing.__all__}
    names |= dict(_defined_in(greenroom.metrics))
    return names | {"Measures": Measures}


def _defined_in(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if not name.startswith("_") and isinstance(value, type | FunctionType) and value.__module__ == module.__name__:
            yield name, value


PUBLIC = _everything()
ERRORS = {name for name, value in PUBLIC.items() if isinstance(value, type) and issubclass(value, Exception)}


def _classes(kind: type) -> list[type]:
    """The class and those that it is made of, but for what others have made, or have a place of their own on the page."""
    return [
        each
        for each in kind.__mro__
        if each.__module__.startswith("greenroom")
        and each is not Record
        and (each is kind or PUBLIC.get(each.__name__) is not each)
    ]


def _members(kind: type) -> dict[str, Any]:
    elsewhere = {name for base in kind.__mro__[1:] if PUBLIC.get(base.__name__) is base for name in dir(base)}
    elsewhere |= set(dir(pykka.Actor)) if issubclass(kind, pykka.Actor) else set()
    found = {name: value for each in reversed(_classes(kind)) for name, value in vars(each).items()}
    return {name: value for name, value in found.items() if not name.startswith("_") and name not in elsewhere}


def calls(kind: type) -> dict[str, FunctionType]:
    return {name: value for name, value in _members(kind).items() if isinstance(value, FunctionType)}


def _set_in_init(kind: type) -> dict[str, str]:
    """The public attributes that its constructor sets, and their types where that is told."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for init in tree.body:
        if isinstance(init, ast.FunctionDef) and init.name == "__init__":
            told = {each.arg: ast.unparse(each.annotation) for each in init.args.args if each.annotation is not None}
            for node in ast.walk(init):
                for target in node.targets if isinstance(node, ast.Assign) else []:
                    if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                        found[target.attr] = told.get(ast.unparse(node.value), "")  # type: ignore[attr-defined]
    return {name: kind for name, kind in found.items() if not name.startswith("_")}


def attributes(kind: type) -> dict[str, str]:
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


def type_of(told: str) -> str:
    """An annotation: its alternatives, each in code."""
    shown: list[str] = []
    for part in _split(told, "|"):
        part = re.sub(r"\b(dt|os)\.", "", part).removesuffix("[Any]")
        if found := re.fullmatch(r"(?:Annotated|ClassVar)\[(.*)\]", part):
            shown.append(type_of(_split(found[1], ",")[0]))
        elif found := re.fullmatch(r"Literal\[(.*)\]", part):
            shown += [f"`{each}`".replace("'", '"') for each in _split(found[1], ",")]
        elif part.startswith("Callable[") or part in ("OnEnd", "Deliver", "Listener", "OnExit", "F"):
            shown.append("`Callable`")
        elif part == "Code":
            shown += ['`"cancelled"`', '`"killed"`', '`"detached"`', '`"not started"`']
        elif part == "PathLike[str]":
            shown.append("`PathLike`")
        else:
            shown.append(f"`{part}`")
    return " or ".join(shown)


def default_of(value: Any) -> str:
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
    if isinstance(value, int | float) and not isinstance(value, bool):
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


def parameters(function: Any) -> list[inspect.Parameter]:
    return [each for each in inspect.signature(function).parameters.values() if each.name != "self"]


def signature(name: str, function: Any) -> str:
    words, star = [], False
    for each in parameters(function):
        if each.kind is each.VAR_POSITIONAL:
            words.append(f"*{each.name}")
            star = True
            continue
        if each.kind is each.KEYWORD_ONLY and not star:
            words.append("*")
            star = True
        words.append(each.name if each.default is each.empty else f"{each.name}={_literal(each.default)}")
    return f"`{name}({', '.join(words)})`"


def answer(function: Any) -> str:
    told: str = inspect.signature(function).return_annotation
    if hasattr(function, "__wrapped__"):
        inner = re.fullmatch(r"(?:Async)?Iterator\[(.*)\]", told)
        assert inner, told
        return "a context manager" if inner[1] == "None" else f"a context manager: {type_of(inner[1])}"
    return type_of(told)
