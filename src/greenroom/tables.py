"""Tables for a terminal: no cell is broken over lines but a text in the last column, which goes below its row if need be."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, chop_cells, set_cell_size

GAP, INDENT = "  ", "    "  # between cells; before a text below its row
LEAST_TEXT = 24  # columns for a text beside the other cells
TEXTS = ("error", "reason", "says", "do", "what")  # last columns that are texts
# What a narrow terminal does without, the first of these first.
SPARED = ("cid", "incarnation", "processing", "renewed", "at", "pid", "host", "message", "since", "attempts", "attempt", "lag")


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
    while _total(widths) > width and max(widths.values()) > 1:  # then the widest are cut
        widths[max(widths, key=lambda place: widths[place])] -= 1
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
        first, *more = wrap(cells[text], left)
        return [f"{line}{GAP}{first}", *(" " * (width - left) + part for part in more)]
    return [line.rstrip(), *(INDENT + part for part in wrap(cells[text], max(2, width - len(INDENT))))]


def wrap(text: str, width: int) -> list[str]:
    """A text in lines of at most so many cells, broken between words where it can be."""
    lines = [""]
    for word in text.split():
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines += chop_cells(word, width) or [word]  # none of a word that takes no cell
    return lines[1:] or lines
