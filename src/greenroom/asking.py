"""What the command line asks of a person, and how it shows that something takes long."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from .protocol.errors import InvalidRequest


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
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda by=1: bar.advance(task, by)
