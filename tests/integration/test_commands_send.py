"""``send --file``: the messages of a file, in their order, once, and what is refused by its line."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from greenroom import Client
from greenroom.commands import bulk
from greenroom.protocol import codec
from greenroom.protocol.keys import Keys
from integration.command import Shell, all_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "messages.jsonl"


def write(file: Path, *rows: Any) -> None:
    """Each row as JSON on a line, or as it is."""
    file.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")


def queue(redis_url: str, agent: str, room: str) -> list[Any]:
    """The bodies in a room's queue."""
    with redis_py.Redis.from_url(redis_url) as redis:
        rows: Any = redis.xrange(Keys(agent).messages(room))
        return [codec.decode(entry[b"body"]) for _, entry in rows]


def test_each_line_is_a_message_and_those_of_a_room_keep_their_order(
    shell: Shell, file: Path, redis_url: str, agent: str
) -> None:
    write(file, *({"room": str(number % 3), "body": {"n": number}} for number in range(300)))
    assert shell("send", "--file", str(file))[0] == "sent: 300, refused: 0\n"
    for room in range(3):
        assert queue(redis_url, agent, str(room)) == [{"n": number} for number in range(room, 300, 3)]


def test_what_has_keys_can_be_sent_again_and_arrives_once(shell: Shell, file: Path, redis_url: str, agent: str) -> None:
    write(file, {"room": "42", "body": "own", "key": "k"}, {"room": "42", "body": "given"}, {"room": "42", "body": "more"})
    first = shell.json("send", "--file", str(file), "--key", "import-7")
    assert shell.json("send", "--file", str(file), "--key", "import-7") == first
    assert [row["line"] for row in first] == [1, 2, 3]
    assert queue(redis_url, agent, "42") == ["own", "given", "more"]
    shell("send", "--file", str(file))
    assert queue(redis_url, agent, "42") == ["own", "given", "more", "given", "more"], "without a key there is none"


REFUSED = [
    ("nonsense", "no JSON"),
    ('["room", "body"]', 'want {"room"'),
    ('{"room": "42"}', 'want {"room"'),
    ('{"room": "42", "body": 1, "more": 1}', 'want {"room"'),
    ('{"room": 42, "body": 1}', "want a string, got int"),
    ('{"room": "no room", "body": 1}', "white space"),
    ('{"room": "42", "body": 1, "key": ""}', "1 to 256 bytes"),
    ('{"room": "43", "body": 1, "key": "taken"}', "was used for a message of room 42"),
    ('{"room": "42", "body": ' + "9" * 30 + "}", "cannot be stored"),
    ("[" * 100_000, "no JSON"),
]


def test_what_is_refused_is_told_by_its_line_and_does_not_stop_the_rest(
    shell: Shell, file: Path, client: Client, redis_url: str, agent: str
) -> None:
    client.send("42", "first", key="taken")
    rows: list[Any] = ["", *(line for line, _ in REFUSED), {"room": "42", "body": "last"}]
    write(file, *rows)
    out, err = shell("send", "--file", str(file), code=1)
    assert out == f"sent: 1, refused: {len(REFUSED)}\n"
    told = err.splitlines()
    assert len(told) == len(REFUSED)
    for number, (line, (_, words)) in enumerate(zip(told, REFUSED, strict=True), 2):
        assert line.startswith(f"greenroom: line {number}: ")
        assert words in line
    assert queue(redis_url, agent, "42") == ["first", "last"]
    errors = [row["line"] for row in _json(shell("send", "--file", str(file), "--json", code=1)[0]) if "error" in row]
    assert errors == list(range(2, 2 + len(REFUSED)))


def _json(out: str) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


def test_strict_sends_nothing_after_a_line_that_is_refused(shell: Shell, file: Path, redis_url: str, agent: str) -> None:
    write(file, {"room": "42", "body": 1}, {"room": "42", "body": 2}, "nonsense", {"room": "42", "body": 4})
    out, err = shell("send", "--file", str(file), "--strict", code=1)
    assert out == "sent: 2, refused: 1\n"
    assert err.startswith("greenroom: line 3: no JSON")
    assert queue(redis_url, agent, "42") == [1, 2]


def test_a_full_queue_is_told_by_line_too(
    shell: Shell, file: Path, redis_url: str, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(agent, redis=redis_url, queue_limit=2) as narrow:
        monkeypatch.setattr("greenroom.commands.clients.Client", lambda *args, **options: narrow)
        write(file, *({"room": room, "body": 1} for room in ("42", "42", "42", "43")))
        out, err = shell("send", "--file", str(file), code=1)
    assert out == "sent: 3, refused: 1\n"
    assert err.startswith("greenroom: line 3: room 42 has 2 messages waiting")


def test_stdin_is_a_file_too(shell: Shell, redis_url: str, agent: str, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    write(file, {"room": "42", "body": "é"})
    with file.open(encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream.buffer))
        assert shell("send", "--file", "-")[0] == "sent: 1, refused: 0\n"
    assert queue(redis_url, agent, "42") == ["é"]


def test_a_line_that_is_too_long_is_one_line_and_nothing_of_it_is_sent(
    shell: Shell, file: Path, redis_url: str, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MAX_LINE_BYTES", 50)
    hidden = '{"room": "42", "body": "hidden"}'
    write(file, " " * 50 + hidden, " " * 100 + hidden, " " * 75 + hidden, " " * 17 + hidden, " " * 16 + hidden)
    assert len(" " * 17 + hidden + "\n") == 50
    out, err = shell("send", "--file", str(file), "--json", "--key", "k", code=1)
    assert [row["line"] for row in _json(out)] == [1, 2, 3, 4, 5]
    assert len(err.splitlines()) == 4
    assert all("50 bytes or more" in line for line in err.splitlines())
    assert queue(redis_url, agent, "42") == ["hidden"]


def test_a_file_that_cannot_be_read_to_its_end_is_told(
    shell: Shell, redis_url: str, agent: str, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    class Torn(io.BytesIO):
        def fileno(self) -> int:
            return stream.fileno()

        def readline(self, size: int | None = -1, /) -> bytes:
            line = super().readline(-1 if size is None else size)
            if not line:
                raise OSError(5, "Input/output error")
            return line

    write(file, {"room": "42", "body": "first"})
    with file.open("rb") as stream:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Torn(file.read_bytes())))
        assert "Input/output error" in shell.refused("send", "--file", "-", code=2)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_works_whose_standard_streams_are_closed(closed: str, redis_url: str, agent: str) -> None:
    command = [sys.executable, "-m", "greenroom", "send", "42", "hello", "--agent", agent, "--redis", redis_url]
    subprocess.run(["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *command], timeout=60, check=True, capture_output=True)
    assert queue(redis_url, agent, "42") == ["hello"]
    empty = [*command[:4], "--file", "-", *command[6:]]
    subprocess.run(["/bin/sh", "-c", f'exec "$@" <&- {closed}', "sh", *empty], timeout=60, check=True, capture_output=True)
    assert queue(redis_url, agent, "42") == ["hello"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--file", "missing.jsonl"], "missing.jsonl: No such file"),
        (["--file", "."], "Is a directory"),
        (["42", "--file", "x"], "name neither"),
        (["--data", "1", "--file", "x"], "name neither"),
        (["42", "hi", "--strict"], "--strict is for --file"),
    ],
)
def test_a_file_that_cannot_be_read_or_something_beside_it_is_wrong_usage(
    arguments: list[str], words: str, shell: Shell
) -> None:
    assert words in shell.refused("send", *arguments, code=2)


def test_without_redis_it_says_how_far_it_went(shell: Shell, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("greenroom.commands.clients.PATIENCE_S", 0.2)
    write(file, *[{"room": "42", "body": 1}] * 100)
    out, err = shell("send", "--file", str(file), "--redis", "redis://127.0.0.1:1", code=3)
    assert out == ""
    told, note = err.splitlines()
    assert "cannot be reached" in told
    assert note.startswith("at line 1: 0 before it were sent")


def test_a_person_sees_how_far_it_is(file: Path, agent: str, redis_url: str) -> None:
    write(file, *[{"room": "42", "body": number} for number in range(200)])
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "greenroom", "send", "--file", str(file), "--agent", agent, "--redis", redis_url]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=theirs, env=environment, text=True, timeout=60, check=False
        )
    finally:
        os.close(theirs)
    shown = all_of(ours).decode()
    os.close(ours)
    assert (done.returncode, done.stdout) == (0, "sent: 200, refused: 0\n")
    assert "messages.jsonl" in shown
    assert "100%" in shown
