"""Actors to be supervised, of both kinds, that keep a journal and end in every way there is."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pykka

from greenroom.actors.loop_actor import LoopActor

LIMIT_S = 20.0

Plans = dict[str, dict[str, BaseException]]


class Journal:
    """What actors did, in order: ``+name`` started, ``-name`` stopped, ``!name`` failed."""

    def __init__(self) -> None:
        self._entries: list[str] = []
        self._changed = threading.Condition()

    def note(self, entry: str) -> None:
        with self._changed:
            self._entries.append(entry)
            self._changed.notify_all()

    @property
    def entries(self) -> list[str]:
        with self._changed:
            return list(self._entries)

    def starts(self, names: str = "abc") -> str:
        """How often each was started, as digits."""
        entries = self.entries
        return "".join(str(entries.count(f"+{name}")) for name in names)

    def wait_starts(self, expected: str, names: str = "abc") -> None:
        with self._changed:
            met = self._changed.wait_for(lambda: self.starts(names) >= expected and self.starts(names) == expected, LIMIT_S)
            assert met, f"not {expected}: {self._entries}"

    def wait_length(self, length: int) -> None:
        with self._changed:
            met = self._changed.wait_for(lambda: len(self._entries) >= length, LIMIT_S)
            assert met, f"not {length} entries: {self._entries}"


class Ending:
    """A callback for ``watch`` that keeps what it was told."""

    def __init__(self) -> None:
        self._failures: list[BaseException | None] = []
        self._told = threading.Event()

    def __call__(self, failure: BaseException | None) -> None:
        self._failures.append(failure)
        self._told.set()

    def wait(self) -> BaseException | None:
        assert self._told.wait(LIMIT_S)
        assert len(self._failures) == 1
        return self._failures[0]


class KilledError(BaseException):
    """What the tests raise into threads."""


class Behaviour:
    """What both kinds of actors do. ``plans`` says, by name, what the next actor of that name raises, and where."""

    def __init__(
        self, *args: Any, name: str, journal: Journal, plans: dict[str, dict[str, BaseException]] | None = None
    ) -> None:
        super().__init__(*args)
        self.name = name
        self.journal = journal
        self.plan = (plans or {}).pop(name, {})
        self.busy = threading.Event()

    def on_start(self) -> None:
        self.thread_id = threading.get_ident()
        self.journal.note(f"+{self.name}")
        self._follow("on_start")

    def on_stop(self) -> None:
        self.journal.note(f"-{self.name}")
        self._follow("on_stop")

    def on_failure(self, *_: object) -> None:
        self.journal.note(f"!{self.name}")

    def _follow(self, place: str) -> None:
        if place in self.plan:
            raise self.plan[place]

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, BaseException):
            raise message
        if message == "busy":
            self.busy.set()
            while True:
                self.busy.is_set()
        return message


class ThreadChild(Behaviour, pykka.ThreadingActor):
    """A plain Pykka actor, on a thread of its own."""


class LoopChild(Behaviour, LoopActor):
    """An actor on a loop."""


def kill(thread_id: int) -> None:
    """Raise KilledError in a thread, wherever it is."""
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(KilledError)) == 1
