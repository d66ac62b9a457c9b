"""Whatever a handler raises is a failed attempt of its message, and its room goes on: nothing waits for what never comes."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from greenroom import Agent, Client, Cycle, Kind, Message, ThreadCycle
from integration.agents import AT_ONCE, WAIT_S, wait_output
from integration.conftest import Running

from helpers import Mute


def says_nothing() -> BaseException:
    return Mute()


class Fickle(Exception):
    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


def came_of_what_is_not_even_true() -> BaseException:
    error = ValueError("in vain")
    error.__cause__ = Fickle()
    return error


def is_no_text() -> BaseException:
    return FileNotFoundError(2, "No such file", os.fsdecode(b"caf\xe9"))


def leaves() -> BaseException:
    return GeneratorExit()


ERRORS = {
    says_nothing: "Mute: (says nothing: RuntimeError)",
    came_of_what_is_not_even_true: "ValueError: in vain",
    is_no_text: r"FileNotFoundError: [Errno 2] No such file: 'caf\udce9'",
    leaves: "GeneratorExit",
}
_NAMES = {make.__name__: make for make in ERRORS}


def raise_what(body: Any) -> None:
    if body in _NAMES:
        raise _NAMES[body]()


class Strange(Agent):
    max_attempts = 2
    retry = AT_ONCE


class Coroutine(Strange):
    async def respond(self, message: Message, cycle: Cycle) -> Any:
        raise_what(message.body)
        return message.body


class AsyncGenerator(Strange):
    async def respond(self, message: Message, cycle: Cycle) -> AsyncIterator[Any]:
        raise_what(message.body)
        yield message.body


class Function(Strange):
    def respond(self, message: Message, cycle: ThreadCycle) -> Any:
        raise_what(message.body)
        return message.body


class Generator(Strange):
    def respond(self, message: Message, cycle: ThreadCycle) -> Iterator[Any]:
        raise_what(message.body)
        yield message.body


KINDS = pytest.mark.parametrize("kind", [Coroutine, AsyncGenerator, Function, Generator], ids=lambda kind: kind.__name__)


@KINDS
@pytest.mark.parametrize("make", ERRORS, ids=lambda make: make.__name__)
def test_an_error_of_any_kind_is_a_failed_attempt(make: Any, kind: type[Agent], running: Running, client: Client) -> None:
    system = running(kind)
    client.send("42", make.__name__)
    wait_output(client, "42", lambda output: output.kind is Kind.DEAD)
    assert [letter.error for letter in client.dead_letters()] == [ERRORS[make]]
    assert system.measures().counts.restarts["crashed"] == 0
    client.send("42", "on we go")
    wait_output(client, "42", lambda output: output.body == "on we go")


def test_a_cycle_for_which_no_thread_can_be_started_is_a_failed_attempt(
    running: Running, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, threading.Event()

    def refuse_once(thread: threading.Thread) -> None:
        if thread.name.startswith("greenroom-cycle-") and not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    running(Function)
    assert client.ask("42", "hello", timeout=WAIT_S) == "hello"
    assert refused.is_set()
    assert [output.kind for output in client.outputs("42")] == [Kind.FAILED, Kind.REPLY]
