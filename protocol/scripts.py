"""The Lua scripts: the only writers. Each file in ``lua/`` runs after the shared prelude."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """One script: its name, whole text, and the SHA-1 by which Redis knows it."""

    name: str
    text: str
    sha: str


@cache
def scripts() -> dict[str, Script]:
    """Every script by name, read once."""
    folder = files(__package__) / "lua"
    found = [entry for entry in folder.iterdir() if entry.name.endswith(".lua")]
    texts = {entry.name.removesuffix(".lua"): entry.read_text(encoding="utf-8") for entry in found}
    prelude = texts.pop("prelude")
    return {name: _script(name, prelude + "\n" + body) for name, body in sorted(texts.items())}


def _script(name: str, whole: str) -> Script:
    return Script(name, whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest())
