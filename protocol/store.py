"""The scripts as typed calls: what a worker, and a client, may ask of Redis."""

from __future__ import annotations

from asyncio import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from redis.asyncio import Redis

from .keys import Keys
from .pipeline import Durability, Pipeline
from .records import LAYOUT, VERSION, Message, check_version, entry_id, fields, read_id, read_message, text
from .retention import Retention, words_of

Settlement = Literal["consume", "release", "too_new", "fail", "reject"]
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

    ``abort`` is not empty when the cycle was aborted before this answer arrived. ``state`` is the room's state when this
    answers a claim, else None: whoever held the room has it. ``happened`` as in ``Answer``.
    """

    message: Message
    ticket: int
    abort: str
    state: bytes | None
    happened: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that grants nothing: its word, as the script's head lists it, and its detail.

    ``happened`` names the events that the request has made, as far as an answer tells: of claim, commit and settle.
    """

    word: str
    detail: str = ""
    happened: str = ""


@dataclass(frozen=True, slots=True)
class Abort:
    """How a live cycle was aborted: ``interrupt`` or ``stop``, by whom; and what it had done.

    ``steps`` are those of the message, by name: ``done``, ``begun`` by this cycle, or ``unknown``: begun by one before.
    """

    mode: Literal["interrupt", "stop"]
    by: str
    reason: str
    cid: str
    at: str
    ran_ms: int
    steps: dict[str, Literal["done", "begun", "unknown"]]


@dataclass(frozen=True, slots=True)
class Enqueued:
    """An accepted message: its id, and the server's time in ms at which it was."""

    id: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat's answer: ``ok``, ``lapsed``, ``superseded``, ``emptied`` or ``newer``, the incarnation (of ``newer``, the
    version), the agent's instance id and the server's time.
    """

    word: str
    incarnation: int
    instance: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """How much work an agent has. ``mode`` is empty when it plays. ``phases`` counts rooms: ``idle`` are those with a mode or
    state alone.

    Messages wait unless a live cycle is at work on them: ``waiting`` and the age of the ``oldest`` are of rooms that may run,
    then of those that are held. Where there are more rooms than were looked at, ``waiting`` is an estimate from these, and
    ``oldest`` is the oldest of these.
    """

    mode: str
    phases: dict[str, int]
    dead: int
    waiting: tuple[int, int]
    oldest_s: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Dropped:
    """A dead letter that was over the limit: its id, room and message, and of what it had died."""

    id: str
    room: str
    message: str
    error: str


@dataclass(frozen=True, slots=True)
class Swept:
    """What one call has swept; with ``more``, the next one passes over ``passed`` idle rooms."""

    more: bool
    passed: int
    dropped: list[Dropped]
    forgotten: int


@dataclass(frozen=True, slots=True)
class Due:
    """The output that a relay is to hand over next: its id, and the outbox's entry as Redis has it."""

    id: str
    entry: list[bytes]


class Store:
    """One agent's rooms in Redis, over one pipelined connection.

    Each call answers a future, which may hold RedisUnavailable (within the pipeline's patience) or RedisRefused. With
    ``durability`` those that a client makes to change something (enqueue, discard, requeue, drop, control, forget_relay) may
    hold NotReplicated.
    """

    def __init__(
        self, redis: Redis, keys: Keys, *, patience_s: float | None = None, durability: Durability | None = None
    ) -> None:
        self.redis = redis
        self.keys = keys
        self.pipeline = Pipeline(redis, keys.root, patience_s=patience_s, durability=durability)

    async def close(self) -> None:
        await self.pipeline.close()

    # Messages. A request is known for ``ttl_s``, should it arrive once more. ----------------------------

    def enqueue(self, room: str, body: bytes, *, key: str, key_ttl_s: int, limit: int) -> Future[Enqueued | Answer]:
        return self.pipeline.run("enqueue", room, key, key_ttl_s, limit, body, decode=_enqueued, durable=True)

    def discard(self, room: str, message: int, request: str, *, ttl_s: int) -> Future[Answer]:
        return self.pipeline.run("discard", room, entry_id(message), request, ttl_s, decode=_answer, durable=True)

    def requeue(self, dead_id: str, request: str, *, ttl_s: int) -> Future[tuple[str, int] | None]:
        """The room and the new message's id, or None when there is no such dead letter. May hold NewerVersion."""
        return self.pipeline.run("requeue", dead_id, request, ttl_s, decode=_requeued, durable=True)

    def drop(self, dead_id: str, request: str, by: str, *, ttl_s: int) -> Future[Answer]:
        return self.pipeline.run("drop", dead_id, request, ttl_s, by, decode=_answer, durable=True)

    # Cycles. --------------------------------------------------------------------------------------

    def claim(
        self, room: str, *, worker: str, incarnation: int, ready: str, request: str, terms: Terms
    ) -> Future[Grant | Answer]:
        args = (room, worker, incarnation, ready, request, terms.max_attempts, _flag(terms.shielded))
        return self.pipeline.run("claim", *args, decode=partial(_taken, room))

    def commit(
        self, room: str, ticket: int, *, state: bytes, reply: bytes, take_next: bool, terms: Terms
    ) -> Future[Grant | Answer]:
        args = (room, ticket, _flag(take_next), terms.max_attempts, _flag(terms.shielded), state, reply)
        return self.pipeline.run("commit", *args, decode=partial(_taken, room))

    def settle(
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
        code: str = "",
    ) -> Future[Grant | Answer]:
        flags = (_flag(take_next), terms.max_attempts, _flag(terms.shielded))
        args = (room, ticket, how, *flags, state, closing, error, retry_ms, code)
        return self.pipeline.run("settle", *args, decode=partial(_taken, room))

    def emit(self, room: str, ticket: int, seq: int, *bodies: bytes) -> Future[Answer]:
        return self.pipeline.run("emit", room, ticket, seq, *bodies, decode=_answer)

    def step(self, room: str, ticket: int, name: str, act: str, result: bytes = b"") -> Future[tuple[str, bytes]]:
        """The script's word, and for ``done`` the result."""
        return self.pipeline.run("step", room, ticket, name, act, result, decode=_worded)

    def interruption(self, room: str, ticket: int) -> Future[Abort | Answer]:
        """How the live cycle was aborted; ``live`` when it was not, ``fenced`` when it is not the live one."""
        return self.pipeline.run("interruption", room, ticket, decode=partial(_abort, ticket))

    def shield(self, room: str, ticket: int, *, up: bool) -> Future[Answer]:
        return self.pipeline.run("shield", room, ticket, _flag(up), decode=_answer)

    def release(self, room: str, *, worker: str, ready: str) -> Future[Answer]:
        return self.pipeline.run("release", room, worker, ready, decode=_answer)

    # Signals. -------------------------------------------------------------------------------------

    def control(
        self,
        mode: str,
        rooms: tuple[str, ...],
        *,
        cid: str,
        message: int | None = None,
        by: str = "",
        reason: str = "",
        raw: str = "",
    ) -> Future[tuple[str, bytes]]:
        """The script's word, and the receipt as JSON. No rooms: everywhere. ``raw`` is a hand-written entry's id."""
        only = "" if message is None else entry_id(message)
        said = (mode, cid, only, by, reason, raw)
        return self.pipeline.run("control", *said, len(rooms), *rooms, decode=_worded, durable=True)

    def malformed(self, entry: str, error: str) -> Future[Answer]:
        return self.pipeline.run("malformed", entry, error, decode=_answer)

    # Workers. -------------------------------------------------------------------------------------

    def backlog(self, most: int) -> Future[Backlog]:
        """How much work there is, by a look at ``most`` rooms of each kind that has work."""
        return self.pipeline.run("backlog", most, decode=_backlog)

    def heartbeat(
        self, worker: str, incarnation: int | None, *, lease_ms: int, instance: str, about: dict[str, str]
    ) -> Future[Beat]:
        flat = [part for item in about.items() for part in item]
        joined = "" if incarnation is None else incarnation
        return self.pipeline.run("heartbeat", worker, joined, lease_ms, instance, *flat, decode=_beat)

    def leave(self, worker: str, incarnation: int) -> Future[Answer]:
        return self.pipeline.run("leave", worker, incarnation, decode=_answer)

    def adopt(self, worker: str, most: int) -> Future[int]:
        """How many rooms of dead workers were moved to this one's pending list."""
        return self.pipeline.run("adopt", worker, most, decode=_count)

    def retain(self, worker: str, incarnation: int, retention: Retention) -> Future[Answer]:
        """Say what is kept: the newest worker's word counts."""
        return self.pipeline.run("retain", worker, incarnation, *words_of(retention), decode=_answer)

    def sweep(self, passed: int) -> Future[Swept]:
        """Drop some of what is kept for too long, but for the first ``passed`` idle rooms."""
        return self.pipeline.run("sweep", passed, decode=_swept)

    def pending(self, worker: str, after: str, count: int) -> Future[list[tuple[str, str]]]:
        """Ready id and room of what this worker owns, page by page."""
        words = ("XREADGROUP", "GROUP", "supervisors", worker, "COUNT", count, "STREAMS", self.keys.ready, after)
        return self.pipeline.command(*words, decode=read_ready)

    # Relays. --------------------------------------------------------------------------------------

    def relay(self, name: str, token: str, *, lease_ms: int | None) -> Future[Answer]:
        """Register a relay, and take or renew its lease; None ends it."""
        return self.pipeline.run("relay", name, token, "" if lease_ms is None else lease_ms, decode=_answer)

    def deliver(self, name: str, token: str, room: str, *, done: str = "", rejected: str = "") -> Future[Due | Answer]:
        """What is due in a room, after ``done`` was handed over, or ``rejected`` says why it was not."""
        return self.pipeline.run("deliver", name, token, room, done, rejected, decode=_due)

    def forget_relay(self, name: str, request: str, cursor: str, *, ttl_s: int) -> Future[Answer]:
        """Go on from ``cursor``, at first 0: of ``more`` it is the detail."""
        return self.pipeline.run("forget_relay", name, request, ttl_s, cursor, decode=_answer, durable=True)


def read_ready(reply: Any) -> list[tuple[str, str]]:
    """Ready id and room of each entry of an XREADGROUP reply; no script wrote one that names no room (an empty string)."""
    entries = reply[0][1] if reply else []
    return [(text(ready), text(fields(flat).get("room", b""))) for ready, flat in entries if flat]


def _flag(on: bool) -> str:
    return "1" if on else ""


def _answer(answer: list[Any]) -> Answer:
    return Answer(text(answer[0]), text(answer[1]))


def _worded(answer: list[Any]) -> tuple[str, bytes]:
    return text(answer[0]), answer[1]


def _abort(ticket: int, answer: list[Any]) -> Abort | Answer:
    mode = text(answer[0])
    if mode not in ("interrupt", "stop"):
        return _answer(answer)
    own = b"?%d" % ticket
    steps = {
        text(name): "done" if value == b"!" else "begun" if value == own else "unknown"
        for name, value in zip(answer[6][::2], answer[6][1::2], strict=True)
    }
    by, reason, cid, at = map(text, answer[1:5])
    return Abort(mode, by, reason, cid, at, int(answer[5]), steps)  # type: ignore[arg-type]  # checked above


def _count(answer: list[Any]) -> int:
    return int(answer[1])


def _beat(answer: list[Any]) -> Beat:
    if answer[0] == b"newer":
        check_version(answer[1], LAYOUT, "what this agent has in Redis")
    word, incarnation, instance, at_ms = [*answer, b"", b"0"][:4]
    return Beat(text(word), int(incarnation), text(instance), int(at_ms))


def _backlog(answer: list[Any]) -> Backlog:
    now_us, mode, rooms, owned, line, held, live, dead = int(answer[0]), text(answer[1]), *map(int, answer[2:8])
    looked = [tuple(map(int, answer[at : at + 3])) for at in (8, 11, 14)]
    waiting = [messages * of // (rooms or 1) for (rooms, messages, _), of in zip(looked, (owned, line, held), strict=True)]
    ages_s = [(now_us - oldest) / 1e6 if oldest else 0.0 for _, _, oldest in looked]
    phases = {"queued": line, "processing": live, "backoff": owned - live, "held": held, "idle": rooms - owned - line - held}
    return Backlog(
        mode=mode,
        phases={phase: max(0, count) for phase, count in phases.items()},
        dead=dead,
        waiting=(waiting[0] + waiting[1], waiting[2]),
        oldest_s=(max(0.0, *ages_s[:2]), max(0.0, ages_s[2])),
    )


def _swept(answer: list[Any]) -> Swept:
    flat = list(map(text, answer[2]))
    dropped = [Dropped(*flat[i : i + 4]) for i in range(0, len(flat), 4)]
    return Swept(answer[0] == b"more", int(answer[1]), dropped, int(answer[3]))


def _enqueued(answer: list[Any]) -> Enqueued | Answer:
    if answer[0] == b"ok":
        return Enqueued(read_id(text(answer[1])), int(answer[2]))
    return _answer(answer)


def _requeued(answer: list[Any]) -> tuple[str, int] | None:
    if answer[0] == b"newer":
        check_version(answer[1], VERSION, "the dead letter")
    return (text(answer[1]), read_id(text(answer[2]))) if answer[0] == b"ok" else None


def _due(answer: list[Any]) -> Due | Answer:
    return Due(text(answer[1]), answer[2]) if answer[0] == b"output" else Answer(text(answer[0]))


def _taken(room: str, answer: list[Any]) -> Grant | Answer:
    if answer[0] != b"grant":
        return Answer(*map(text, answer))
    _, message_id, ticket, attempt, abort, _, entry, state, *happened = answer
    message = read_message(read_id(text(message_id)), room, int(attempt), fields(entry))
    return Grant(message, int(ticket), text(abort), state, text(*happened) if happened else "")
