"""``greenroom send --file``: the messages of a file, a line of JSON each."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import typer

from ..asking import progress
from ..protocol.errors import InvalidRequest, QueueFull, RedisError
from ..protocol.sync_client import Client, begin_send
from ..rendering import to_json
from ..supervisors.process import ExitCode, complain

WINDOW = 64  # lines that are under way at once; they are enqueued in their order all the same
MAX_LINE_BYTES = 16 * 1024 * 1024
_FIELDS = {"room", "body", "key"}


def send_file(client: Client, file: Path, prefix: str | None, *, strict: bool, as_json: bool) -> int:
    """Send the messages of a file, ``-`` for stdin; answer the exit code.

    A line is ``{"room": …, "body": …, "key": …}``. One without a key gets ``prefix:number``, if there is a prefix. A file whose
    lines have keys can be sent again within 24 hours: what was sent before is not sent twice. What is refused is told by its
    line; with ``strict`` nothing is sent after it.

    Raises:
        InvalidRequest: the file cannot be read.
        RedisUnavailable, RedisRefused: with a note that says how far it went.
    """
    sender = _Sender(client, prefix, 1 if strict else WINDOW, as_json)
    with _opened(file) as stream, progress(f"{file}", os.fstat(stream.fileno()).st_size or None) as advance:
        for number, (line, size) in enumerate(_lines(stream, file), 1):
            sender.send(number, line)
            advance(size)
            if strict and sender.refused:
                break
        sender.finish()
    if not as_json:
        typer.echo(f"sent: {sender.sent}, refused: {sender.refused}")
    return ExitCode.FAILED if sender.refused else ExitCode.OK


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    if str(file) == "-":
        yield sys.stdin.buffer
        return
    try:
        stream = file.open("rb")
    except OSError as error:
        raise InvalidRequest(f"--file {file}: {error.strerror}") from None
    with stream:
        yield stream


def _lines(stream: BinaryIO, file: Path) -> Iterator[tuple[bytes, int]]:
    """The lines and their sizes; of one that is too long only its beginning, the rest is passed over."""
    try:
        while line := stream.readline(MAX_LINE_BYTES):
            size, rest = len(line), line
            while len(rest) == MAX_LINE_BYTES and not rest.endswith(b"\n"):
                rest = stream.readline(MAX_LINE_BYTES)
                size += len(rest)
            yield line, size
    except OSError as error:
        raise InvalidRequest(f"--file {file}: {error.strerror}") from None


class _Sender:
    """Sends lines, some of them at once, and tells of each in their order."""

    def __init__(self, client: Client, prefix: str | None, window: int, as_json: bool) -> None:
        self._client, self._prefix, self._window, self._as_json = client, prefix, window, as_json
        self._sending: deque[tuple[int, str, Future[int]]] = deque()
        self.sent = self.refused = 0

    def send(self, number: int, line: bytes) -> None:
        if not line.strip() and len(line) < MAX_LINE_BYTES:
            return
        room, sending = "", Future[int]()
        try:
            room, body, key = read_line(line)
        except InvalidRequest as error:
            sending.set_exception(error)
        else:
            key = f"{self._prefix}:{number}" if key is None and self._prefix is not None else key
            sending = begin_send(self._client, room, body, key)
        self._sending.append((number, room, sending))
        if len(self._sending) >= self._window:
            self._settle()

    def finish(self) -> None:
        while self._sending:
            self._settle()

    def _settle(self) -> None:
        number, room, sending = self._sending.popleft()
        try:
            message = sending.result()
        except (InvalidRequest, QueueFull) as error:
            self.refused += 1
            complain(f"line {number}: {error}")
            if self._as_json:
                typer.echo(to_json({"line": number, "error": str(error)}))
        except RedisError as error:
            error.add_note(
                f"at line {number}: {self.sent} before it were sent, and some after it may be; with keys, send again"
            )
            raise
        else:
            self.sent += 1
            if self._as_json:
                typer.echo(to_json({"line": number, "room": room, "message": message}))


def read_line(line: bytes) -> tuple[str, Any, str | None]:
    """The room, body and key of a line.

    Raises:
        InvalidRequest: what is wrong with it.
    """
    if len(line) == MAX_LINE_BYTES:
        raise InvalidRequest(f"a line of {MAX_LINE_BYTES} bytes or more")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"no JSON: {error}") from None
    if not isinstance(row, dict) or not {"room", "body"} <= row.keys() <= _FIELDS:
        raise InvalidRequest('want {"room": …, "body": …}, and perhaps "key"')
    return row["room"], row["body"], row.get("key")
