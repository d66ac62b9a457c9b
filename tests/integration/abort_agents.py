"""A representative agent for each runner, which an abort can meet at every point of its cycle.

It takes steps (of each policy, one after the other and several at a time), sends chunks, is shielded for a while, and changes
its state. Everything that happens to it is written into its room's journal, a file that may be written to from any thread and
process. A message's body says which point of its first cycle is to be met by which signal::

    {"at": 7, "kind": "await", "mode": "stop", "agent": …, "redis": …, "journal": a folder}

Points are counted from 1. At a point the code that got there sends the signal and waits for its receipt, before it goes on:

- ``await``: each time that a task of the cycle is suspended, and each time that it is resumed, before it is;
- ``call``: before and after each call of what a ``ThreadCycle`` offers, and each ``yield``;
- ``command``: before each script of the room leaves for Redis, and when it has been answered, before the worker sees that.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any

from greenroom import Agent, Client, Cycle, Interruption, Message, OutcomeUnknown, ThreadCycle, idempotent
from greenroom.protocol.records import text

CHUNKS = ("one", "left", "right", "paid", "two", "three")  # left and right in any order
STEPS = {"look": "again", "left": "again", "right": "raise", "pay": "raise", "file": "raise"}  # if their outcome is unknown
SORRY = "sorry"

# The journal. --------------------------------------------------------------------------------------------------------------


def note(body: dict[str, Any], room: str, what: str, **facts: Any) -> None:
    """Write one line, whole, with the time in ns of the clock that all processes of this machine share."""
    line = json.dumps({"what": what, "ns": time.monotonic_ns(), **facts}) + "\n"
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
    """Send a signal, once however often this is called, and write down its receipt, what of the room's outbox and steps was
    there at that very instant (all is asked for in one write), and when it was sent. The line's own time is that of the receipt.
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
    receipt, last, steps = _client(body)._run(send())
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

_points: ContextVar[Points | None] = ContextVar("points", default=None)


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
        if points := _points.get():
            points.reach("resumed")
        awaited = go_on(*args)
        if points := _points.get():
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


# The agent. ----------------------------------------------------------------------------------------------------------------


class Representative(Agent):
    """What its four kinds have in common. A message with ``"kind": "echo"`` is answered with little ado."""

    max_attempts = 2
    abort_timeout = timedelta(seconds=20)
    hook_timeout = timedelta(seconds=20)

    @contextmanager
    def run(self, message: Message, cycle: Any) -> Iterator[None]:
        """Around a cycle's code: what it finds, and what it ends with."""
        note(message.body, message.room, "run", **_about(cycle), attempt=message.attempt, state=dict(cycle.state))
        cycle.state["answered"] = [*cycle.state.get("answered", []), message.id]  # of no effect unless the cycle commits
        try:
            yield
        except BaseException as error:
            note(message.body, message.room, "raised", **_about(cycle), errors=sorted(_names(error)))
            raise

    def on_interrupt(self, interruption: Interruption, state: Any) -> Any:
        self.on_stop(interruption, state)
        state["interrupted"] = [*state.get("interrupted", []), interruption.message.id]
        return SORRY

    def on_stop(self, interruption: Interruption, state: Any) -> None:
        told = interruption.model_dump(mode="json", include={"mode", "done", "begun", "unknown", "sent", "code"})
        note(interruption.message.body, interruption.message.room, "hook", message=interruption.message.id, **told)


def _about(cycle: Any) -> dict[str, Any]:
    return {"message": cycle.message.id, "ticket": cycle.ticket}


def _names(error: BaseException) -> set[str]:
    if isinstance(error, BaseExceptionGroup):
        return {name for part in error.exceptions for name in _names(part)}
    return {type(error).__name__}


def _happened(message: Message, key: str) -> bool:
    return any(line.get("key") == key and line["what"] == "effect" for line in read_journal(message.body["journal"], message.room))


def do(cycle: Any, step: str, idempotency_key: str) -> str:
    """A plain function with an effect."""
    message = cycle.message
    note(message.body, message.room, "call", step=step, **_about(cycle))
    note(message.body, message.room, "effect", step=step, key=idempotency_key, **_about(cycle))
    return step


async def ado(cycle: Any, step: str, idempotency_key: str) -> str:
    """A coroutine function that may be cancelled before its effect."""
    message = cycle.message
    note(message.body, message.room, "call", step=step, **_about(cycle))
    await asyncio.sleep(0)
    note(message.body, message.room, "effect", step=step, key=idempotency_key, **_about(cycle))
    return step


@idempotent
async def look(cycle: Any, step: str, idempotency_key: str) -> str:
    return await ado(cycle, step, idempotency_key)


@idempotent
def look_in_thread(cycle: Any, step: str, idempotency_key: str) -> str:
    return do(cycle, step, idempotency_key)


class OnLoop(Representative):
    """The work of the agents that run on the loop; what it yields is to be sent."""

    async def on_interrupt(self, interruption: Interruption, state: Any) -> Any:
        return super().on_interrupt(interruption, state)

    async def work(self, message: Message, cycle: Cycle) -> AsyncGenerator[str]:
        await self._take(cycle, "look", look)
        yield "one"
        async with asyncio.TaskGroup() as group:
            group.create_task(self._side(cycle, "left", look_in_thread))
            group.create_task(self._side(cycle, "right", ado))
        async with cycle.shield():
            await self._take(cycle, "pay", do)
            await cycle.send("paid")
            async with cycle.shield():
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        await self._take(cycle, "file", ado)
        yield "two"
        yield "three"

    async def _side(self, cycle: Cycle, name: str, function: Callable[..., Any]) -> None:
        await self._take(cycle, name, function)
        await cycle.send(name)

    async def _take(self, cycle: Cycle, name: str, function: Callable[..., Any]) -> None:
        try:
            await cycle.step(name, function, cycle, name)
        except OutcomeUnknown as unknown:
            note(cycle.message.body, cycle.room, "unknown", step=name, **_about(cycle))
            if not _happened(cycle.message, unknown.idempotency_key):
                await cycle.step(name, function, cycle, name, if_unknown="again")


class CoroutineAgent(OnLoop):
    chunk_interval = timedelta(0)

    async def respond(self, message: Message, cycle: Cycle) -> Any:
        with self.run(message, cycle):
            if message.body["kind"] == "echo":
                return "echo"
            _points.set(Points(message.body, message.room, "await"))
            async with aclosing(self.work(message, cycle)) as chunks:
                async for chunk in chunks:
                    await cycle.send(chunk)
            return "done"


class AsyncGeneratorAgent(OnLoop):
    async def respond(self, message: Message, cycle: Cycle) -> AsyncIterator[str]:
        with self.run(message, cycle):
            if message.body["kind"] == "echo":
                yield "echo"
                return
            _points.set(Points(message.body, message.room, "await"))
            async with aclosing(self.work(message, cycle)) as chunks:
                async for chunk in chunks:
                    yield chunk


class InThread(Representative):
    """The same for those that run in threads."""

    def work(self, message: Message, cycle: Calls) -> Iterator[str]:
        self._take(cycle, "look", look_in_thread)
        yield "one"
        self._aside(cycle, {"left": look_in_thread, "right": do})
        with cycle.shield():
            self._take(cycle, "pay", do)
            cycle.send("paid")
            with cycle.shield():
                cycle.checkpoint()
        cycle.checkpoint()
        self._take(cycle, "file", do)
        yield "two"
        yield "three"

    def _aside(self, cycle: Calls, parts: dict[str, Callable[..., Any]]) -> None:
        errors: list[BaseException] = []

        def side(name: str, function: Callable[..., Any]) -> None:
            try:
                self._take(cycle, name, function)
                cycle.send(name)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=side, args=part, daemon=True) for part in parts.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def _take(self, cycle: Calls, name: str, function: Callable[..., Any]) -> None:
        try:
            cycle.step(name, function, cycle, name)
        except OutcomeUnknown as unknown:
            note(cycle.message.body, cycle.message.room, "unknown", step=name, **_about(cycle))
            if not _happened(cycle.message, unknown.idempotency_key):
                cycle.step(name, function, cycle, name, if_unknown="again")


class FunctionAgent(InThread):
    chunk_interval = timedelta(0)

    def respond(self, message: Message, cycle: ThreadCycle) -> Any:
        with self.run(message, cycle):
            if message.body["kind"] == "echo":
                return "echo"
            calls = Calls(cycle, Points(message.body, message.room, "call"))
            for chunk in self.work(message, calls):
                calls.send(chunk)
            return "done"


class GeneratorAgent(InThread):
    def respond(self, message: Message, cycle: ThreadCycle) -> Iterator[str]:
        with self.run(message, cycle):
            if message.body["kind"] == "echo":
                yield "echo"
                return
            calls = Calls(cycle, Points(message.body, message.room, "call"))
            for chunk in self.work(message, calls):
                calls.points.reach("before a yield")
                yield chunk
                calls.points.reach("after a yield")


class UninterruptibleCoroutine(CoroutineAgent):
    interruptible = False


class UninterruptibleFunction(FunctionAgent):
    interruptible = False
