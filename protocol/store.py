"""The scripts as typed calls: what a worker, and a client, may ask of Redis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from redis.asyncio import Redis

from .keys import Keys
from .pipeline import Pipeline
from .records import Message, fields, read_message, text

Settlement = Literal["consume", "release", "fail", "reject"]
KEEP_STATE, DELETE_STATE = b"=", b"-"


def set_state(data: bytes) -> bytes:
    """The state argument of commit and settle that stores ``data``."""
    return b"+" + data


@dataclass(frozen=True, slots=True)
class Terms:
    """What an agent's class says about its cycles, as the scripts need it."""

    max_attempts: int = 3
    shielded: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to run one cycle: its ticket fences every effect.

    ``abort`` is not empty when the cycle was aborted before this answer arrived. ``state`` is the room's state when this answers
    a claim, else None: whoever held the room has it.
    """

    message: Message
    ticket: int
    abort: str
    state: bytes | None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that grants nothing: its word, as the script's head lists it, and its detail."""

    word: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """An accepted message: its id, and the server's time in ms at which it was."""

    id: str
    at_ms: int


class Store:
    """One agent's rooms in Redis, over one pipelined connection.

    Every method may raise RedisUnavailable (within the pipeline's patience) or RedisRefused.
    """

    def __init__(self, redis: Redis, keys: Keys, *, patience_s: float | None = None) -> None:
        self.redis = redis
        self.keys = keys
        self.pipeline = Pipeline(redis, keys.root, patience_s=patience_s)

    async def close(self) -> None:
        await self.pipeline.close()

    # Messages. ------------------------------------------------------------------------------------

    async def enqueue(self, room: str, body: bytes, *, key: str, key_ttl_s: int, limit: int) -> Enqueued | Answer:
        answer = await self.pipeline.run("enqueue", room, key, key_ttl_s, limit, body)
        if answer[0] == b"ok":
            return Enqueued(text(answer[1]), int(answer[2]))
        return Answer(text(answer[0]), text(answer[1]))

    async def discard(self, room: str, message: str, request: str) -> Answer:
        return _answer(await self.pipeline.run("discard", room, message, request))

    async def requeue(self, dead_id: str, request: str) -> tuple[str, str] | None:
        """The room and the new message's id, or None when there is no such dead letter."""
        answer = await self.pipeline.run("requeue", dead_id, request)
        return (text(answer[1]), text(answer[2])) if answer[0] == b"ok" else None

    # Cycles. --------------------------------------------------------------------------------------

    async def claim(
        self, room: str, *, worker: str, incarnation: int, ready: str, request: str, terms: Terms
    ) -> Grant | Answer:
        shielded = "1" if terms.shielded else ""
        run = self.pipeline.run
        return _taken(room, await run("claim", room, worker, incarnation, ready, request, terms.max_attempts, shielded))

    async def commit(
        self, room: str, ticket: int, *, state: bytes, reply: bytes, take_next: bool, terms: Terms
    ) -> Grant | Answer:
        go_on, shielded = "1" if take_next else "", "1" if terms.shielded else ""
        run = self.pipeline.run
        return _taken(room, await run("commit", room, ticket, go_on, terms.max_attempts, shielded, state, reply))

    async def settle(
        self,
        room: str,
        ticket: int,
        how: Settlement,
        *,
        take_next: bool,
        terms: Terms,
        state: bytes = KEEP_STATE,
        closing: bytes = b"",
        error: str = "",
        retry_ms: int = 0,
    ) -> Grant | Answer:
        go_on, shielded = "1" if take_next else "", "1" if terms.shielded else ""
        args = (room, ticket, how, go_on, terms.max_attempts, shielded, state, closing, error, retry_ms)
        return _taken(room, await self.pipeline.run("settle", *args))

    async def emit(self, room: str, ticket: int, seq: int, *bodies: bytes) -> Answer:
        return _answer(await self.pipeline.run("emit", room, ticket, seq, *bodies))

    async def step(self, room: str, ticket: int, name: str, act: str, result: bytes = b"") -> tuple[str, bytes]:
        """The script's word, and for ``done`` the result."""
        answer = await self.pipeline.run("step", room, ticket, name, act, result)
        return text(answer[0]), answer[1]

    async def shield(self, room: str, ticket: int, *, up: bool) -> Answer:
        return _answer(await self.pipeline.run("shield", room, ticket, "1" if up else ""))

    async def release(self, room: str, *, worker: str, ready: str) -> Answer:
        return _answer(await self.pipeline.run("release", room, worker, ready))

    # Signals. -------------------------------------------------------------------------------------

    async def control(
        self, mode: str, rooms: tuple[str, ...], *, cid: str, message: str = "", by: str = "", reason: str = "", raw: str = ""
    ) -> tuple[str, bytes]:
        """The script's word, and the receipt as JSON. No rooms: everywhere."""
        answer = await self.pipeline.run("control", mode, cid, message, by, reason, raw, len(rooms), *rooms)
        return text(answer[0]), answer[1]

    async def malformed(self, entry: str, error: str) -> Answer:
        return _answer(await self.pipeline.run("malformed", entry, error))

    # Workers. -------------------------------------------------------------------------------------

    async def heartbeat(
        self, worker: str, incarnation: int | None, *, lease_ms: int, instance: str, about: dict[str, str]
    ) -> tuple[str, int, str]:
        """The script's word (``ok``, ``lapsed``, ``superseded``), the incarnation and the agent's instance id."""
        flat = [part for item in about.items() for part in item]
        joined = "" if incarnation is None else incarnation
        answer = await self.pipeline.run("heartbeat", worker, joined, lease_ms, instance, *flat)
        return text(answer[0]), int(answer[1]), text(answer[2]) if len(answer) > 2 else ""

    async def leave(self, worker: str, incarnation: int) -> Answer:
        return _answer(await self.pipeline.run("leave", worker, incarnation))

    async def adopt(self, worker: str, most: int) -> int:
        """How many rooms of dead workers were moved to this one's pending list."""
        return int((await self.pipeline.run("adopt", worker, most))[1])

    async def pending(self, worker: str, after: str, count: int) -> list[tuple[str, str]]:
        """Ready id and room of what this worker owns, page by page."""
        words = ("XREADGROUP", "GROUP", "supervisors", worker, "COUNT", count, "STREAMS", self.keys.ready, after)
        return read_ready(await self.pipeline.command(*words))


def read_ready(reply: Any) -> list[tuple[str, str]]:
    """Ready id and room of each entry of an XREADGROUP reply."""
    entries = reply[0][1] if reply else []
    return [(text(entry_id), text(fields(flat)["room"])) for entry_id, flat in entries if flat]


def _answer(answer: list[Any]) -> Answer:
    return Answer(text(answer[0]), text(answer[1]))


def _taken(room: str, answer: list[Any]) -> Grant | Answer:
    if answer[0] != b"grant":
        return _answer(answer)
    _, message_id, ticket, attempt, abort, _, entry, state = [*answer, None][:8]
    message = read_message(text(message_id), room, int(attempt), fields(entry))
    return Grant(message, int(ticket), text(abort), state)
