"""Clients: send and ask, follow what rooms say, signal them, and see how they are.

``AsyncClient`` is the implementation; ``Client`` runs one on a thread of its own.
"""

from __future__ import annotations

import asyncio
import getpass
import re
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Self, TypeVar

from . import codec
from .connect import DEFAULT_REDIS as DEFAULT_REDIS
from .connect import connect
from .errors import (
    AskTimeout,
    Conflict,
    DeadLettered,
    Discarded,
    Interrupted,
    InvalidRequest,
    MessageProcessing,
    NotFound,
    NotReplicated,
    QueueFull,
    RedisRefused,
    RedisUnavailable,
)
from .keys import Keys, check_name
from .log import log
from .pipeline import Durability
from .records import (
    AgentStatus,
    DeadLetter,
    Kind,
    Mode,
    Output,
    Receipt,
    RoomStatus,
    fields,
    read_dead_letter,
    read_hold,
    read_output,
    read_receipts,
    read_status,
    text,
)
from .store import Enqueued, Store
from .wakeups import Wakeups

T = TypeVar("T")

USER_KEY_TTL_S, OWN_KEY_TTL_S = 86_400, 60
MAX_NOTE_BYTES = 1024
PAGE = 200
_ENTRY_ID = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")
LOOK_S = 5.0  # readers look by themselves this often, should every hint be lost


def _whoami() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # no such user in the container's passwd
        return socket.gethostname()


def _check_note(value: str, what: str) -> str:
    if not isinstance(value, str) or len(value.encode("utf-8", "replace")) > MAX_NOTE_BYTES:
        raise InvalidRequest(f"{what}: want a string of at most {MAX_NOTE_BYTES} bytes")
    return value


async def _durably(request: Awaitable[T]) -> tuple[T, NotReplicated | None]:
    """The answer, and whether it lacks confirmation: an answer that says that nothing was changed needs none."""
    try:
        return await request, None
    except NotReplicated as short:
        return short.answer, short


def _confirmed(answer: T, short: NotReplicated | None) -> T:
    if short is not None:
        short.answer = answer
        raise short
    return answer


def _answered(answer: Any) -> Any:
    """The answer of a request that was waited for beside others, or what it raised."""
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _pairs(answer: Any) -> dict[bytes, bytes]:
    flat = _answered(answer)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _check_entry(value: object, what: str) -> str:
    if not isinstance(value, str) or not _ENTRY_ID.fullmatch(value):
        raise InvalidRequest(f"{what}: want an entry's id, such as 1700000000000-0, got {str(value)[:40]!r}")
    return value


class AsyncClient:
    """Talks to the rooms of one agent, for one event loop.

    Args:
        agent: the agent's name.
        redis: ``redis://``, ``rediss://`` or ``unix://`` URL, or ``sentinel://host,host/name`` for the primary of that name.
        timeout: seconds for which a call waits for a Redis that cannot be reached, before RedisUnavailable.
        queue_limit: messages that may wait in one room; ``send`` refuses more.
        by: who signals, for the operator to see; the user and host by default.
        durability: sends, signals, discards and requeues return when replicas have them, or raise NotReplicated; by default
            they return when the primary has them.

    It uses two connections, however many rooms are asked and followed. Any call may raise RedisUnavailable or RedisRefused.
    """

    def __init__(
        self,
        agent: str,
        *,
        redis: str = DEFAULT_REDIS,
        timeout: float = 10.0,
        queue_limit: int = 10_000,
        by: str | None = None,
        durability: Durability | None = None,
    ) -> None:
        self._keys = Keys(agent)
        if durability is not None and not isinstance(durability, Durability):
            raise InvalidRequest(f"durability: want a Durability or None, got {durability!r}")
        self._durability = durability
        self._redis = connect(redis)
        self._by = _check_note(by, "by") if by is not None else _whoami()
        self._queue_limit = queue_limit
        self._timeout_s = timeout
        self._opened: tuple[Store, Wakeups] | None = None
        self._closed = False

    @property
    def agent(self) -> str:
        return self._keys.agent

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close both connections, for good; calls that still wait, and later ones, fail with RedisUnavailable."""
        self._closed = True
        if self._opened is not None:
            store, wakeups = self._opened
            self._opened = None
            await wakeups.close()
            await store.close()
        await self._redis.aclose()

    def _open(self) -> tuple[Store, Wakeups]:
        if self._closed:
            raise RedisUnavailable("this client is closed")
        if self._opened is None:  # not in __init__: there need be no event loop yet
            store = Store(self._redis, self._keys, patience_s=self._timeout_s, durability=self._durability)
            self._opened = store, Wakeups(self._redis)
        return self._opened

    @property
    def _store(self) -> Store:
        return self._open()[0]

    def room(self, room: str) -> AsyncRoomHandle:
        """A handle on one room, with the same verbs."""
        return AsyncRoomHandle(self, check_name(room, "room"))

    # Messages. ------------------------------------------------------------------------------------

    async def send(self, room: str, body: Any, *, key: str | None = None) -> int:
        """Enqueue a message; answer its id once Redis has it.

        With a ``key`` of your own a repetition within 24 hours answers the id of the first and sends nothing.

        Raises:
            InvalidName, InvalidBody: nothing was sent.
            Conflict: the key was used for another room.
            QueueFull: the room has ``queue_limit`` messages waiting.
            NotReplicated: with ``durability``: it was sent, and may be lost. Its ``answer`` is the message's id.
        """
        sent, short = await self._enqueue(room, body, key)
        return _confirmed(sent.id, short)

    async def _enqueue(self, room: str, body: Any, key: str | None) -> tuple[Enqueued, NotReplicated | None]:
        check_name(room, "room")
        data = codec.encode(body)
        # A key of one's own must outlast the repetitions, which go on for the patience.
        ttl = USER_KEY_TTL_S if key is not None else OWN_KEY_TTL_S + int(min(self._timeout_s, USER_KEY_TTL_S))
        key = uuid.uuid4().hex if key is None else check_name(key, "key")
        answer, short = await _durably(self._store.enqueue(room, data, key=key, key_ttl_s=ttl, limit=self._queue_limit))
        if isinstance(answer, Enqueued):
            return answer, short
        if answer.word == "full":
            raise QueueFull(f"room {room} has {answer.detail} messages waiting (limit {self._queue_limit}): not accepted")
        raise Conflict(f"key {key} was used for a message of room {answer.detail}")

    async def ask(self, room: str, body: Any, *, timeout: float | None = 30.0, key: str | None = None) -> Any:
        """Send a message and answer its reply: what the handler returned, or what it yielded (text joined, else a list).

        A message that is stopped, fails and is tried again, or waits, is waited for until ``timeout`` seconds have passed.

        Raises:
            Interrupted, DeadLettered, Discarded: it will never be answered.
            AskTimeout: it is still in the queue.
            NotReplicated: with ``durability``: as for ``send``.
        """
        check_name(room, "room")
        sent: Enqueued | None = None
        try:
            async with asyncio.timeout(timeout), self._open()[1].watch(self._keys.outbox(room)) as hint:
                sent, short = await self._enqueue(room, body, key)
                _confirmed(sent.id, short)
                return await self._reply(room, sent, hint)
        except TimeoutError as error:
            if type(error) is not TimeoutError:
                raise
            if sent is None:
                raise AskTimeout(f"Redis has not answered within {timeout} s: the message may or may not be queued") from None
            raise AskTimeout(f"room {room} has not answered within {timeout} s; the message stays in its queue") from None

    async def _reply(self, room: str, sent: Enqueued, hint: asyncio.Event) -> Any:
        chunks: dict[int, list[Any]] = {}
        async for output in self._follow(room, f"{sent.at_ms}-0", hint):
            if output.message != sent.id:
                continue
            if output.kind is Kind.CHUNK:
                chunks.setdefault(output.ticket, []).append(output.body)
            elif output.kind is Kind.REPLY:
                pieces = chunks.get(output.ticket)
                if output.body is not None or not pieces:
                    return output.body
                return "".join(pieces) if all(isinstance(piece, str) for piece in pieces) else pieces
            elif output.kind is Kind.ABORTED and output.mode == Mode.INTERRUPT:
                raise Interrupted(f"message {sent.id} of room {room} was interrupted")
            elif output.kind is Kind.DEAD:
                raise DeadLettered(f"message {sent.id} of room {room} is a dead letter: {output.error}")
            elif output.kind is Kind.DISCARDED:
                raise Discarded(f"message {sent.id} of room {room} was discarded")
        raise AssertionError("following never ends")

    async def outputs(self, room: str, *, after: str | None = None, follow: bool = False) -> AsyncIterator[Output]:
        """What a room has sent, oldest first; with ``follow`` also what it goes on to send, for ever.

        ``after`` is the ``id`` of the last output you have seen. The outbox keeps about the last 1,000.
        """
        check_name(room, "room")
        start = "-" if after is None else f"({_check_entry(after, 'after')}"
        if not follow:
            async for output in self._read(room, start):
                yield output
            return
        async with self._open()[1].watch(self._keys.outbox(room)) as hint:
            async for output in self._follow(room, start, hint):
                yield output

    async def _read(self, room: str, start: str) -> AsyncIterator[Output]:
        while True:
            words = ("XRANGE", self._keys.outbox(room), start, "+", "COUNT", PAGE)
            entries = await self._store.pipeline.command(*words)
            for output_id, flat in entries:
                start = f"({text(output_id)}"
                try:
                    output = read_output(output_id, dict(zip(flat[::2], flat[1::2], strict=True)))
                except RedisRefused as error:  # of no greenroom, or a newer one: the others are to be read all the same
                    log.warning("output.unreadable", room=room, error=error)
                else:
                    yield output
            if len(entries) < PAGE:
                return

    async def _follow(self, room: str, start: str, hint: asyncio.Event) -> AsyncIterator[Output]:
        while True:
            hint.clear()
            async for output in self._read(room, start):
                start = f"({output.id}"
                yield output
            try:
                async with asyncio.timeout(LOOK_S):
                    await hint.wait()
            except TimeoutError:
                pass

    async def discard(self, room: str, message: int) -> None:
        """Drop a message that waits.

        Raises:
            MessageProcessing: a cycle runs on it: interrupt it.
            NotFound: it is not in the queue.
            NotReplicated: with ``durability``: it was dropped, and may come back.
        """
        answer, short = await _durably(self._store.discard(check_name(room, "room"), message, uuid.uuid4().hex))
        if answer.word == "processing":
            raise MessageProcessing(f"message {message} of room {room} is being processed: interrupt it instead")
        if answer.word == "unknown":
            raise NotFound(f"room {room} has no message {message} waiting")
        _confirmed(None, short)

    async def requeue(self, letter_id: str) -> tuple[str, int]:
        """Put a dead letter back at the tail of its room's queue; answer the room and the new message id.

        Raises:
            NotFound: there is no such dead letter.
            NotReplicated: with ``durability``: it was put back, and may be a dead letter again.
        """
        answer, short = await _durably(self._store.requeue(_check_entry(letter_id, "dead letter"), uuid.uuid4().hex))
        if answer is None:
            raise NotFound(f"no dead letter {letter_id}")
        return _confirmed(answer, short)

    async def dead_letters(self) -> AsyncIterator[DeadLetter]:
        """The dead letters, oldest first."""
        start = "-"
        while True:
            entries = await self._store.pipeline.command("XRANGE", self._keys.dead, start, "+", "COUNT", PAGE)
            for letter_id, flat in entries:
                start = f"({text(letter_id)}"
                try:
                    letter = read_dead_letter(letter_id, dict(zip(flat[::2], flat[1::2], strict=True)))
                except RedisRefused as error:
                    log.warning("dead_letter.unreadable", error=error)
                else:
                    yield letter
            if len(entries) < PAGE:
                return

    # Signals. -------------------------------------------------------------------------------------

    async def interrupt(
        self,
        *rooms: str,
        everywhere: bool = False,
        message: int | None = None,
        reason: str = "",
        by: str | None = None,
        cid: str | None = None,
    ) -> list[Receipt]:
        """Abort the cycle in flight and consume its message; with ``message``, only if that is the one in processing."""
        if message is not None and len(rooms) != 1:
            raise InvalidRequest("a message is one room's: name exactly that room")
        return await self._signal(Mode.INTERRUPT, rooms, everywhere, message, reason, by, cid)

    async def stop(
        self, *rooms: str, everywhere: bool = False, reason: str = "", by: str | None = None, cid: str | None = None
    ) -> list[Receipt]:
        """Abort the cycle in flight, keep its message, and hold the rooms until play."""
        return await self._signal(Mode.STOP, rooms, everywhere, None, reason, by, cid)

    async def pause(
        self, *rooms: str, everywhere: bool = False, reason: str = "", by: str | None = None, cid: str | None = None
    ) -> list[Receipt]:
        """Let the cycle in flight finish, then hold the rooms until play."""
        return await self._signal(Mode.PAUSE, rooms, everywhere, None, reason, by, cid)

    async def play(
        self, *rooms: str, everywhere: bool = False, reason: str = "", by: str | None = None, cid: str | None = None
    ) -> list[Receipt]:
        """Let the rooms go on: a kept message first. Playing everywhere leaves rooms held that were held by themselves."""
        return await self._signal(Mode.PLAY, rooms, everywhere, None, reason, by, cid)

    async def _signal(
        self,
        mode: Mode,
        rooms: tuple[str, ...],
        everywhere: bool,
        message: int | None,
        reason: str,
        by: str | None,
        cid: str | None,
    ) -> list[Receipt]:
        """Send a signal; answer one receipt a room (everywhere: one for the agent, and one for each room it touched).

        Raises:
            InvalidRequest: no room and not everywhere, or both.
            Conflict: the ``cid`` was used for another signal.
            NotReplicated: with ``durability``: it was applied, and may be undone. Its ``answer`` is the receipts.
        """
        if bool(rooms) == everywhere:
            raise InvalidRequest(f"{mode}: name rooms, or everywhere=True")
        for room in rooms:
            check_name(room, "room")
        if len(set(rooms)) != len(rooms):
            raise InvalidRequest(f"{mode}: a room is named twice")
        cid = uuid.uuid4().hex if cid is None else check_name(cid, "cid")
        by = self._by if by is None else _check_note(by, "by")
        reason = _check_note(reason, "reason")
        request = self._store.control(mode, rooms, cid=cid, message=message, by=by, reason=reason)
        (word, receipt), short = await _durably(request)
        if word == "conflict":
            raise Conflict(f"cid {cid} was used for another signal: {text(receipt)}")
        return _confirmed(read_receipts(receipt), short)

    # How it is. -----------------------------------------------------------------------------------

    async def status(self, room: str) -> RoomStatus:
        """A room as it is now; a room that has nothing is one with no phase and no hold."""
        return (await self._statuses([check_name(room, "room")], strict=True))[0]

    async def _statuses(self, rooms: list[str], *, strict: bool) -> list[RoomStatus]:
        command = self._store.pipeline.command
        entries = [command("HGETALL", self._keys.room(room)) for room in rooms]
        lengths = [command("XLEN", self._keys.messages(room)) for room in rooms]
        answers = await asyncio.gather(*entries, *lengths, return_exceptions=True)
        found = []
        for room, flat, waiting in zip(rooms, answers[: len(rooms)], answers[len(rooms) :], strict=True):
            try:
                found.append(read_status(room, _pairs(flat), _answered(waiting)))
            except RedisRefused as error:
                if strict:
                    raise
                found.append(RoomStatus(room=room, last_error=str(error)))
        return found

    async def rooms(self) -> AsyncIterator[RoomStatus]:
        """Every room that has work, a mode or state, in no order. One whose hash greenroom did not write has that as its
        ``last_error``.
        """
        cursor, seen = b"0", set[str]()
        while True:
            cursor, flat = await self._store.pipeline.command("ZSCAN", self._keys.rooms, cursor, "COUNT", PAGE)
            fresh = [room for room in map(text, flat[::2]) if room not in seen]
            seen.update(fresh)
            for status in await self._statuses(fresh, strict=False):
                yield status
            if cursor == b"0":
                return

    async def overview(self) -> AgentStatus:
        """The agent as a whole."""
        keys, command = self._keys, self._store.pipeline.command
        asked = [
            command("HGETALL", keys.root),
            command("ZCARD", keys.rooms),
            command("ZCARD", keys.processing),
            command("SCARD", keys.held),
            command("XLEN", keys.dead),
            command("SMEMBERS", keys.workers),
        ]
        root, rooms, processing, held, dead, workers = await asyncio.gather(*asked)
        row = {name: text(value) for name, value in fields(root).items()}
        return AgentStatus(
            agent=keys.agent,
            hold=read_hold(row),
            rooms=rooms,
            processing=processing,
            held=held,
            dead=dead,
            workers=tuple(sorted(map(text, workers))),
        )


class AsyncRoomHandle:
    """One room, with the client's verbs."""

    def __init__(self, client: AsyncClient, room: str) -> None:
        self._client = client
        self.id = room

    async def send(self, body: Any, *, key: str | None = None) -> int:
        return await self._client.send(self.id, body, key=key)

    async def ask(self, body: Any, *, timeout: float | None = 30.0, key: str | None = None) -> Any:
        return await self._client.ask(self.id, body, timeout=timeout, key=key)

    def outputs(self, *, after: str | None = None, follow: bool = False) -> AsyncIterator[Output]:
        return self._client.outputs(self.id, after=after, follow=follow)

    async def interrupt(
        self, *, message: int | None = None, reason: str = "", by: str | None = None, cid: str | None = None
    ) -> Receipt:
        return (await self._client.interrupt(self.id, message=message, reason=reason, by=by, cid=cid))[0]

    async def stop(self, *, reason: str = "", by: str | None = None, cid: str | None = None) -> Receipt:
        return (await self._client.stop(self.id, reason=reason, by=by, cid=cid))[0]

    async def pause(self, *, reason: str = "", by: str | None = None, cid: str | None = None) -> Receipt:
        return (await self._client.pause(self.id, reason=reason, by=by, cid=cid))[0]

    async def play(self, *, reason: str = "", by: str | None = None, cid: str | None = None) -> Receipt:
        return (await self._client.play(self.id, reason=reason, by=by, cid=cid))[0]

    async def discard(self, message: int) -> None:
        await self._client.discard(self.id, message)

    async def status(self) -> RoomStatus:
        return await self._client.status(self.id)
