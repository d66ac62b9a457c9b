"""Clients: send and ask, follow what rooms say, signal them, and see how they are.

``AsyncClient`` is the implementation; ``Client`` runs one on a thread of its own.
"""

from __future__ import annotations

import getpass
import socket
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine
from typing import Any, Literal, Self, TypeVar, overload

from . import codec, waiting
from .asks import check_timeout, outputs_of, reply_of
from .connect import DEFAULT_REDIS as DEFAULT_REDIS
from .connect import connect
from .errors import Conflict, GreenroomError, InvalidRequest, MessageProcessing, NotFound, NotReplicated, QueueFull, RelayRuns
from .keys import Keys, check_name, check_room
from .outbox import Outbox
from .pipeline import Durability
from .reads import AsyncReads, check_entry, start_after
from .records import Mode, Output, Receipt, read_receipts, text
from .room_handles import AsyncRoomHandle
from .store import Answer, Enqueued, Store
from .wakeups import Wakeups

T = TypeVar("T")

USER_KEY_TTL_S, OWN_KEY_TTL_S = 86_400, 60
MAX_NOTE_BYTES = 1024


def _whoami() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # no such user in the container's passwd
        return socket.gethostname()


def _check_note(value: str, what: str) -> str:
    try:
        if isinstance(value, str) and len(value.encode()) <= MAX_NOTE_BYTES:
            return value
    except UnicodeEncodeError:
        pass
    raise InvalidRequest(f"{what}: want a string of at most {MAX_NOTE_BYTES} bytes of UTF-8")


def _check_message(value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 10**18:
        raise InvalidRequest(f"message: want an id, as send answers it, got {str(value)[:40]!r}")
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


class AsyncClient(AsyncReads):
    """Talks to the rooms of one agent, for one event loop.

    Args:
        agent: the agent's name.
        redis: ``redis://``, ``rediss://`` or ``unix://`` URL, or ``sentinel://host,host/name`` for the primary of that name, or
            ``cluster://host,host`` for the agent's in a cluster.
        timeout: seconds for which a call waits for a Redis that cannot be reached, before RedisUnavailable.
        queue_limit: messages that may wait in one room; ``send`` refuses more.
        by: who signals, for the operator to see; the user and host by default.
        durability: sends, signals, discards, requeues and drops return when replicas have them, or raise NotReplicated; by
            default they return when the primary has them.

    It uses two connections, however many rooms are asked and followed. Any call may raise RedisUnavailable or RedisRefused.

    Raises:
        InvalidName, InvalidRequest: an argument cannot be used.
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
        check_timeout(timeout)
        if not isinstance(queue_limit, int) or isinstance(queue_limit, bool) or queue_limit < 1:
            raise InvalidRequest(f"queue_limit: want a whole number of 1 or more, got {queue_limit!r}")
        self._durability = durability
        self._redis = connect(redis, self._keys.root)
        self._by = _check_note(by, "by") if by is not None else _whoami()
        self._queue_limit = queue_limit
        # How long Redis knows a request: longer than it is repeated, which goes on for the patience.
        self._known_s = OWN_KEY_TTL_S + int(min(timeout, USER_KEY_TTL_S))
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
        """Close both connections, for good; calls that still wait, and later ones, fail with a GreenroomError. It is no
        RedisUnavailable, but for what was asked of Redis and is not answered yet: to repeat it is of no use.
        """
        if self._opened is not None:
            self._opened[0].pipeline.check_loop()
        self._closed = True
        if self._opened is not None:
            store, wakeups = self._opened
            self._opened = None
            await wakeups.close()
            await store.close()
        await self._redis.aclose()

    def _open(self) -> tuple[Store, Wakeups]:
        if self._closed:
            raise GreenroomError("this client is closed")
        if self._opened is None:  # not in __init__: there need be no event loop yet
            store = Store(self._redis, self._keys, patience_s=self._timeout_s, durability=self._durability)
            self._opened = store, Wakeups(self._redis)
        return self._opened

    @property
    def _store(self) -> Store:
        return self._open()[0]

    def room(self, room: str) -> AsyncRoomHandle:
        """A handle on one room, with the same verbs: a signal of it answers one receipt.

        Raises:
            InvalidName: there can be no such room.
        """
        return AsyncRoomHandle(self, check_room(room))

    # Messages. ------------------------------------------------------------------------------------

    async def send(self, room: str, body: Any, *, key: str | None = None) -> int:
        """Enqueue a message; answer its id once Redis has it.

        ``body`` is what msgpack carries, with aware datetimes and UUIDs, 1 MiB and 32 levels at the most. With a ``key`` of
        your own a repetition within 24 hours answers the id of the first and sends nothing.

        Raises:
            InvalidName, InvalidBody: nothing was sent.
            Conflict: the key was used for another room.
            QueueFull: the room has ``queue_limit`` messages waiting.
            NotReplicated: with ``durability``: it was sent, and may be lost. Its ``answer`` is the message's id.
        """
        return (await self._enqueue(room, body, key)).id

    async def _enqueue(self, room: str, body: Any, key: str | None) -> Enqueued:
        check_room(room)
        data = codec.encode(body)
        ttl = USER_KEY_TTL_S if key is not None else self._known_s
        key = uuid.uuid4().hex if key is None else check_name(key, "key")
        answer, short = await _durably(self._store.enqueue(room, data, key=key, key_ttl_s=ttl, limit=self._queue_limit))
        if isinstance(answer, Enqueued):
            _confirmed(answer.id, short)
            return answer
        if answer.word == "full":
            raise QueueFull(f"room {room} has {answer.detail} messages waiting (limit {self._queue_limit}): not accepted")
        raise Conflict(f"key {key} was used for a message of room {answer.detail}")

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
        """Send a message and answer its reply: what the handler returned, or what it yielded (text joined, else a list).

        A message that is stopped, fails and is tried again, or waits, is waited for until ``timeout`` seconds have passed.
        With a ``key``, as for ``send``, a repetition answers the reply of the first.

        With ``stream=True``, an iterator: each output of the message as it comes. Chunks; an ``aborted`` or ``failed`` if
        a cycle ends before its message, and then the outputs of the next one, with another ticket; the last one, and no other,
        is ``final``: the reply, or why there is none. The message is sent when the first output is asked for. The ``timeout``
        is for all of it, the reader's own time included. Who ends early should close it.

        Raises:
            Interrupted, DeadLettered, Discarded: it will never be answered. With ``stream=True`` the final output says so.
            ReplyLost: it has ended, and its reply, or part of it, was trimmed from the outbox before it was read.
            AskTimeout: it is still in the queue; the error says what it waits for. It is raised a second late at the most.
            InvalidName, InvalidBody, Conflict, QueueFull, NotReplicated: as for ``send``.
        """
        outputs = outputs_of(
            Outbox(self._open, room),
            lambda: self._enqueue(room, body, key),
            timeout,
            lambda message: waiting.reason(self._store, room, message),
        )
        return outputs if stream else reply_of(room, outputs)

    async def outputs(self, room: str, *, after: str | None = None, follow: bool = False) -> AsyncIterator[Output]:
        """What a room has sent, oldest first; with ``follow`` also what it goes on to send, for ever.

        ``after`` is the ``id`` of the last output you have seen. The outbox keeps about the last 1,000.

        Raises:
            InvalidName, InvalidRequest: there can be no such room or output.
        """
        check_room(room)
        start = start_after(after)
        outbox = Outbox(self._open, room)
        if not follow:
            async for output in outbox.read(start):
                yield output
            return
        async with outbox.watch() as hint:
            async for output in outbox.follow(start, hint):
                yield output

    async def discard(self, room: str, message: int) -> None:
        """Drop a message that waits.

        Raises:
            InvalidName, InvalidRequest: there can be no such room or message.
            MessageProcessing: a cycle runs on it: interrupt it. Or was stopped, and its code has not ended yet: try again.
            NotFound: it is not in the queue.
            NotReplicated: with ``durability``: it was dropped, and may come back.
        """
        request = self._store.discard(check_room(room), _check_message(message), uuid.uuid4().hex, ttl_s=self._known_s)
        answer, short = await _durably(request)
        if answer.word == "processing":
            now = "is being processed: interrupt it instead"
            if answer.detail:  # an interrupt would be of no effect
                now = f"is still in a cycle that a signal ends ({answer.detail}): try again when its code has ended"
            raise MessageProcessing(f"message {message} of room {room} {now}")
        if answer.word == "unknown":
            raise NotFound(f"room {room} has no message {message} waiting")
        _confirmed(None, short)

    async def forget_relay(self, name: str) -> None:
        """Forget a relay that is gone for good: what it has not handed over is not kept for it any more.

        Raises:
            RelayRuns: end it first.
            NotFound: there is none of that name.
            NotReplicated: with ``durability``: it was forgotten, and may be there again.
        """
        check_name(name, "relay name")
        request, answer, short = uuid.uuid4().hex, Answer("more", "0"), None
        while answer.word == "more":
            answer, short = await _durably(self._store.forget_relay(name, request, answer.detail, ttl_s=self._known_s))
        if answer.word == "runs":
            raise RelayRuns(f"relay {name} runs as {answer.detail}: end it first")
        if answer.word == "unknown":
            raise NotFound(f"there is no relay {name}")
        _confirmed(None, short)

    async def requeue(self, letter_id: str) -> tuple[str, int]:
        """Put the dead letter of that ``id`` back at the tail of its room's queue; answer the room and the new message id.

        Raises:
            NotFound: there is no such dead letter.
            NotReplicated: with ``durability``: it was put back, and may be a dead letter again.
        """
        letter = check_entry(letter_id, "dead letter")
        answer, short = await _durably(self._store.requeue(letter, uuid.uuid4().hex, ttl_s=self._known_s))
        if answer is None:
            raise NotFound(f"no dead letter {letter_id}")
        return _confirmed(answer, short)

    async def drop(self, letter_id: str) -> None:
        """Drop the dead letter of that ``id`` for good: it cannot be put back.

        Raises:
            NotFound: there is no such dead letter.
            NotReplicated: with ``durability``: it was dropped, and may be there again.
        """
        letter = check_entry(letter_id, "dead letter")
        answer, short = await _durably(self._store.drop(letter, uuid.uuid4().hex, self._by, ttl_s=self._known_s))
        if answer.word == "unknown":
            raise NotFound(f"no dead letter {letter_id}")
        _confirmed(None, short)

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
        """Abort the cycle in flight and consume its message; answer a receipt a room.

        Args:
            rooms: which, each once; or with ``everywhere`` all of the agent: then there is a receipt for the agent, whose room
                is None, and one for each room that it touched.
            message: only if that is the one in processing; with one room.
            reason: for the operator to see, as ``by``: who signals, by default as the client says. Each 1,024 bytes at most.
            cid: an id of your own for the signal: repeated with it, for as long as ``Retention.receipts`` says (a day), it is
                applied once and answers the same.

        Raises:
            InvalidName, InvalidRequest: no room and not ``everywhere``, or both; a room twice; or what cannot be used.
            Conflict: the ``cid`` was used for another signal.
            NotReplicated: with ``durability``: it was applied, and may be undone. Its ``answer`` is the receipts.
        """
        if message is not None:
            _check_message(message)
            if len(rooms) != 1:
                raise InvalidRequest("a message is one room's: name exactly that room")
        return await self._signal(Mode.INTERRUPT, rooms, everywhere, message, reason, by, cid)

    async def stop(
        self, *rooms: str, everywhere: bool = False, reason: str = "", by: str | None = None, cid: str | None = None
    ) -> list[Receipt]:
        """Abort the cycle in flight, keep its message, and hold the rooms until play; answer a receipt a room.

        ``everywhere`` holds all rooms of the agent, also those that do not exist yet. Arguments are as for ``interrupt``.

        Raises:
            InvalidName, InvalidRequest, Conflict, NotReplicated: as for ``interrupt``.
        """
        return await self._signal(Mode.STOP, rooms, everywhere, None, reason, by, cid)

    async def pause(
        self, *rooms: str, everywhere: bool = False, reason: str = "", by: str | None = None, cid: str | None = None
    ) -> list[Receipt]:
        """Let the cycle in flight finish, then hold the rooms until play; answer a receipt a room.

        ``everywhere`` holds all rooms of the agent, also those that do not exist yet. Arguments are as for ``interrupt``.

        Raises:
            InvalidName, InvalidRequest, Conflict, NotReplicated: as for ``interrupt``.
        """
        return await self._signal(Mode.PAUSE, rooms, everywhere, None, reason, by, cid)

    async def play(
        self, *rooms: str, everywhere: bool = False, reason: str = "", by: str | None = None, cid: str | None = None
    ) -> list[Receipt]:
        """Let the rooms go on, a kept message first; answer a receipt a room.

        ``everywhere`` leaves rooms held that were held by themselves. Arguments are as for ``interrupt``.

        Raises:
            InvalidName, InvalidRequest, Conflict, NotReplicated: as for ``interrupt``.
        """
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
        if bool(rooms) == everywhere:
            raise InvalidRequest(f"{mode}: name rooms, or everywhere=True")
        for room in rooms:
            check_room(room)
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
