"""A client of the agent under test, which waits for what happens, and has its system crash and start again."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from enum import StrEnum
from typing import Any, Literal, TypeVar, overload

from redis.exceptions import RedisError

from ..protocol.client import AsyncClient
from ..protocol.connect import open_connection
from ..protocol.errors import InvalidRequest, NoReply
from ..protocol.keys import check_room
from ..protocol.reads import check_entry
from ..protocol.records import Event, EventKind, Kind, Message, Output, read_event, text
from ..protocol.sync_client import Client, share_docs
from ..supervisors.control import ask
from .rig import Rig
from .story import story

T = TypeVar("T")
K = TypeVar("K", bound=StrEnum)

BLOCK_MS = 1000
PAUSE_S = 0.05  # between two looks whether the system lives, and two tries to reach a Redis that is away
ANY: Any = object()

# Lets a room that waits for its retry begin, and answers whether it did: one whose retry is due, or under way, is left alone.
_RETRY = """
local at = redis.call('HGET', KEYS[1], 'retry_at')
if redis.call('HGET', KEYS[1], 'phase') ~= 'backoff' or not at or at <= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'retry_at', ARGV[1])
return 1
"""


class AsyncStage(AsyncClient):
    """An agent under test, on its system, and a client of it: all that an ``AsyncClient`` does, waits for what happens, and
    crashes. ``async with running(Support) as stage`` makes one.

    Each wait looks at all that has happened since the stage began, so it does not matter whether it came before or after.
    When it has not come within the stage's ``timeout``, it raises AssertionError, which says what did happen instead: the
    events and outputs, and what the worker logged, with stacks. The same is a note to the errors of ``ask``.

    Attributes:
        url: of the Redis, for other clients, systems and relays.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.agent, redis=rig.url, by="test")
        self._rig = rig
        self._since: str | None = None  # the last event before this stage

    @property
    def url(self) -> str:
        return self._rig.url

    async def wait_event(
        self,
        kind: str,
        room: str | None = None,
        *,
        message: int | None = None,
        attempt: int | None = None,
        after: str | None = None,
    ) -> Event:
        """Wait for the first event of this kind, such as ``message.dead``, of that room, message and attempt if they are given.

        ``after`` is the ``id`` of an event: only later ones count.

        Raises:
            InvalidRequest: there is no such kind of event.
            AssertionError: it did not happen in time, or the system has ended.
        """
        wanted, start = _one_of(EventKind, kind), self._since if after is None else check_entry(after, "after")
        fields = _given(kind=wanted, room=room, message=message, attempt=attempt)
        return await self._wait(self._find_event(fields, start), _what("event", fields), room)

    async def wait_output(
        self,
        room: str,
        kind: str | None = None,
        *,
        body: Any = ANY,
        seq: int | None = None,
        message: int | None = None,
        after: str | None = None,
    ) -> Output:
        """Wait for the first output of the room that has this kind, body, number within its cycle (from 1) and message, if
        they are given: ``wait_output("42", "chunk", seq=2)`` until readers have the second chunk.

        ``after`` is the ``id`` of an output: only later ones count.

        Raises:
            InvalidRequest: there is no such kind of output.
            AssertionError: it was not sent in time, or the system has ended.
        """
        fields = _given(kind=None if kind is None else _one_of(Kind, kind), seq=seq, message=message)
        if body is not ANY:
            fields["body"] = body
        return await self._wait(self._find_output(room, fields, after), _what("output", {"room": room} | fields), room)

    async def wait_begun(self, room: str) -> Message:
        """Wait until a cycle of the room is under way: the agent's code has begun on a message (with ``isolation = "process"``:
        a child process was given it), the cycle has not ended, and no signal has aborted it. Answers the message.

        Raises:
            AssertionError: there was none in time, or the system has ended.
        """
        return await self._wait(self._find_begun(check_room(room)), f"a cycle of room {room} has begun", room)

    async def retry(self, room: str) -> None:
        """With ``hold_retries``: wait until a message of the room has failed and waits for its next attempt, and let it begin.

        Raises:
            InvalidRequest: the stage does not hold retries.
            AssertionError: nothing of the room waited for a retry in time, or the system has ended.
        """
        if not self._rig.holds_retries:
            raise InvalidRequest("retry: this stage holds no retries: want running(…, hold_retries=True)")
        await self._wait(self._let_retry(check_room(room)), f"room {room} waits for a retry", room)

    async def crash(self) -> None:
        """End the system as a kill -9 of its process would: nothing is committed, given back or reported any more.

        Code of the agent is cut off, but not as by a real crash: coroutines are cancelled, so their ``finally`` blocks run;
        threads run on until they look at ``cycle.cancelled``; child processes are killed. All that they do is refused, and
        what is in the memory of the test's process, such as a global, stays. A second call does nothing.
        """
        await asyncio.to_thread(self._rig.crash)

    async def restart(self) -> None:
        """Start the system anew, under the same name. One that runs is ended in good order, as at a shutdown without grace:
        what is under way is given back, and its attempt not charged.
        """
        await asyncio.to_thread(self._rig.restart)

    @overload
    def ask(
        self, room: str, body: Any, *, stream: Literal[False] = False, timeout: float | None = 30.0, key: str | None = None
    ) -> Coroutine[Any, Any, Any]: ...
    @overload
    def ask(
        self, room: str, body: Any, *, stream: Literal[True], timeout: float | None = 30.0, key: str | None = None
    ) -> AsyncGenerator[Output, None]: ...
    def ask(
        self, room: str, body: Any, *, stream: bool = False, timeout: float | None = 30.0, key: str | None = None
    ) -> Coroutine[Any, Any, Any] | AsyncGenerator[Output, None]:
        """As ``AsyncClient.ask``; its errors have a note that says what happened in the room."""
        if stream:
            return self._ask_stream(room, super().ask(room, body, stream=True, timeout=timeout, key=key))
        return self._ask(room, super().ask(room, body, timeout=timeout, key=key))

    async def _ask(self, room: str, asking: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await asking
        except NoReply as error:
            error.add_note(await self._story(room))
            raise

    async def _ask_stream(self, room: str, asking: AsyncGenerator[Output, None]) -> AsyncGenerator[Output, None]:
        async with aclosing(asking) as outputs:
            try:
                async for output in outputs:
                    yield output
            except NoReply as error:
                error.add_note(await self._story(room))
                raise

    # How it waits. --------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Find where the stage's own events begin."""
        self._since = await self._last_event()

    async def _last_event(self) -> str | None:
        newest = await self._store.pipeline.command("XREVRANGE", self._keys.events, "+", "-", "COUNT", 1)
        return text(newest[0][0]) if newest else None

    async def _wait(self, work: Coroutine[Any, Any, T], what: str, room: str | None) -> T:
        found, ended = asyncio.ensure_future(work), asyncio.ensure_future(self._system_end())
        try:
            await asyncio.wait([found, ended], timeout=self._rig.timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if found.done():
                return found.result()
            error = ended.exception() if ended.done() else None
        finally:
            found.cancel()
            ended.cancel()
            await asyncio.gather(found, ended, return_exceptions=True)
        why = f"not within {self._rig.timeout_s:g} s: {what}"
        if error is not None:
            why = f"the system has ended ({type(error).__name__}: {error}) before: {what}"
        raise AssertionError(f"{why}\n{await self._story(room)}") from error

    async def _story(self, room: str | None) -> str:
        return await story(self, room, self._since, self._rig.trouble)

    async def _system_end(self) -> None:
        """Raise what the system ends with by itself."""
        while True:
            self._rig.check()
            await asyncio.sleep(PAUSE_S)

    async def _find_event(self, fields: dict[str, Any], start: str | None) -> Event:
        place = start or "0-0"
        while True:
            try:
                async with open_connection(self._redis) as connection:
                    while True:
                        words = ("XREAD", "COUNT", 200, "BLOCK", BLOCK_MS, "STREAMS", self._keys.events, place)
                        page = await ask(connection, *words)
                        for event_id, flat in page[0][1] if page else []:
                            place = text(event_id)
                            event = read_event(event_id, dict(zip(flat[::2], flat[1::2], strict=True)))
                            if _fits(event, fields):
                                return event
            except (RedisError, OSError, TimeoutError):
                await asyncio.sleep(PAUSE_S)

    async def _find_output(self, room: str, fields: dict[str, Any], after: str | None) -> Output:
        async for output in self.outputs(room, after=after, follow=True):
            if _fits(output, fields):
                return output
        raise AssertionError("following never ends")

    async def _find_begun(self, room: str) -> Message:
        with self._rig.begun.watch() as changed:
            while True:
                changed.clear()
                if begun := self._rig.begun.of(room):
                    message, ticket = begun
                    status = await self.status(room)
                    if status.ticket == ticket and not status.abort:
                        return message
                await changed.wait()

    async def _let_retry(self, room: str) -> None:
        while True:
            last = await self._last_event()
            seconds, micros = await self._store.pipeline.command("TIME")
            now = dt.datetime.fromtimestamp(int(seconds), dt.UTC).replace(microsecond=int(micros))
            iso = f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03}Z"  # as the scripts write it
            if await self._store.pipeline.command("EVAL", _RETRY, 1, self._keys.room(room), iso):
                break
            await self._find_event({"room": room}, last)  # a room begins to wait together with an event
        self._rig.wake(room)


class Stage(Client):
    """An agent under test, on its system, and a client of it: all that a ``Client`` does, waits for what happens, and crashes.
    ``with running(Support) as stage`` makes one; what each verb does stands at ``AsyncStage`` and ``AsyncClient``.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.agent, redis=rig.url, by="test")
        self._rig = rig
        self._client = self._stage = AsyncStage(rig)

    @property
    def url(self) -> str:
        return self._rig.url

    def wait_event(
        self,
        kind: str,
        room: str | None = None,
        *,
        message: int | None = None,
        attempt: int | None = None,
        after: str | None = None,
    ) -> Event:
        __tracebackhide__ = True
        return self._run(self._stage.wait_event, kind, room, message=message, attempt=attempt, after=after)

    def wait_output(
        self,
        room: str,
        kind: str | None = None,
        *,
        body: Any = ANY,
        seq: int | None = None,
        message: int | None = None,
        after: str | None = None,
    ) -> Output:
        __tracebackhide__ = True
        return self._run(self._stage.wait_output, room, kind, body=body, seq=seq, message=message, after=after)

    def wait_begun(self, room: str) -> Message:
        __tracebackhide__ = True
        return self._run(self._stage.wait_begun, room)

    def retry(self, room: str) -> None:
        __tracebackhide__ = True
        self._run(self._stage.retry, room)

    def crash(self) -> None:
        self._rig.crash()

    def restart(self) -> None:
        self._rig.restart()


share_docs(AsyncStage, Stage)


def _one_of(kinds: type[K], kind: str) -> K:
    try:
        return kinds(kind)
    except ValueError:
        raise InvalidRequest(f"no kind of this: {str(kind)[:40]!r}: want one of {', '.join(kinds)}") from None


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _fits(record: Event | Output, fields: dict[str, Any]) -> bool:
    return all(getattr(record, name) == value for name, value in fields.items())


def _what(record: str, fields: dict[str, Any]) -> str:
    return f"{record} with {', '.join(f'{name}={value}' for name, value in fields.items())}"
