"""Agents that a test steers, gates in front of their store, and waits for what Redis says.

A ``Director`` makes agent classes whose handlers do what the test tells them, one order after the other::

    system = running(director.agent(max_attempts=1))
    client.send("42", "wait")            # a body that begins with "wait" makes the handler wait for orders
    run = director.run("42")             # waits until that handler has begun
    run.send("a chunk")                  # in the handler; returns when Redis has it, raises what it raised there
    run.do(lambda cycle: cycle.state.update(n=1))
    run.finish("the reply")              # or run.fail(ValueError("no")); run.wait_cancelled(); run.wait_ended()

Other bodies are answered at once: "fail…" raises RuntimeError, anything else is its own reply. Every wait has a limit that only
a hang reaches, and fails by saying what it waited for. All of it may be called from any thread, but not from the handler's own;
in a coroutine use ``await director.arun("42")`` and ``await asyncio.to_thread(run.send, …)``.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import redis as redis_py

from greenroom import Agent, AsyncClient, Backoff, Client, Cycle, Kind, Message, Output, ThreadCycle
from greenroom.actors.loop import LoopThread
from greenroom.protocol.keys import Keys
from greenroom.supervisors.system import ActorSystem
from greenroom.testing.system import AT_ONCE as AT_ONCE
from greenroom.testing.system import abandon as abandon

from helpers import unique

WAIT_S = 30.0
LONG = timedelta(seconds=WAIT_S)  # a time limit that only a hang reaches
LOOK_S = 0.01

Action = Callable[[Any], Any]


def wait_for(event: threading.Event, what: str) -> None:
    """Wait until the event is set, or fail with ``what`` did not happen."""
    assert event.wait(WAIT_S), f"not within {WAIT_S} s: {what}"


class _Order:
    def __init__(self, action: Action, *, last: bool) -> None:
        self.action = action
        self.last = last
        self.answer: Future[Any] = Future()


class Run:
    """One run of a handler, as the test sees it."""

    def __init__(self, message: Message, cycle: Cycle | ThreadCycle) -> None:
        self.message = message
        self.cycle = cycle
        self.room = message.room
        self.ticket = cycle.ticket
        self.attempt = message.attempt
        self.cancelled = threading.Event()
        self.ended = threading.Event()
        self._give: Callable[[_Order], object] = lambda order: order.answer.cancel()

    def __repr__(self) -> str:
        return f"<Run of {self.message.body!r} in room {self.room}, ticket {self.ticket}, attempt {self.attempt}>"

    def _order(self, action: Action, *, last: bool = False) -> Future[Any]:
        order = _Order(action, last=last)
        self._give(order)
        return order.answer

    def begin(self, action: Action) -> Future[Any]:
        """Have ``action(cycle)`` called in the handler, awaited if it is a coroutine; do not wait for it."""
        return self._order(action)

    def do(self, action: Action) -> Any:
        """As ``begin``, and answer its result or raise what it raised. The handler then waits for the next order."""
        return self._order(action).result(WAIT_S)

    def send(self, body: Any) -> None:
        """Send a chunk."""
        self.do(lambda cycle: cycle.send(body))

    def finish(self, reply: Any = None) -> None:
        """Let the handler return; does not wait for the commit."""
        self._order(lambda cycle: reply, last=True)

    def fail(self, error: BaseException | None = None) -> None:
        """Let the handler raise; does not wait for the settlement."""

        def raise_it(_: object) -> None:
            raise error or RuntimeError("told to fail")

        self._order(raise_it, last=True)

    def wait_cancelled(self) -> None:
        """Wait until the handler has been told to end."""
        wait_for(self.cancelled, f"{self} is cancelled")

    def wait_ended(self) -> None:
        """Wait until the handler's code has ended, however."""
        wait_for(self.ended, f"{self} ends")


class Director:
    """Steers the handlers of one test. ``runs`` is every run so far, in the order of their beginning."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._fresh: list[Run] = []
        self._changed = threading.Condition()

    def agent(self, *, threaded: bool = False, **attributes: Any) -> type[Agent]:
        """An agent class: a coroutine, or (``threaded``) a plain function. ``attributes`` are the class's options; by default a
        failed message is tried again at once, and an aborted handler has 1 s to end.
        """
        base = _Threaded if threaded else _OnLoop
        options = {"retry": AT_ONCE, "abort_timeout": Backoff().first, **attributes}
        return type("Steered", (base,), {"director": self, **options})

    def run(self, room: str | None = None) -> Run:
        """Wait for the next steered run (of that room) that no call has answered yet."""
        wanted = f"a run of {'any room' if room is None else 'room ' + room} begins"

        def found() -> Run | None:
            return next((run for run in self._fresh if room is None or run.room == room), None)

        with self._changed:
            assert self._changed.wait_for(lambda: found() is not None, WAIT_S), f"not within {WAIT_S} s: {wanted}"
            run = found()
            assert run is not None
            self._fresh.remove(run)
            return run

    async def arun(self, room: str | None = None) -> Run:
        """As ``run``, for coroutines."""
        return await asyncio.to_thread(self.run, room)

    def bodies(self, room: str) -> list[Any]:
        """The bodies of the room's runs so far, in order; a replay counts again."""
        with self._changed:
            return [run.message.body for run in self.runs if run.room == room]

    def count(self, room: str) -> int:
        """How many runs the room has had."""
        return len(self.bodies(room))

    def _begun(self, run: Run, *, steered: bool) -> None:
        with self._changed:
            self.runs.append(run)
            if steered:
                self._fresh.append(run)
            self._changed.notify_all()


def _is_steered(body: Any) -> bool:
    return isinstance(body, str) and body.startswith("wait")


def _answer(body: Any) -> Any:
    if isinstance(body, str) and body.startswith("fail"):
        raise RuntimeError(body)
    return body


class _OnLoop(Agent):
    director: Director

    async def respond(self, message: Message, cycle: Cycle) -> Any:
        run = Run(message, cycle)
        orders: asyncio.Queue[_Order] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        run._give = lambda order: loop.call_soon_threadsafe(orders.put_nowait, order)
        try:
            self.director._begun(run, steered=_is_steered(message.body))
            return await self._obey(orders, cycle) if _is_steered(message.body) else _answer(message.body)
        except asyncio.CancelledError:
            run.cancelled.set()
            raise
        finally:
            run.ended.set()

    async def _obey(self, orders: asyncio.Queue[_Order], cycle: Cycle) -> Any:
        while True:
            order = await orders.get()
            try:
                result = order.action(cycle)
                if inspect.isawaitable(result):
                    result = await result
            except BaseException as error:
                order.answer.set_exception(error)
                if order.last or isinstance(error, asyncio.CancelledError):
                    raise
                continue
            order.answer.set_result(result)
            if order.last:
                return result


class _Threaded(Agent):
    director: Director

    def respond(self, message: Message, cycle: ThreadCycle) -> Any:
        run = Run(message, cycle)
        orders: queue.Queue[_Order] = queue.Queue()
        run._give = orders.put
        try:
            self.director._begun(run, steered=_is_steered(message.body))
            return self._obey(orders, run) if _is_steered(message.body) else _answer(message.body)
        finally:
            run.ended.set()

    def _obey(self, orders: queue.Queue[_Order], run: Run) -> Any:
        while True:
            try:
                order = orders.get(timeout=LOOK_S)
            except queue.Empty:
                if run.cycle.cancelled:
                    run.cancelled.set()
                    return None
                continue
            try:
                result = order.action(run.cycle)
            except BaseException as error:
                order.answer.set_exception(error)
                if order.last:
                    raise
                continue
            order.answer.set_result(result)
            if order.last:
                return result


# Gates: hold back what goes between a worker and Redis. ------------------------------------------------


class StoreHold:
    """One call of the store that is held back. ``reached`` is set when it is; ``call`` says with which arguments."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.reached = threading.Event()
        self.call: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._again = False

    def wait(self) -> None:
        """Wait until the call is held here."""
        wait_for(self.reached, f"the worker's {self.what}")

    def release(self, error: BaseException | None = None, *, again: bool = False) -> None:
        """Let the call go on; or have it fail: the request, or (held ``after``) its answer, was lost; or (held ``after``) ask
        Redis ``again``, as is done when the connection is lost, and go on with what it answers then.
        """
        assert self._loop is not None, f"no {self.what} is held"
        assert self._open is not None
        self._error, self._again = error, again
        self._loop.call_soon_threadsafe(self._open.set)

    async def _pass(self) -> None:
        self._loop, self._open = asyncio.get_running_loop(), asyncio.Event()
        self.reached.set()
        await self._open.wait()
        if self._error is not None:
            raise self._error


class StoreGate:
    """Stands in front of a system's store; put it there with ``StoreGate.of(system)``.

    ``gate.before("claim")`` holds the next claim back before Redis gets it, ``gate.after("claim")`` its answer, when Redis has
    decided already. Both answer a ``StoreHold``. Any method of the store may be named; calls that nobody asked for pass.
    ``calls`` are those so far, in order, with their arguments.
    """

    def __init__(self, store: Any) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self._store = store
        self._holds: dict[str, list[tuple[StoreHold, bool]]] = {}

    @classmethod
    def of(cls, system: ActorSystem) -> StoreGate:
        """Put a gate in front of the store of a started system's rooms."""
        context = system._worker.context
        gate = cls(context.store)
        context.store = gate  # type: ignore[assignment]  # it has all that a store has
        return gate

    def before(self, method: str) -> StoreHold:
        return self._hold(method, early=True)

    def after(self, method: str) -> StoreHold:
        return self._hold(method, early=False)

    def _hold(self, method: str, *, early: bool) -> StoreHold:
        hold = StoreHold(f"{method} is {'asked' if early else 'answered'}")
        self._holds.setdefault(method, []).append((hold, early))
        return hold

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return partial(self._call, name, method) if callable(method) else method

    def _call(self, name: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.calls.append((name, args))
        waiting = self._holds.get(name)
        return self._held(method, *waiting.pop(0), *args, **options) if waiting else method(*args, **options)

    @staticmethod
    def _held(method: Callable[..., Any], hold: StoreHold, early: bool, *args: Any, **options: Any) -> asyncio.Task[Any]:
        async def call() -> Any:
            hold.call = (args, options)
            if early:
                await hold._pass()
                return await method(*args, **options)
            answer = await method(*args, **options)
            await hold._pass()
            return await method(*args, **options) if hold._again else answer

        return asyncio.get_running_loop().create_task(call())


# What Redis says. ----------------------------------------------------------------------------------------


def wait_event(redis: redis_py.Redis, agent: str, kind: str, *, count: int = 1, **values: str) -> dict[str, str]:
    """Wait until the agent's events have ``count`` entries of that kind with those fields; answer the last of these.

    ``redis`` decodes responses. Example: ``wait_event(redis, agent, "cycle.stopped", room="42")``.
    """
    key, after, found = Keys(agent).events, "0-0", 0
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        reply: Any = redis.xread({key: after}, block=1000, count=500)
        for entry, row in reply[0][1] if reply else []:
            after = entry
            if row["event"] == kind and values.items() <= row.items():
                found += 1
                if found == count:
                    return dict(row)
    raise AssertionError(f"not within {WAIT_S} s: {count} events {kind} {values}, but {found}")


def events(redis: redis_py.Redis, agent: str, kind: str, **values: str) -> list[dict[str, str]]:
    """The agent's events so far of that kind with those fields."""
    rows: Any = redis.xrange(Keys(agent).events)
    return [dict(row) for _, row in rows if row["event"] == kind and values.items() <= row.items()]


def wait_logged(caplog: pytest.LogCaptureFixture, event: str, count: int = 1) -> list[str]:
    """Wait until that many lines of that event are logged, and answer them: a worker logs after Redis has what it says."""

    def lines() -> list[str]:
        messages = [record.getMessage() for record in list(caplog.records)]
        return [line for line in messages if f"event={event}" in line.split()]

    eventually(lambda: len(lines()) >= count, f"{count} lines of {event} are logged")
    return lines()


def contents(raw: redis_py.Redis, names: Iterable[bytes]) -> dict[bytes, Any]:
    """What those keys hold, to compare: but for those that go by themselves within a minute, and for when the readers of a
    stream last looked. ``raw`` decodes nothing.
    """
    found: dict[bytes, Any] = {}
    for name in names:
        ttl_s: Any = raw.ttl(name)
        if ttl_s == -1 or ttl_s > 60:
            found[name] = raw.xrange(name) if raw.type(name) == b"stream" else raw.dump(name)
    return found


def wait_output(client: Client, room: str, condition: Callable[[Output], bool]) -> Output:
    """Wait for the first output of the room that fits."""

    async def follow() -> Output:
        async with asyncio.timeout(WAIT_S):
            async for output in client._client.outputs(room, follow=True):
                if condition(output):
                    return output
        raise AssertionError("following never ends")

    return client._run(follow)


def settled(client: Client, room: str, ticket: int) -> Output:
    """Wait for the output that ends a cycle's stream."""
    return wait_output(client, room, lambda output: output.ticket == ticket and output.kind is not Kind.CHUNK)


def ready_of(client: Client, room: str) -> str | None:
    """The room's entry in the ready stream, or None."""

    async def ready() -> str | None:
        store = client._client._store
        found = await store.pipeline.command("HGET", store.keys.room(room), "ready")
        return None if found is None else str(found.decode())

    return client._run(ready)


def live_run(director: Director, client: Client, room: str) -> Run:
    """Wait for the run of the room's live cycle: earlier ones, begun between signals in quick succession, are passed over, also
    one that is aborted and whose worker has not said yet that it is over.
    """
    while True:
        run, status = director.run(room), client.status(room)
        if status.ticket == run.ticket and status.abort is None:
            return run


def eventually(check: Callable[[], Any], what: str) -> Any:
    """For what neither an event nor an output tells: look until ``check`` is true, and answer what it answered."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if found := check():
            return found
        threading.Event().wait(LOOK_S)
    raise AssertionError(f"not within {WAIT_S} s: {what}")


def wait_heard(system: ActorSystem) -> None:
    """Wait until the system has read all of its agent's control stream so far."""
    with redis_py.Redis.from_url(system._url) as redis:
        last: Any = redis.xrevrange(system._worker.context.store.keys.control, count=1)
    wanted = last[0][0].decode() if last else "0-0"

    def place(entry: str | None) -> tuple[int, ...]:
        return tuple(int(part) for part in (entry or "0-0").split("-"))

    eventually(lambda: place(system._worker.control_seen) >= place(wanted), "the worker has heard the last signal")


def cut_off(system: ActorSystem) -> None:
    """End a system's control listener: from here on it learns of signals by what Redis refuses only."""

    async def stop() -> None:
        root = system._root._actor_weakref()
        assert root is not None
        await root.stop_child("control")

    system._control.run(stop).result(WAIT_S)


@contextmanager
def blocked(loop: LoopThread) -> Iterator[None]:
    """Block one of a system's loops: ``system._user``, as a handler that never awaits would, or ``system._control``."""
    go, reached = threading.Event(), threading.Event()

    def block() -> None:
        reached.set()
        go.wait(WAIT_S)

    loop.post(block)
    wait_for(reached, f"{loop.name} is blocked")
    try:
        yield
    finally:
        go.set()


# Tests that are coroutines. ------------------------------------------------------------------------------


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine on an event loop of its own, with a limit that only a hang reaches."""

    async def main() -> None:
        async with asyncio.timeout(2 * WAIT_S):
            await test()

    asyncio.run(main())


async def asked(client: AsyncClient, room: str, body: Any, **options: Any) -> asyncio.Task[Any]:
    """An ask under way: its message is in the queue, and it has looked for outputs once."""
    key = unique("key")
    await client.send(room, body, key=key)
    task: asyncio.Task[Any] = asyncio.create_task(client.ask(room, body, key=key, **options))
    for _ in range(5):  # each answer is behind those that the ask waits for
        await client.status(room)
    return task
