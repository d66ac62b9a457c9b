"""From the APP of ``greenroom run APP`` to the agent's class, and of ``greenroom relay APP`` to a function."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from .actors.agent import Agent, inspect_agent
from .protocol.errors import AgentError, InvalidRequest


def load_agent(app: str) -> type[Agent]:
    """The agent that ``module:Class`` or ``path/to/file.py:Class`` names; the class may be inside another (``Outer.Class``).

    Modules are looked for in the current directory first; a file's folder is importable for it, as for ``python file.py``.

    Raises:
        InvalidRequest: ``app`` has another form.
        AgentError: it cannot be imported (the error has the traceback as a note), or is no usable agent.
    """
    found = _load(app, "Class", "app:Support")
    if not isinstance(found, type):
        raise AgentError(f"{app} is of type {type(found).__name__}: want a subclass of greenroom.Agent")
    try:
        return inspect_agent(found).agent_class
    except AgentError as error:
        raise AgentError(f"{app}: {error}") from None


def load_function(app: str) -> Callable[..., Any]:
    """The function that ``module:function`` or ``path/to/file.py:function`` names, as ``load_agent`` finds a class.

    Raises:
        InvalidRequest: ``app`` has another form.
        AgentError: it cannot be imported (the error has the traceback as a note), or is no function.
    """
    found = _load(app, "function", "app:post")
    if not callable(found):
        raise AgentError(f"{app} is of type {type(found).__name__}: want a function of room and output")
    return found


def _load(app: str, what: str, example: str) -> object:
    where, _, name = app.rpartition(":")
    if not (_is_dotted(name) and (where.endswith(".py") or _is_dotted(where))):
        raise InvalidRequest(f"{app!r}: want module:{what} or path/to/file.py:{what}, such as {example}")
    found: object = _import(where)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise AgentError(f"{where} has no {name}") from None
    return found


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _import(where: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if where.endswith(".py") and not Path(where).is_file():
        raise AgentError(f"no file {where}")
    try:
        return _import_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except (Exception, SystemExit) as error:  # it is the user's module: it may raise anything
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{where}.".startswith(f"{missing}."):
            raise AgentError(f"no module named {missing}, neither in {os.getcwd()} nor installed") from None
        raise _failed_import(where, error) from None


def _import_file(path: Path) -> ModuleType:
    name = path.stem if path.stem not in sys.modules else f"app_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    assert spec is not None, "a name that ends in .py has a loader"
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.absolute().parent))
    spec.loader.exec_module(module)
    return module


def _failed_import(where: str, error: BaseException) -> AgentError:
    """One line with the module's line that raised, and a traceback without the frames of the import itself."""
    begin = error.__traceback__
    while begin is not None and begin.tb_frame.f_code.co_name != "<module>":
        begin = begin.tb_next
    lines = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(begin) if frame.name == "<module>"]
    words = str(error)
    if isinstance(error, SyntaxError) and error.filename:
        lines.append(f"{error.filename}:{error.lineno}")
        words = error.msg
    failure = AgentError(f"{lines[-1] if lines else where}: {type(error).__name__}: {words} (while importing {where})")
    failure.add_note("".join(traceback.format_exception(type(error), error, begin)).rstrip())
    return failure
