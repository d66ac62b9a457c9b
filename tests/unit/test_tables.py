"""Tables on a terminal: what fits, what is left out, and what goes below."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from greenroom.tables import fit, lay_out, wrap

COLUMNS = ("room", "phase", "owner", "processing", "says")
ROWS = [("42", "backoff", "web-1", "1795986761501191", "RuntimeError: the model is overloaded"), ("43", "held", "-", "-", "-")]


def test_a_table_that_fits_has_a_row_a_line() -> None:
    assert lay_out(COLUMNS, ROWS, 100) == [
        "room  phase    owner  processing        says",
        "42    backoff  web-1  1795986761501191  RuntimeError: the model is overloaded",
        "43    held     -      -",
    ]


def test_a_text_that_has_little_room_is_wrapped_in_its_column() -> None:
    assert lay_out(COLUMNS, ROWS, 66)[1:3] == [
        "42    backoff  web-1  1795986761501191  RuntimeError: the model is",
        "                                        overloaded",
    ]


def test_a_text_that_has_none_goes_below_its_row() -> None:
    assert lay_out(COLUMNS, ROWS, 50) == [
        "room  phase    owner  processing",
        "    says",
        "42    backoff  web-1  1795986761501191",
        "    RuntimeError: the model is overloaded",
        "43    held     -      -",
    ]


def test_what_a_narrow_terminal_can_spare_is_left_out_before_anything_is_cut() -> None:
    assert lay_out(COLUMNS, ROWS, 30)[0] == "room  phase    owner"
    assert lay_out(COLUMNS, ROWS, 18)[2].startswith("42    b")


def test_columns_that_say_nothing_are_left_out_but_the_first() -> None:
    assert lay_out(("room", "owner", "says"), [("-", "-", "-")], 80) == ["room", "-"]


TEXT = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=30)


@given(rows=st.lists(st.tuples(TEXT, TEXT, TEXT, TEXT, TEXT), max_size=5), width=st.integers(20, 120))
@example(rows=[("0", "0", "0", "0", "\U0001bc9d")], width=20)
def test_no_row_is_wider_than_the_terminal_and_none_is_lost(rows: list[tuple[str, ...]], width: int) -> None:
    lines = lay_out(COLUMNS, rows, width)
    assert len(lines) >= 1 + len(rows)
    assert all(cell_len(line) <= width for line in lines)
    told = "".join("".join(lines).split())
    assert all(row[-1] in told for row in rows if row[-1] != "-"), "the text is there as a whole"


FITTED = [("abc", 5, "abc  "), ("abc", 3, "abc"), ("abcd", 3, "ab…"), ("部屋番号", 5, "部屋…"), ("部屋", 2, " …"), ("a", 0, "")]


@pytest.mark.parametrize(("text", "width", "fitted"), FITTED)
def test_a_text_is_made_to_fit_by_cells(text: str, width: int, fitted: str) -> None:
    assert fit(text, width) == fitted
    assert cell_len(fit(text, width)) == width


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [""]),
        ("one two three", ["one two", "three"]),
        ("abcdefghij k", ["abcdefgh", "ij k"]),
        ("部屋部屋部屋", ["部屋部屋", "部屋"]),
    ],
)
def test_a_text_is_wrapped_by_cells_between_words_where_it_can_be(text: str, lines: list[str]) -> None:
    assert wrap(text, 8) == lines
