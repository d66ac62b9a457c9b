"""``greenroom dead``: the messages that failed for good, and what becomes of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from ..asking import progress, sure
from ..options import AgentName, Embedded, Json, Last, RedisUrl, Yes, option
from ..protocol.errors import InvalidRequest, NotFound
from ..protocol.records import DeadLetter
from ..protocol.sync_client import Client
from ..rendering import LETTER_COLUMNS, cell, letter_row, show_facts, show_rows, to_json
from ..supervisors.process import ExitCode, complain
from .clients import client_of, reading

dead = typer.Typer(
    help="Dead letters, the messages that failed for good: list them, show one, put them back, drop them.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Letters = Annotated[list[str] | None, typer.Argument(metavar="ID", show_default=False, help="The dead letters' ids.")]
OfRoom = Annotated[str | None, option("--room", metavar="ROOM", help="Only those of this room.")]
All = Annotated[bool, option("--all", help="All that there are now; with --room, all of that room.")]


@dead.command("list")
def show_all(
    agent: AgentName,
    room: OfRoom = None,
    last: Last = None,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> None:
    """List the dead letters, the newest last: id, room, message, attempts, when it died, and of what."""
    with reading(agent, redis, embedded, as_json) as client:
        found = _letters(client, room)
        show_rows(LETTER_COLUMNS, found if last is None else deque(found, maxlen=last), letter_row, as_json)


@dead.command()
def show(
    letter: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    agent: AgentName,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> None:
    """Show a dead letter with its body."""
    with client_of(agent, redis, embedded) as client:
        found = client.dead_letter(letter)
        typer.echo(to_json(found)) if as_json else show_facts({**dict(found), "body": to_json(found.body)})


@dead.command()
def requeue(
    agent: AgentName,
    letters: Letters = None,
    everything: All = False,
    room: OfRoom = None,
    yes: Yes = False,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> int:
    """Put dead letters back at the end of their rooms' queues, with all their attempts; print each room and new message.

    With --all, those that die again meanwhile are not put back once more.
    """
    with client_of(agent, redis, embedded) as client:

        def put_back(letter: str) -> dict[str, Any]:
            back, message = client.requeue(letter)
            return {"id": letter, "room": back, "message": message}

        return _each(client, put_back, "put back", letters, everything, room, yes, as_json)


@dead.command()
def drop(
    agent: AgentName,
    letters: Letters = None,
    everything: All = False,
    room: OfRoom = None,
    yes: Yes = False,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> int:
    """Drop dead letters for good."""
    with client_of(agent, redis, embedded) as client:

        def remove(letter: str) -> dict[str, Any]:
            client.drop(letter)
            return {"id": letter}

        return _each(client, remove, "drop", letters, everything, room, yes, as_json)


def _letters(client: Client, room: str | None) -> Iterator[DeadLetter]:
    return (letter for letter in client.dead_letters() if room in (None, letter.room))


def _each(
    client: Client,
    act: Callable[[str], dict[str, Any]],
    what: str,
    letters: list[str] | None,
    everything: bool,
    room: str | None,
    yes: bool,
    as_json: bool,
) -> int:
    """Do it to each of the letters. Those that are not there are told, and do not stop the rest."""
    if bool(letters) == everything or (room is not None and not everything):
        raise InvalidRequest("name dead letters, or --all, perhaps with --room")
    chosen = letters or [letter.id for letter in _letters(client, room)]
    if everything and chosen and not sure(f"{what} {len(chosen)} dead letter{'' if len(chosen) == 1 else 's'}?", yes):
        complain("nothing was done")
        return ExitCode.FAILED
    done = 0
    with progress(what, len(chosen)) as advance:
        for letter in chosen:
            try:
                told = act(letter)
            except NotFound as error:
                complain(str(error))
            else:
                done += 1
                if as_json or not everything:
                    typer.echo(to_json(told) if as_json else "\t".join(map(cell, told.values())))
            advance()
    if everything and not as_json:
        typer.echo(f"{what}: {done}")
    return ExitCode.OK if done == len(chosen) else ExitCode.FAILED
