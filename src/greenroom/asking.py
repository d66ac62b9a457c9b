"""What the command line asks of a person, and how it shows that something takes long."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from .ending import restoring
from .protocol.errors import InvalidRequest

CLEARED = b"\r\x1b[K\x1b[?25h"  # the line of the bar, and the cursor that it hides


def sure(question: str, yes: bool) -> bool:
    """Whether the person at the terminal, or ``--yes``, agrees.

    Raises:
        InvalidRequest: there is nobody to ask.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise InvalidRequest(f"{question} There is no terminal to ask: say --yes")
    typer.echo(f"{question} [y/N] ", nl=False, err=True)  # not input(): what it asks goes to stdout
    return sys.stdin.readline().strip().lower() in ("y", "yes")


class Advance(Protocol):
    def __call__(self, by: float = 1) -> object: ...


@contextmanager
def progress(what: str, total: float | None) -> Iterator[Advance]:
    """A bar on stderr, if that is a terminal; call what this gives for each step."""
    shown = sys.stderr.isatty()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), disable=not shown, transient=True)
    with restoring(CLEARED) if shown else nullcontext(), bar:
        task = bar.add_task(what, total=total)
        yield lambda by=1: bar.advance(task, by)
