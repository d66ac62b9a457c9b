"""Points at which an abort can meet a cycle, the signals that are sent there, and a journal of all that happened.

A message's body says which point of its first cycle is to be met by which signal::

    {"at": 7, "kind": "await", "mode": "stop", "agent": …, "redis": …, "journal": a folder}

Points are counted from 1. At a point the code that got there sends the signal and waits for its receipt, before it goes on:

- ``await``: each time that a task of the cycle is suspended, and each time that it is resumed, before it is;
- ``call``: before and after each call of what a ``ThreadCycle`` offers, and each ``yield``;
- ``command``: before each script of the room leaves for Redis, and when it has been answered, before the worker sees that.

With ``"at": 0`` the points are written down, and nothing is sent. A journal is a file, one a room, that may be written to from
any thread and process.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from greenroom import Client, ThreadCycle
from greenroom.protocol.records import text

# The journal. --------------------------------------------------------------------------------------------------------------


def note(body: dict[str, Any], room: str, what: str, **facts: Any) -> None:
    """Write one line, whole, with the process and the time in ns of the clock that all processes of this machine share."""
    line = json.dumps({"what": what, "ns": time.monotonic_ns(), "pid": os.getpid(), **facts}) + "\n"
    file = os.open(f"{body['journal']}/{room}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def read_journal(folder: str, room: str) -> list[dict[str, Any]]:
    path = Path(folder, room)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# Signals. ------------------------------------------------------------------------------------------------------------------

_clients: dict[str, Client] = {}
_opening = threading.Lock()


def _client(body: dict[str, Any]) -> Client:
    with _opening:
        if body["agent"] not in _clients:
            _clients[body["agent"]] = Client(body["agent"], redis=body["redis"])
        return _clients[body["agent"]]


def close_clients() -> None:
    """Close what this process has signalled with."""
    with _opening:
        for client in _clients.values():
            client.close()
        _clients.clear()


def signal(body: dict[str, Any], room: str, mode: str, name: str) -> None:
    """Send a signal, once however often this is called, and write down its receipt, and what of the room's outbox and steps was
    there at that very instant: all is asked for in one write. The line's own time is when the receipt was there.
    """
    inner = _client(body)._client

    async def send() -> tuple[Any, list[Any], list[Any]]:
        store = inner._store
        signalled = asyncio.ensure_future(getattr(inner, mode)(room, cid=f"{room}:{name}"))
        await asyncio.sleep(0)
        outbox = store.pipeline.command("XREVRANGE", store.keys.outbox(room), "+", "-", "COUNT", 1)
        steps = store.pipeline.command("HGETALL", f"{store.keys.room(room)}:steps")
        return (await signalled)[0], await outbox, await steps

    note(body, room, "sending", name=name)
    sent_ns = time.monotonic_ns()
    receipt, last, steps = _client(body)._run(send)
    known = dict(zip(map(text, steps[::2]), map(text, steps[1::2]), strict=True))
    facts = {"mode": mode, "outcome": receipt.outcome, "message": receipt.message, "sent_ns": sent_ns}
    note(body, room, "signal", name=name, last=text(last[0][0]) if last else "0-0", steps=known, **facts)


class Points:
    """The points of one cycle, from any of its threads."""

    def __init__(self, body: dict[str, Any], room: str, kind: str) -> None:
        self._body = body
        self._room = room
        self._armed = body.get("kind") == kind
        self._count = 0
        self._lock = threading.Lock()

    def reach(self, where: str) -> None:
        """This is the next point."""
        if not self._armed:
            return
        with self._lock:
            self._count += 1
            count = self._count
        if self._body["at"] == 0:
            note(self._body, self._room, "point", where=where)
        elif self._body["at"] == count:
            signal(self._body, self._room, self._body["mode"], "first")


# Awaits. -------------------------------------------------------------------------------------------------------------------

POINTS: ContextVar[Points | None] = ContextVar("points", default=None)


class Watched(Coroutine[Any, Any, Any]):
    """A coroutine whose every suspension is a point, once its context has points."""

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self._inner = inner

    def send(self, value: Any) -> Any:
        return self._go(self._inner.send, value)

    def throw(self, *error: Any) -> Any:
        return self._go(self._inner.throw, *error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()

    def _go(self, go_on: Callable[..., Any], *args: Any) -> Any:
        if points := POINTS.get():
            points.reach("resumed")
        awaited = go_on(*args)
        if points := POINTS.get():
            points.reach("suspended")
        return awaited


def watch_awaits(loop: asyncio.AbstractEventLoop) -> None:
    """Make each await of a task that begins on this loop from now on a point, where there are points."""

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(Watched(coroutine), loop=loop, **options)

    loop.set_task_factory(factory)


# Calls. --------------------------------------------------------------------------------------------------------------------


class Calls:
    """A ``ThreadCycle`` whose every call is two points."""

    def __init__(self, cycle: ThreadCycle, points: Points) -> None:
        self._cycle = cycle
        self.points = points

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._cycle, name)

        def call(*args: Any, **options: Any) -> Any:
            self.points.reach(f"before {name}")
            result = value(*args, **options)
            self.points.reach(f"after {name}")
            return result

        return call if callable(value) else value

    @contextmanager
    def shield(self) -> Iterator[None]:
        self.points.reach("before the shield")
        with self._cycle.shield():
            self.points.reach("in the shield")
            yield
            self.points.reach("at the shield's end")
        self.points.reach("after the shield")
