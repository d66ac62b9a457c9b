"""The command ``greenroom``: run a supervisor process, and talk to the rooms of an agent."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, cast

import typer

from .app_path import load_agent, load_function
from .commands.acl import acl
from .commands.check import run as run_check
from .commands.doctor import doctor
from .logs import LogLevel, configure_logging
from .options import AgentName, ChosenFormat, ChosenLevel, Embedded, Json, RedisUrl
from .options import option as _option
from .protocol.asks import no_reply
from .protocol.errors import GreenroomError, InvalidRequest
from .protocol.log import bound
from .protocol.records import Kind, Mode
from .protocol.sync_client import Client
from .rendering import (
    RECEIPT_COLUMNS,
    ROOM_COLUMNS,
    receipt_row,
    room_facts,
    room_row,
    show_facts,
    show_json,
    show_output,
    show_stream,
    show_table,
    to_json,
)
from .running import metrics_words, option_words, run_parent, seconds, serving_metrics, using, warn_of_password
from .supervisors.orders import Orders
from .supervisors.process import Exit, ExitCode, complain, exit_code, label_stderr, run_process
from .supervisors.processes import worker_names
from .supervisors.relay import Relay
from .supervisors.system import ActorSystem
from .where import server_of, url_of

PATIENCE_S = 5.0
INTERRUPTED = 130  # 128 + SIGINT, as shells have it

# Typer raises click's errors: those of click itself, or of the copy that later versions bring along.
ClickError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[2])

app = typer.Typer(
    name="greenroom",
    help="Supervised rooms: durable, interruptible conversations on Pykka and Redis.",
    epilog="Exit codes: 0 fine, 1 failed, 2 wrong usage, 3 Redis cannot be used; of run and relay also 5 too many restarts; "
    "of run 4 superseded by a newer worker, 6 Redis has lost its data; of the others also 130 interrupted.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


Room = Annotated[str, typer.Argument(metavar="ROOM", show_default=False)]
Rooms = Annotated[list[str] | None, typer.Argument(metavar="ROOM", show_default=False)]
Text = Annotated[
    str | None, typer.Argument(metavar="TEXT", show_default=False, help="The text to send; - reads it from stdin.")
]
Data = Annotated[str | None, _option("--data", metavar="JSON", help="Send this JSON value instead of a text.")]
Key = Annotated[str | None, _option("--key", help="Send once only: a repetition with this key within 24 hours sends nothing.")]
Everywhere = Annotated[bool, _option("--everywhere", help="All rooms of the agent, also those to come.")]
Reason = Annotated[str, _option("--reason", help="Why, for others to see.")]
By = Annotated[str | None, _option("--by", help="Who signals; the user and host by default.")]
Cid = Annotated[str | None, _option("--cid", help="The signal's id: a repetition with it does nothing more.")]


# Running. -------------------------------------------------------------------------------------------


@app.command()
def run(
    app: Annotated[str, typer.Argument(metavar="APP", show_default=False, help="module:Class or path/to/file.py:Class")],
    agent: AgentName,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    name: Annotated[
        str | None, _option("--name", help="This worker's name, kept over restarts; the host and process id by default.")
    ] = None,
    processes: Annotated[
        int | None, _option("--processes", min=1, help="Supervise so many worker processes, named NAME-1, NAME-2 and so on.")
    ] = None,
    max_rooms: Annotated[int, typer.Option(min=1, help="How many rooms may be at work at once, in each process.")] = 1000,
    lease: Annotated[float, typer.Option(min=1, help="Seconds for which a worker that is gone keeps its rooms.")] = 5.0,
    recovery_rate: Annotated[
        float, typer.Option(min=0.01, help="How many rooms a second are resumed after a restart, beside new work.")
    ] = 100.0,
    grace: Annotated[float, typer.Option(min=0, help="Seconds in which cycles may finish after SIGTERM or Ctrl-C.")] = 25.0,
    log_level: ChosenLevel = LogLevel.INFO,
    log_format: ChosenFormat = None,
    metrics: Annotated[
        int | None, _option("--metrics", metavar="PORT", min=0, max=65535, help="Serve metrics for Prometheus on this port.")
    ] = None,
    metrics_host: Annotated[
        str | None, _option("--metrics-host", metavar="HOST", help="The address for it; 127.0.0.1 by default.")
    ] = None,
    probes: Annotated[
        Path | None,
        _option(
            "--probes",
            metavar="DIR",
            envvar="GREENROOM_PROBES",
            help="Answer greenroom check on a Unix socket in this directory.",
        ),
    ] = None,
    lifeline: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> int:
    """Run a supervisor process: it works for the agent until SIGTERM or Ctrl-C; a second one forces it to end.

    SIGUSR1 has it write all threads, tasks and rooms to stderr.
    """
    if lifeline is not None:
        label_stderr(str(name))
    configure_logging(log_level, log_format)
    warn_of_password(redis, agent)
    period, lease_period = seconds("--grace", grace), seconds("--lease", lease)
    try:
        with Orders(lifeline) as orders:
            if processes is not None:
                options: dict[str, object] = {
                    "max-rooms": max_rooms,
                    "lease": lease,
                    "recovery-rate": recovery_rate,
                    "grace": grace,
                }
                if probes is not None:
                    options["probes"] = probes
                if log_format is not None:
                    options["log-format"] = log_format
                words = [app, "--agent", agent, "--log-level", log_level, *option_words(options)]
                workers = metrics_words(worker_names(name, processes), metrics, metrics_host)
                return run_parent(words, agent, workers, server_of(redis, embedded), orders)
            agent_class = load_agent(app)
            with using(server_of(redis, embedded)) as url:
                system = ActorSystem(
                    agent_class,
                    agent=agent,
                    redis=url,
                    name=name,
                    max_rooms=max_rooms,
                    lease=lease_period,
                    recovery_rate=recovery_rate,
                    probes=probes,
                )
                with bound(agent=agent, worker=system.name), serving_metrics(system, metrics, metrics_host):
                    return run_process(system, period, orders)
    except KeyboardInterrupt:  # told to end before there was anything to drain
        return ExitCode.OK


@app.command()
def relay(
    app: Annotated[str, typer.Argument(metavar="APP", show_default=False, help="module:function or path/to/file.py:function")],
    agent: AgentName,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    name: Annotated[
        str, typer.Option("--name", help="The relay's name: its place is kept by it, and of several with one name one works.")
    ] = "relay",
    max_rooms: Annotated[int, typer.Option(min=1, help="Of how many rooms outputs may be handed over at once.")] = 100,
    lease: Annotated[
        float, typer.Option(min=1, help="Seconds for which a relay that is gone keeps others of its name waiting.")
    ] = 5.0,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds in which the function may finish after SIGTERM or Ctrl-C.")
    ] = 25.0,
    log_level: ChosenLevel = LogLevel.INFO,
    log_format: ChosenFormat = None,
) -> int:
    """Hand each output of the agent's rooms to a function, until SIGTERM or Ctrl-C; a second one forces it to end.

    The function is called with the room and the output. What it raises is tried again with back-off, for ever.
    """
    configure_logging(log_level, log_format)
    warn_of_password(redis, agent)
    period, lease_period = seconds("--grace", grace), seconds("--lease", lease)
    try:
        with Orders() as orders:
            deliver = load_function(app)
            with using(server_of(redis, embedded)) as url:
                relay = Relay(agent, deliver, redis=url, name=name, max_rooms=max_rooms, lease=lease_period)
                with bound(agent=agent, relay=name):
                    return run_process(relay, period, orders)
    except KeyboardInterrupt:  # told to end before there was anything to finish
        return ExitCode.OK


# Messages. ------------------------------------------------------------------------------------------


def _client(agent: str, redis: str | None, embedded: Path | None) -> Client:
    # Without a handler, Python prints warnings: what is wrong is said once, by the error.
    logging.getLogger("greenroom").addHandler(logging.NullHandler())
    return Client(agent, redis=url_of(redis, embedded), timeout=PATIENCE_S)


def _body(words: str | None, data: str | None) -> Any:
    if (words is None) == (data is None):
        raise InvalidRequest("name what to send: a text, or - for stdin, or --data JSON")
    try:
        if data is not None:
            return json.loads(data)
        return words if words != "-" else sys.stdin.read().removesuffix("\n")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{'stdin' if data is None else '--data'}: {error}") from None


@app.command()
def send(
    room: Room,
    agent: AgentName,
    text: Text = None,
    data: Data = None,
    key: Key = None,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> None:
    """Send a message to a room; print its id. A last line break of stdin is left out."""
    body = _body(text, data)
    with _client(agent, redis, embedded) as client:
        message = client.send(room, body, key=key)
    typer.echo(to_json({"room": room, "message": message}) if as_json else message)


@app.command()
def ask(
    room: Room,
    agent: AgentName,
    text: Text = None,
    data: Data = None,
    key: Key = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds to wait for the reply.")] = 30.0,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> None:
    """Send a message to a room and print its reply: a text as it is, anything else as JSON; to a terminal as it comes.

    With --json each output of the message is printed as it comes, the last of them is the reply or why there is none.
    """
    body = _body(text, data)
    with _client(agent, redis, embedded) as client:
        if as_json or sys.stdout.isatty():
            show = show_json if as_json else show_stream
            last = show(client.ask(room, body, stream=True, timeout=timeout, key=key))
            if last.kind is not Kind.REPLY:
                raise no_reply(room, last)
        else:
            reply = client.ask(room, body, timeout=timeout, key=key)
            typer.echo(reply if isinstance(reply, str) else to_json(reply))


@app.command()
def discard(
    room: Room,
    message: Annotated[int, typer.Argument(min=1, show_default=False)],
    agent: AgentName,
    redis: RedisUrl = None,
    embedded: Embedded = None,
) -> None:
    """Drop a message that waits."""
    with _client(agent, redis, embedded) as client:
        client.discard(room, message)


# Signals. -------------------------------------------------------------------------------------------


@app.command()
def interrupt(
    agent: AgentName,
    rooms: Rooms = None,
    everywhere: Everywhere = False,
    message: Annotated[int | None, _option("--message", min=1, help="Only if this message is in processing.")] = None,
    reason: Reason = "",
    by: By = None,
    cid: Cid = None,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> None:
    """Abort the cycle in flight and consume its message; the next one runs."""
    with _client(agent, redis, embedded) as client:
        targets = _targets(rooms, everywhere)
        receipts = client.interrupt(*targets, everywhere=everywhere, message=message, reason=reason, by=by, cid=cid)
    _show_rows(RECEIPT_COLUMNS, receipts, receipt_row, as_json)


def _signal(mode: Mode, help: str) -> None:
    """Define the command that sends ``mode``."""

    def command(
        agent: AgentName,
        rooms: Rooms = None,
        everywhere: Everywhere = False,
        reason: Reason = "",
        by: By = None,
        cid: Cid = None,
        redis: RedisUrl = None,
        embedded: Embedded = None,
        as_json: Json = False,
    ) -> None:
        with _client(agent, redis, embedded) as client:
            send = {Mode.STOP: client.stop, Mode.PAUSE: client.pause, Mode.PLAY: client.play}[mode]
            receipts = send(*_targets(rooms, everywhere), everywhere=everywhere, reason=reason, by=by, cid=cid)
        _show_rows(RECEIPT_COLUMNS, receipts, receipt_row, as_json)

    app.command(mode.value, help=help)(command)


_signal(Mode.STOP, "Abort the cycle in flight, keep its message, and hold the rooms until play.")
_signal(Mode.PAUSE, "Let the cycle in flight finish, then hold the rooms until play.")
_signal(Mode.PLAY, "Let the rooms go on: a kept message first. Rooms that were held by themselves are played by themselves.")


def _targets(rooms: list[str] | None, everywhere: bool) -> list[str]:
    if bool(rooms) == everywhere:
        raise InvalidRequest("name rooms, or --everywhere")
    return rooms or []


# How it is. -----------------------------------------------------------------------------------------


@app.command()
def status(
    agent: AgentName,
    room: Annotated[str | None, typer.Argument(metavar="ROOM", show_default=False)] = None,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> None:
    """Show a room, or the agent as a whole."""
    with _client(agent, redis, embedded) as client:
        if room is None:
            whole = client.overview()
            typer.echo(to_json(whole)) if as_json else show_facts(dict(whole))
        else:
            one = client.status(room)
            typer.echo(to_json(one)) if as_json else show_facts(room_facts(one, client.overview()))


@app.command()
def rooms(agent: AgentName, redis: RedisUrl = None, embedded: Embedded = None, as_json: Json = False) -> None:
    """List the rooms that have work, a mode or state."""
    with _client(agent, redis, embedded) as client:
        _show_rows(ROOM_COLUMNS, client.rooms(), room_row, as_json)


@app.command()
def tail(
    room: Room,
    agent: AgentName,
    follow: Annotated[bool, _option("--follow", "-f", help="Go on with what the room goes on to send, until Ctrl-C.")] = False,
    after: Annotated[str | None, _option("--after", metavar="ID", help="Only what came after this entry.")] = None,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> None:
    """Show what a room has sent: id, kind, message, ticket, number, and what it says."""
    with _client(agent, redis, embedded) as client:
        for output in client.outputs(room, after=after, follow=follow):
            typer.echo(to_json(output)) if as_json else show_output(output)


R = TypeVar("R")


def _show_rows(columns: Sequence[str], records: Iterable[R], row: Callable[[R], Sequence[Any]], as_json: bool) -> None:
    if as_json:
        for record in records:
            typer.echo(to_json(record))
    else:
        show_table(columns, map(row, records))


# A deployment. --------------------------------------------------------------------------------------

app.command()(acl)
app.command()(doctor)


@app.command("check", add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def check(context: typer.Context) -> int:
    """Answer a probe: whether a worker is ready, or lives."""
    return run_check(context.args)


# The program. ---------------------------------------------------------------------------------------


def execute(arguments: Sequence[str]) -> int:
    """Run one command; answer its exit code. A user's mistake is one line on stderr."""
    try:
        code = typer.main.get_command(app).main(list(arguments) or ["--help"], prog_name="greenroom", standalone_mode=False)
        return int(code or ExitCode.OK)
    except ClickError as error:
        complain(f"{error.format_message().rstrip('.')} (see {_command(error)} --help)")
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
