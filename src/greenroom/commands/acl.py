"""``greenroom acl``: the Redis users of an agent, as lines for redis-cli."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from ..options import option
from ..protocol.acl import Role, command_line
from ..protocol.errors import InvalidRequest

PASSWORD_BYTES = 32


def acl(
    agent: Annotated[str, typer.Argument(metavar="AGENT", envvar="GREENROOM_AGENT", show_default=False)],
    passwords: Annotated[
        Path | None,
        option(
            "--passwords",
            metavar="DIR",
            help="Give each user the password in the file of this directory that is called worker, operator or observer; one "
            "that is missing is made, for your eyes only. Without it, users keep the passwords they have.",
        ),
    ] = None,
) -> None:
    """Print the Redis users of an agent: a worker, an operator and an observer, a line of redis-cli each.

    The lines hold no password, but its SHA-256. Redis keeps them with ACL SAVE, or CONFIG REWRITE.
    """
    for role in Role:
        password = None if passwords is None else _password(passwords / role)
        typer.echo(command_line(agent, role, password))


def _password(file: Path) -> str:
    """What the file says, but for a last line break; a file that is not there is written first."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not file.exists():
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as new:
                new.write(f"{secrets.token_urlsafe(PASSWORD_BYTES)}\n")
        return file.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--passwords {file}: {error}") from None
