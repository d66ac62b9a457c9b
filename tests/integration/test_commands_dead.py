"""``dead``: the dead letters are listed, shown, put back and dropped."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest
import redis as redis_py

from greenroom import Client, DeadLetter, EventKind, NotFound
from integration.agents import Director, eventually, wait_event
from integration.command import Shell
from integration.conftest import Running

from started import Started


@pytest.fixture
def letters(client: Client, running: Running, director: Director) -> list[DeadLetter]:
    """Two dead letters of room 42 and one of 43; the worker is gone."""
    system = running(director.agent(max_attempts=1))
    for room, body in (("42", "fail: one"), ("43", "fail: two"), ("42", "fail: three")):
        count = client.overview().dead
        client.send(room, body)
        eventually(lambda: client.overview().dead > count, "it dies")  # noqa: B023  # called at once
    system.stop()
    return list(client.dead_letters())


def test_dead_list_tells_what_died_when_and_of_what(shell: Shell, letters: list[DeadLetter]) -> None:
    found = shell.json("dead", "list")
    assert [(row["id"], row["room"], row["body"], row["error"]) for row in found] == [
        (letter.id, letter.room, letter.body, f"RuntimeError: {letter.body}") for letter in letters
    ]
    assert [row["body"] for row in found] == ["fail: one", "fail: two", "fail: three"]
    assert [row["id"] for row in shell.json("dead", "list", "--room", "42")] == [letters[0].id, letters[2].id]
    assert [row["id"] for row in shell.json("dead", "list", "--last", "1")] == [letters[2].id]
    header, first, *_ = shell("dead", "list")[0].splitlines()
    assert header.split("\t") == ["id", "room", "message", "attempts", "died", "error"]
    assert first.split("\t")[:4] == [letters[0].id, "42", str(letters[0].message), "1"]


def test_dead_show_has_the_whole_letter(shell: Shell, letters: list[DeadLetter]) -> None:
    [shown] = shell.json("dead", "show", letters[1].id)
    assert (shown["room"], shown["body"], shown["attempts"]) == ("43", "fail: two", 1)
    facts = dict(line.split(": ", 1) for line in shell("dead", "show", letters[1].id)[0].splitlines())
    assert (facts["body"], facts["error"]) == ('"fail: two"', "RuntimeError: fail: two")
    assert "no dead letter 1-1" in shell.refused("dead", "show", "1-1", code=1)
    shell.refused("dead", "show", "garbage", code=2)


def test_requeue_puts_letters_back_and_drop_drops_them_whichever_are_named(
    shell: Shell, client: Client, letters: list[DeadLetter]
) -> None:
    first, second, third = letters
    [back] = shell.json("dead", "requeue", third.id)
    assert (back["id"], back["room"]) == (third.id, "42")
    assert client.status("42").waiting == 1
    assert shell("dead", "drop", first.id)[0] == f"{first.id}\n"
    assert [letter.id for letter in client.dead_letters()] == [second.id]
    dropped = [event for event in client.events() if event.kind is EventKind.MESSAGE_DROPPED]
    assert [(event.room, event.message, event.error) for event in dropped] == [("42", first.message, first.error)]
    assert dropped[0].details["dead"] == first.id
    assert "@" in dropped[0].details["by"]


@pytest.mark.parametrize("verb", ["requeue", "drop"])
def test_a_letter_that_is_not_there_is_told_and_does_not_stop_the_rest(
    verb: str, shell: Shell, client: Client, letters: list[DeadLetter]
) -> None:
    out, err = shell("dead", verb, "1-1", letters[0].id, code=1)
    assert out.startswith(letters[0].id)
    assert err == "greenroom: no dead letter 1-1\n"
    assert [letter.id for letter in client.dead_letters()] == [letters[1].id, letters[2].id]
    with pytest.raises(NotFound):
        getattr(client, verb)(letters[0].id)


@pytest.mark.parametrize("verb", ["requeue", "drop"])
def test_all_are_done_at_once_if_one_is_sure(verb: str, shell: Shell, client: Client, letters: list[DeadLetter]) -> None:
    assert "say --yes" in shell.refused("dead", verb, "--all", code=2)
    assert len(list(client.dead_letters())) == 3
    word = {"requeue": "put back", "drop": "drop"}[verb]
    assert shell("dead", verb, "--all", "--room", "43", "--yes")[0] == f"{word}: 1\n"
    assert [letter.room for letter in client.dead_letters()] == ["42", "42"]
    assert [row["id"] for row in shell.json("dead", verb, "--all", "-y")] == [letters[0].id, letters[2].id]
    assert client.overview().dead == 0
    assert client.status("42").waiting == (2 if verb == "requeue" else 0)
    assert shell("dead", verb, "--all")[0] == f"{word}: 0\n", "there is nothing to be sure of"


def test_who_says_no_changes_nothing(
    shell: Shell, client: Client, letters: list[DeadLetter], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Person(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Person("n\n"))
    out, err = shell("dead", "drop", "--all", code=1)
    assert out == ""
    assert "drop 3 dead letters?" in err
    assert "nothing was done" in err
    assert client.overview().dead == 3


def test_those_that_die_again_meanwhile_are_not_put_back_once_more(
    shell: Shell, client: Client, letters: list[DeadLetter], running: Running, redis: redis_py.Redis, director: Director
) -> None:
    running(director.agent(max_attempts=1))
    assert shell("dead", "requeue", "--all", "--yes")[0] == "put back: 3\n"
    wait_event(redis, client.agent, "message.dead", count=6)
    assert client.overview().dead == 3


@pytest.mark.parametrize("arguments", [[], ["--all", "1-1"], ["1-1", "--room", "42"], ["--room", "42"], ["garbage"]])
@pytest.mark.parametrize("verb", ["requeue", "drop"])
def test_no_letters_or_letters_beside_all_is_wrong_usage(verb: str, arguments: list[str], shell: Shell) -> None:
    shell.refused("dead", verb, *arguments, code=2)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    yield ours, theirs
    for end in (ours, theirs):
        os.close(end)


def test_a_person_is_asked_and_sees_how_far_it_is(
    terminal: tuple[int, int], agent: str, redis_url: str, client: Client, letters: list[DeadLetter]
) -> None:
    ours, theirs = terminal
    command = [sys.executable, "-m", "greenroom", "dead", "requeue", "--all", "--agent", agent, "--redis", redis_url]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    with Started(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=environment, text=True) as asking:
        try:
            shown = ""
            while "put back 3 dead letters? [y/N]" not in shown:
                shown += os.read(ours, 1024).decode()
            os.write(ours, b"y\n")
            while "100%" not in shown:
                shown += os.read(ours, 1024).decode()
            assert asking.stdout is not None
            assert asking.stdout.read() == "put back: 3\n"
            assert asking.wait(60) == 0
        finally:
            asking.kill()
    assert client.overview().dead == 0
