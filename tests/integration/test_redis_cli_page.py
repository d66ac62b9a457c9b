"""docs/redis-cli.md: each of its lines, run as printed by the real redis-cli on a terminal, answers as is printed below it."""

from __future__ import annotations

import os
import pty
import re
import shlex
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from greenroom import ActorSystem, Backoff, Client, Phase, Reject, Relay
from greenroom.protocol.server import RedisServer, find_cli
from integration.agents import WAIT_S, Director, eventually

PAGE = Path(__file__).parents[2] / "docs" / "redis-cli.md"
HOUR = timedelta(hours=1)
LOOK_S = 0.05
# What differs from one run to the next, on the page as in what was answered.
VOLATILE = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"\b\d{13}-\d+\b"), "ENTRY"),
    (re.compile(r"\b\d{16}\b"), "NUMBER"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "CID"),
    (re.compile(r"(?<=NUMBER:)\d+"), "COUNT"),
    (re.compile(rf'"(4711|{os.getpid()})"'), '"PID"'),
    (re.compile(rf'"(host-1|{re.escape(socket.gethostname())})"'), '"HOST"'),
)


@dataclass(frozen=True)
class Example:
    line: str
    answer: str


def examples() -> list[Example]:
    """The page's lines, each with the block of text that follows it."""
    blocks = re.findall(r"^```(\w+)\n(.*?)\n```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    found = []
    for (kind, line), (answer_kind, answer) in zip(blocks[::2], blocks[1::2], strict=True):
        assert (kind, answer_kind) == ("sh", "text"), f"a line without its answer: {line}"
        assert "\n" not in line
        found.append(Example(line, answer))
    return found


def steady(text: str) -> str:
    for pattern, word in VOLATILE:
        text = pattern.sub(word, text)
    return text


class Console:
    """A shell on a terminal, where plain ``redis-cli`` talks to the test's server."""

    def __init__(self, folder: Path, url: str) -> None:
        cli = find_cli()
        assert cli is not None
        wrapper = folder / "redis-cli"
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.join([str(cli), "-u", url])} "$@"\n')
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        self._environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "TERM": "dumb"}

    def __call__(self, line: str) -> str:
        """What the line shows on a terminal."""
        ours, theirs = pty.openpty()
        said: list[bytes] = []

        def read() -> None:
            try:
                while data := os.read(ours, 65536):
                    said.append(data)
            except OSError:  # the other end is closed: that was all
                pass

        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        try:
            words = ["sh", "-c", line]
            done = subprocess.run(
                words, env=self._environment, stdin=subprocess.DEVNULL, stdout=theirs, timeout=60, check=False
            )
            assert done.returncode == 0, line
        finally:
            os.close(theirs)
            reading.join(WAIT_S)
            os.close(ours)
        return b"".join(said).decode().replace("\r\n", "\n").rstrip("\n")


@dataclass(frozen=True)
class Scene:
    """The page's agent, with rooms in every phase, and a console beside it."""

    console: Console
    director: Director
    client: Client

    def before(self, line: str) -> None:
        """What happens by itself before the page's line: its reader is slower than this test."""
        if "mode pause room 42" in line:
            self.director.run("42")
        if "mode stop everywhere" in line:
            for run in self.director.runs:
                run.finish()
            eventually(lambda: self.client.overview().processing == 0, "all cycles have ended")


@pytest.fixture
def scene(tmp_path: Path, redis_dir: Path) -> Iterator[Scene]:
    director = Director()
    agent = director.agent(max_attempts=2, retry=Backoff(first=HOUR, most=HOUR))
    with (
        RedisServer(redis_dir) as server,
        ActorSystem(agent, agent="support", redis=server.url, name="web-1") as system,
        Client("support", redis=server.url, by="ann") as client,
    ):
        Relay("support", print, redis=server.url, name="chat").start().stop()
        client.send("41", "wait")
        director.run("41").finish("Your parcel has left.")
        eventually(lambda: client.status("41").waiting == 0, "it is answered")
        for room in ("42", "43"):
            client.send(room, "wait")
            director.run(room)
        client.send("42", "and my invoice")
        client.stop("44", reason="wrong answers")
        client.send("44", "hello")
        client.send("45", "wait")
        director.run("45").fail(TimeoutError("the model did not answer"))
        eventually(lambda: client.status("45").phase is Phase.BACKOFF, "it waits for its retry")
        client.send("46", "wait")
        director.run("46").fail(Reject("no such order"))
        eventually(lambda: client.overview().dead == 1, "it is dead")
        yield Scene(Console(tmp_path, server.url), director, client)
        system.stop(timedelta(0))


def test_each_line_of_the_page_answers_as_is_printed_below_it(scene: Scene) -> None:
    """Rows 19 and 44."""
    lines = examples()
    assert len(lines) > 30
    for example in lines:
        scene.before(example.line)
        wanted, answer, deadline = steady(example.answer), "", time.monotonic() + WAIT_S
        while steady(answer) != wanted:  # a signal's outcome is there a moment after the signal
            assert time.monotonic() < deadline, f"{example.line}\nanswers\n{answer}\nthe page says\n{example.answer}"
            assert "XADD" not in example.line or not answer, f"{example.line} answered {answer}"
            threading.Event().wait(LOOK_S if answer else 0)
            answer = scene.console(example.line)


def test_the_page_has_a_line_for_every_answer_and_act_that_an_operator_needs() -> None:
    lines = "\n".join(example.line for example in examples())
    keys = (
        "processing",
        "room:42",
        "workers",
        "worker:web-1",
        "ready",
        "held",
        "room:42:messages",
        "dead",
        "events",
        "control",
    )
    for key in keys:
        assert f"greenroom:{{support}}:{key}'" in lines
    for mode in ("stop", "pause", "play", "interrupt"):
        assert f"mode {mode} room" in lines
