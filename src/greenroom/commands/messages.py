"""``greenroom send``, ``ask`` and ``discard``: the messages of a room."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..options import AgentName, Embedded, Json, RedisUrl, Room, option
from ..protocol.asks import no_reply
from ..protocol.errors import InvalidRequest
from ..protocol.records import Kind
from ..rendering import show_json, show_stream, to_json
from ..supervisors.process import ExitCode
from .bulk import send_file
from .clients import client_of

Text = Annotated[
    str | None, typer.Argument(metavar="TEXT", show_default=False, help="The text to send; - reads it from stdin.")
]
Data = Annotated[str | None, option("--data", metavar="JSON", help="Send this JSON value instead of a text.")]
Key = Annotated[str | None, option("--key", help="Send once only: a repetition with this key within 24 hours sends nothing.")]


def _body(words: str | None, data: str | None) -> Any:
    if (words is None) == (data is None):
        raise InvalidRequest("name what to send: a text, or - for stdin, or --data JSON")
    try:
        if data is not None:
            return json.loads(data)
        return words if words != "-" else sys.stdin.read().removesuffix("\n")
    except (ValueError, RecursionError, OSError) as error:
        raise InvalidRequest(f"{'stdin' if data is None else '--data'}: {error}") from None


def send(
    agent: AgentName,
    room: Annotated[str | None, typer.Argument(metavar="ROOM", show_default=False)] = None,
    text: Text = None,
    data: Data = None,
    key: Key = None,
    file: Annotated[
        Path | None,
        option("--file", metavar="FILE", help='Send each line of a file, - for stdin: {"room": …, "body": …, "key": …}.'),
    ] = None,
    strict: Annotated[bool, option("--strict", help="With --file: send nothing after a line that is refused.")] = False,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> int:
    """Send a message to a room; print its id. A last line break of stdin is left out.

    With --file, lines that have a key, or get one from --key (KEY:1 and so on), are not sent twice if the command is repeated.
    What is refused is told by its line.
    """
    if file is not None:
        if (room, text, data) != (None, None, None):
            raise InvalidRequest("--file has the rooms and what to send: name neither beside it")
        with client_of(agent, redis, embedded) as client:
            return send_file(client, file, key, strict=strict, as_json=as_json)
    if room is None or strict:
        raise InvalidRequest("--strict is for --file" if strict else "name a room and what to send, or --file")
    body = _body(text, data)
    with client_of(agent, redis, embedded) as client:
        message = client.send(room, body, key=key)
    typer.echo(to_json({"room": room, "message": message}) if as_json else message)
    return ExitCode.OK


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
    with client_of(agent, redis, embedded) as client:
        if as_json or sys.stdout.isatty():
            show = show_json if as_json else show_stream
            last = show(client.ask(room, body, stream=True, timeout=timeout, key=key))
            if last.kind is not Kind.REPLY:
                raise no_reply(room, last)
        else:
            reply = client.ask(room, body, timeout=timeout, key=key)
            typer.echo(reply if isinstance(reply, str) else to_json(reply))


def discard(
    room: Room,
    message: Annotated[int, typer.Argument(min=1, metavar="MESSAGE", show_default=False)],
    agent: AgentName,
    redis: RedisUrl = None,
    embedded: Embedded = None,
) -> None:
    """Drop a message that waits."""
    with client_of(agent, redis, embedded) as client:
        client.discard(room, message)
