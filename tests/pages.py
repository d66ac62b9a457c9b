"""The code blocks of the README and of docs/, and who runs them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    text: str

    @property
    def first(self) -> str:
        """Its first line, by which it is known among those of its page."""
        return self.text.partition("\n")[0]


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str | None = None) -> list[Block]:
    """The fenced blocks of a page, such as ``docs/agents.md``, in their order."""
    found = [Block(page, kind, text) for kind, text in _FENCE.findall(read(page))]
    return [block for block in found if language in (None, block.language)]


def block(page: str, first: str) -> str:
    """The text of the one block that begins with this line."""
    [found] = [each.text for each in blocks(page) if each.first == first]
    return found


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the table below that heading, without its head."""
    part = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#|\Z)", read(page), re.MULTILINE | re.DOTALL)
    assert part, f"{page} has no {heading}"
    lines = [line for line in part[1].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
