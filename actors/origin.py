"""Where an agent's class comes from, so that a child process can load the same one."""

from __future__ import annotations

import importlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from ..protocol.errors import AgentError

_MAIN = ("__main__", "__mp_main__")  # the second: the same module, in a child of the standard library's or of ours

_loading = False  # a child loads its agent at this moment


@dataclass(frozen=True, slots=True)
class Origin:
    """A class by its module and name. ``file`` is the module's; ``run`` is the name of a main module that was run with -m."""

    module: str
    qualname: str
    file: str
    run: str


def origin_of(agent_class: type) -> Origin:
    """Where a child process finds the class.

    Raises:
        AgentError: it finds none, or another one; or this is such a child, and the program that it loads lacks its guard.
    """
    module, name = agent_class.__module__, agent_class.__qualname__
    if _loading:
        raise AgentError(
            f"{name}: a child process imports the program to find its agent, and must not start a system of its own: "
            'put what starts it under `if __name__ == "__main__":`'
        )
    home = sys.modules.get(module)
    if home is None or _find(home, name) is not agent_class:
        raise AgentError(
            f'{name}: isolation = "process" wants a class at the top of a module, or inside such a class: '
            f"a child process does not find it in {module}"
        )
    spec = getattr(home, "__spec__", None)
    file = getattr(home, "__file__", None) or ""
    if module not in _MAIN:
        return Origin(module, name, os.path.abspath(file) if file else "", "")
    run = spec.name if spec is not None and spec.name != "__main__" else ""
    if not run and not os.path.isfile(file):
        raise AgentError(f'{name}: isolation = "process" wants a class from a file, which a child process can import')
    return Origin(module, name, os.path.abspath(file) if file else "", run)


def load(origin: Origin) -> object:
    """In a child: what has the class's name there. The module may raise anything."""
    with _being_loaded():
        module = _load_main(origin) if origin.module in _MAIN else _load_module(origin)
    return _find(module, origin.qualname)


def _find(module: ModuleType, qualname: str) -> object:
    found: object = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


@contextmanager
def _being_loaded() -> Iterator[None]:
    global _loading
    _loading = True
    try:
        yield
    finally:
        _loading = False


def _load_main(origin: Origin) -> ModuleType:
    """Under another name, so that what the program guards with ``__name__ == "__main__"`` does not run."""
    module = ModuleType("__mp_main__")
    if origin.run:
        content = runpy.run_module(origin.run, run_name="__mp_main__", alter_sys=True)
    else:
        content = runpy.run_path(origin.file, run_name="__mp_main__")
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    return module


def _load_module(origin: Origin) -> ModuleType:
    """By its name if that leads to its file; else it was loaded from the file, and is here, too."""
    try:
        spec = importlib.util.find_spec(origin.module)
    except (ImportError, ValueError):
        spec = None
    if not origin.file or (spec is not None and spec.origin and os.path.abspath(spec.origin) == origin.file):
        return importlib.import_module(origin.module)
    spec = importlib.util.spec_from_file_location(origin.module, origin.file)
    if spec is None or spec.loader is None:
        return importlib.import_module(origin.module)
    module = sys.modules[origin.module] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
