"""The command ``greenroom``: run a supervisor process, and talk to the rooms of an agent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn, cast

import typer

from . import __version__
from .commands.acl import acl
from .commands.check import run as run_check
from .commands.dead import dead
from .commands.doctor import doctor
from .commands.keys import keys
from .commands.messages import ask, discard, send
from .commands.relay import relay
from .commands.relays import relays
from .commands.rooms import rooms, status, workers
from .commands.run import run
from .commands.signals import interrupt, pause, play, stop
from .commands.tail import signals, tail
from .commands.top import top
from .ending import INTERRUPTED
from .protocol.connect import DEFAULT_REDIS
from .protocol.errors import GreenroomError
from .supervisors.process import Exit, ExitCode, complain, exit_code
from .where import URL_VARIABLE, is_default

# Typer raises click's errors: those of click itself, or of the copy that later versions bring along.
ClickError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[2])

app = typer.Typer(
    name="greenroom",
    help="Supervised rooms: durable, interruptible conversations on Pykka and Redis.",
    epilog="Exit codes: 0 fine, 1 failed, 2 wrong usage, 3 Redis cannot be used; of run and relay also 5 too many restarts; "
    "of run 4 superseded by a newer worker, 6 Redis has lost its data; of the others also 130 interrupted.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS = {
    "Run": (run, relay),
    "Messages": (send, ask, discard),
    "Signals": (interrupt, stop, pause, play),
    "How it is": (status, rooms, workers, tail, signals, top),
    "A deployment": (acl, doctor, keys),
}
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(dead, name="dead", rich_help_panel="Messages")
app.add_typer(relays, name="relays", rich_help_panel="How it is")


@app.command(
    "check",
    rich_help_panel="A deployment",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def check(context: typer.Context) -> int:
    """Answer a probe: whether a worker is ready, or lives."""
    return run_check(context.args)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"greenroom {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def execute(arguments: Sequence[str]) -> int:
    """Run one command; answer its exit code. A user's mistake is one line on stderr, and so is who has not named a Redis."""
    code = _execute(arguments)
    if code == ExitCode.REDIS and is_default(arguments):
        complain(f"{DEFAULT_REDIS} was tried, since no other was named: --redis URL, ${URL_VARIABLE} or --embedded DIR")
    return code


def _execute(arguments: Sequence[str]) -> int:
    try:
        code = typer.main.get_command(app).main(list(arguments) or ["--help"], prog_name="greenroom", standalone_mode=False)
        return int(code or ExitCode.OK)
    except ClickError as error:
        says = error.format_message().rstrip(".").replace(": Value error, ", ": ")  # pydantic's word, of no use to anybody
        complain(f"{says} (see {_command(error)} --help)")
        return error.exit_code
    except GreenroomError as error:
        complain(str(error))
        for note in getattr(error, "__notes__", ()):
            typer.echo(note, err=True)
        return exit_code(error)
    except BrokenPipeError:  # whoever read the output has seen enough
        return ExitCode.FAILED
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED


def _command(error: typer.BadParameter) -> str:
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context is not None else "greenroom"


def main() -> NoReturn:
    """The entry point of the command ``greenroom``."""
    leave = Exit()
    leave(execute(sys.argv[1:]))
