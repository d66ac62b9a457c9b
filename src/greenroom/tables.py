"""Tables for a terminal: no cell is broken over lines but a text in the last column, which goes below its row if need be."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

GAP = "  "
LEAST_TEXT = 24  # columns for a text beside the other cells
TEXTS = ("error", "reason", "says", "do", "what")  # last columns that are texts
# What a narrow terminal does without, the first of these first.
SPARED = ("cid", "incarnation", "processing", "renewed", "at", "pid", "host", "message", "since", "attempts", "attempt")


def fit(text: str, width: int) -> str:
    """The text in exactly so many cells: filled up, or cut with an ellipsis."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width - 1) + "…" if width > 0 else ""


def lay_out(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The lines of a table, the first of them its columns' names. Columns with nothing but ``-`` are left out."""
    kept = [place for place in range(len(columns)) if place == 0 or any(row[place] != "-" for row in rows)]
    text = kept.pop() if len(kept) > 1 and columns[kept[-1]] in TEXTS else None
    widths = {place: max(cell_len(cells[place]) for cells in (columns, *rows)) for place in kept}
    for name in SPARED:
        if _total(widths) > width and name in columns:
            widths.pop(columns.index(name), None)
    if (over := _total(widths) - width) > 0:  # then the widest is cut
        widest = max(widths, key=lambda place: widths[place])
        widths[widest] = max(1, widths[widest] - over)
    lines = _rows(columns, widths, text, width)
    for row in rows:
        lines += _rows(row, widths, text, width)
    return lines


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + len(GAP) * (len(widths) - 1)


def _rows(cells: Sequence[str], widths: dict[int, int], text: int | None, width: int) -> list[str]:
    line = GAP.join(fit(cells[place], of) for place, of in widths.items())
    if text is None or cells[text] == "-":
        return [line.rstrip()]
    left = width - _total(widths) - len(GAP)
    if left >= LEAST_TEXT:
        first, *more = textwrap.wrap(cells[text], left) or [""]
        return [f"{line}{GAP}{first}", *(" " * (width - left) + part for part in more)]
    return [line.rstrip(), *textwrap.wrap(cells[text], width, initial_indent="    ", subsequent_indent="    ")]
