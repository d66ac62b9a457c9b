"""The simulated processes, and the calls that they make: each call is compared with the account, and at random sent twice."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from greenroom.protocol.keys import Keys

from . import signals
from .checks import Violation, check_structure, output_of, receipts_of, require
from .model import Account, Expected, Room, Terms
from .wire import Wire, Word, as_text, pairs

if TYPE_CHECKING:
    from .relays import Process

ROOMS = ["r0", "r1", "r2"]
WORKERS = ["w0", "w1", "w2", "w3"]
LONG_MS = 60_000  # a retry time that passes only when the run says so
SENT_TWICE, REPLY_LOST, SENT_LATE = 0.12, 0.06, 0.15
UNSEEN = ("lost", "superseded", "refused")  # answers without an effect, whose request may act when it is sent again

_names = itertools.count()


@dataclass(slots=True)
class Request:
    """A claim, commit, settle or emit as it was sent."""

    script: str
    room: str
    args: dict[str, Any]


@dataclass(slots=True)
class Hold:
    """A room at a worker: the ready entry, the cycle at work (ticket 0: none), and the request whose reply was lost."""

    ready: str
    ticket: int = 0
    seq: int = 0
    aborted: str = ""
    lost: Request | None = None
    later: str = ""  # a ready entry of the same room that arrived while this one was busy


@dataclass(slots=True)
class Worker:
    """A live process. ``raw_at`` counts the hand-written control entries that it has read."""

    name: str
    incarnation: int
    holds: dict[str, Hold] = field(default_factory=dict)
    raw_at: int = 0


@dataclass(slots=True)
class Ghost:
    """What a dead process still has in flight: a zombie may send it at any time."""

    worker: str
    incarnation: int
    room: str
    ticket: int
    ready: str


def normal(script: str, answer: list[Any]) -> Expected:
    """An answer without what only the server can know: the time, and the milliseconds that are left."""
    word = as_text(answer[0])
    if word == "grant":
        return (word, as_text(answer[1]), int(answer[2]), int(answer[3]), as_text(answer[4]))
    if script == "deliver" and word == "output":
        return (word, *output_of(answer[2]))
    if script == "relay" and word == "ok":
        return (word, "")
    if script == "step":
        return (word, answer[1])
    if script == "control":
        return (word, receipts_of(answer[1]) if answer[1] else ())
    if script in ("enqueue", "heartbeat") or word == "lost":
        return (word, as_text(answer[1]) if word != "lost" else "")
    if word == "backoff":
        require(0 < int(answer[1]) <= LONG_MS, f"backoff of {answer[1]} ms")
        return (word, "")
    if script in ("claim", "commit", "settle"):
        answer = answer[:2]  # what follows is for the worker's metrics
    return tuple(as_text(part) for part in answer) if len(answer) > 1 else (word, "")


class World:
    """One agent in Redis, its account, its workers, and every call that was made."""

    def __init__(self, wire: Wire, terms: Terms) -> None:
        self.wire = wire
        wire.keys = Keys(f"explorer-{random.SystemRandom().getrandbits(48):x}-{next(_names)}")
        self.account = Account(terms, ROOMS)
        self.workers: dict[str, Worker] = {}
        self.ghosts: list[Ghost] = []
        self.late: list[Request] = []
        self.raws: list[tuple[str, str, str]] = []
        self.relays: list[Process] = []
        self.trace: list[str] = []
        self.tracing = False
        self.sent = 0  # round trips so far
        self.chaos = True  # lost and doubled replies; off while a run is drained
        self.rng = random.Random(0)
        self._numbers = itertools.count(1)
        wire.send(("HSET", wire.keys.root, "clock", self.account.clock))

    def number(self) -> int:
        return next(self._numbers)

    def note(self, line: str) -> None:
        if self.tracing:
            self.trace.append(line)

    def chance(self, probability: float) -> bool:
        return self.chaos and self.rng.random() < probability

    def check(self) -> None:
        check_structure(self.account, self.wire.dump(ROOMS))

    # Calls. -------------------------------------------------------------------------------------------

    def send(self, *commands: tuple[Word, ...], what: str = "") -> list[Any]:
        self.sent += 1
        try:
            return self.wire.send(*commands)
        except ResponseError as error:
            raise Violation(f"{what or commands[-1]}: {error}") from None

    def call(self, expected: Expected, script: str, *args: Word, second: str = "") -> list[Any]:
        """Run a script, perhaps twice at once, and require this answer. ``second``: the word that the repetition may answer."""
        command = self.wire.script(script, *args)
        twice = self.chance(SENT_TWICE)
        answers = self.send(*[command] * (1 + twice), what=f"{script}{args}")
        found = [normal(script, answer) for answer in answers]
        self.note(f"{script}{args} -> {found[0]}{' sent twice' if twice else ''}")
        require(found[0] == expected, f"{script}{args} answered {found[0]}, want {expected}")
        if twice:
            same = found[1] == found[0] or (second and found[1][0] == second)
            require(bool(same), f"{script}{args} sent again answered {found[1]}, not {found[0]}")
        return list(answers[0])

    def entitled(self, worker: str, ready: str) -> bool:
        """Whether this ready entry is pending for this worker now."""
        return bool(self.send(("XPENDING", self.wire.keys.ready, "supervisors", ready, ready, 1, worker))[0])

    # Requests that a worker may have to send again. -----------------------------------------------------

    def request(self, request: Request) -> Expected:
        """Send it, and compare: the account knows whether it was answered before."""
        room = self.account.rooms[request.room]
        args = request.args
        is_first = room.live is not None and room.live.ticket == args.get("ticket")
        if request.script == "claim":
            expected, answer = self._claim(room, **args)
        elif request.script == "commit":
            expected, answer = self._commit(room, **args)
        elif request.script == "settle":
            expected, answer = self._settle(room, **args)
        else:
            expected = self.emit(request.room, **args)
            answer = None
        if answer is not None and answer[0] == b"grant":
            self._check_grant(room, request, answer)
        if is_first and expected[0] == "released":
            self.require_given_back(request.room)
        if expected[0] not in UNSEEN and self.chance(SENT_LATE):
            self.late.append(request)
        return expected

    def require_given_back(self, room: str) -> None:
        """Nobody owns the room: a worker that has let go of it never looks at it again (7)."""
        dump = self.wire.dump(ROOMS)
        owners = {dump.pending[ready]: ready for ready, of in dump.ready if of == room and ready in dump.pending}
        require(not owners, f"{room} was given back, and is pending for {owners} (7)")

    def _claim(self, room: Room, worker: str, incarnation: int, ready: str, request: str) -> tuple[Expected, list[Any]]:
        entitled = self.entitled(worker, ready)
        expected = self.account.claim(room, worker, incarnation, request, entitled=entitled)
        _, *terms = self._terms(True)
        return expected, self.call(expected, "claim", room.name, worker, incarnation, ready, request, *terms)

    def _commit(self, room: Room, ticket: int, take_next: bool, state: bytes, reply: bytes) -> tuple[Expected, list[Any]]:
        expected = self.account.commit(room, ticket, take_next=take_next, state=state, reply=reply)
        return expected, self.call(expected, "commit", room.name, ticket, *self._terms(take_next), state, reply)

    def _settle(
        self, room: Room, ticket: int, how: str, take_next: bool, state: bytes, closing: bytes, error: str, retry_ms: int
    ) -> tuple[Expected, list[Any]]:
        more = {"state": state, "closing": closing, "error": error, "retry_ms": retry_ms}
        expected = self.account.settle(room, ticket, how, take_next=take_next, **more)  # type: ignore[arg-type]  # by their names
        terms = self._terms(take_next)
        return expected, self.call(expected, "settle", room.name, ticket, how, *terms, state, closing, error, retry_ms, "")

    def _terms(self, take_next: bool) -> tuple[Word, ...]:
        terms = self.account.terms
        return "1" if take_next else "", terms.max_attempts, "1" if terms.shielded else ""

    def _check_grant(self, room: Room, request: Request, answer: list[Any]) -> None:
        message = as_text(answer[1])
        body = pairs(answer[6]).get("body", "")
        require(body.encode() == self.account.bodies[message], f"{message} was granted with the body {body!r} (3)")
        if request.script == "claim":
            require(answer[7] == room.state, f"{message} was granted with the state {answer[7]!r}, want {room.state!r} (9)")

    # Effects. -------------------------------------------------------------------------------------------

    def emit(self, room: str, ticket: int, first: int, bodies: list[bytes]) -> Expected:
        expected = self.account.emit(self.account.rooms[room], ticket, first, bodies)
        self.call(expected, "emit", room, ticket, first, *bodies)
        return expected

    def step(self, room: str, ticket: int, name: str, act: str, result: bytes) -> Expected:
        expected = self.account.step(self.account.rooms[room], ticket, name, act, result)
        self.call(expected, "step", room, ticket, name, act, result)
        return expected

    def shield(self, room: str, ticket: int, *, up: bool) -> Expected:
        expected = self.account.shield(self.account.rooms[room], ticket, up=up)
        self.call(expected, "shield", room, ticket, "1" if up else "")
        return expected

    # Signals. -------------------------------------------------------------------------------------------

    def control(self, mode: str, rooms: tuple[str, ...], cid: str, only: str = "", raw: str = "") -> None:
        args: tuple[Word, ...] = (mode, cid, only, "tester", "because", raw, len(rooms), *rooms)
        expected = signals.control(self.account, mode, rooms, cid=cid, only=only, raw=raw)
        self.call(expected, "control", *args, second="passed" if raw else "")

    def malformed(self, raw: str) -> None:
        expected = ("passed" if signals.passed(self.account, raw) else "ok", "")
        self.call(expected, "malformed", raw, "no such mode", second="passed")

    # Workers. -------------------------------------------------------------------------------------------

    def join(self, name: str) -> None:
        """A new process of this name: an older one, if any, becomes a zombie."""
        if name in self.workers:
            self.bury(self.workers[name])
        twice = self.chance(SENT_TWICE)  # a repeated join makes another incarnation, and the worker is the last one
        for _ in range(1 + twice):
            expected = self.account.join(name)
            answer = self.send(self.wire.script("heartbeat", name, "", LONG_MS, "instance"))[0]
            require(normal("heartbeat", answer) == expected, f"{name} joined with {answer}, want {expected}")
        self.note(f"join {name} -> {expected}")
        self.workers[name] = Worker(name, self.account.leases[name])

    def bury(self, worker: Worker) -> None:
        """The process ends, or forgets: what it had in flight may still arrive."""
        for room, hold in worker.holds.items():
            self.ghosts.append(Ghost(worker.name, worker.incarnation, room, hold.ticket, hold.ready))
            if hold.lost is not None:
                self.late.append(hold.lost)
        worker.holds.clear()

    def expire(self, name: str) -> None:
        """The lease of this name runs out."""
        self.account.leases.pop(name, None)
        self.send(("DEL", self.wire.keys.worker(name)))
        self.note(f"the lease of {name} runs out")

    def read(self, worker: Worker, after: str, count: int) -> None:
        """New ready entries (``>``), or (``0``) those that are this worker's already."""
        words = ("XREADGROUP", "GROUP", "supervisors", worker.name, "COUNT", count, "STREAMS", self.wire.keys.ready, after)
        reply = self.send(words)[0]
        for entry_id, flat in reply[0][1] if reply else []:
            room, ready = as_text(flat[1]), as_text(entry_id)
            self.note(f"{worker.name} reads {after} {room} {ready}")
            hold = worker.holds.get(room)
            if hold is None or not (hold.ticket or hold.lost or hold.ready == ready):
                worker.holds[room] = Hold(ready)
            elif hold.ready != ready:
                hold.later = ready

    def adopt(self, worker: Worker, most: int) -> None:
        """Afterwards no room is pending for a worker without a lease, unless that many were moved (7)."""
        before = self.wire.dump(ROOMS)
        moved = int(self.send(self.wire.script("adopt", worker.name, most))[0][1])
        self.note(f"adopt by {worker.name} of {moved}")
        require(moved <= most, f"{moved} rooms were moved, want {most} at the most")
        after = self.wire.dump(ROOMS)
        for ready, name in after.ready:
            cycle = self.account.rooms[name].live
            if cycle is not None and before.pending[ready] != after.pending[ready]:
                cycle.adopted = True
        for ready, consumer in after.pending.items():
            known = consumer in self.account.leases or consumer == worker.name or moved == most
            require(known, f"{ready} stays with the dead {consumer} (7)")
        self.read(worker, "0", 100)

    def learn(self, worker: Worker, room: str, hold: Hold, answer: Expected) -> None:
        """What the worker does about an answer to claim, commit or settle."""
        word = answer[0]
        if word == "grant":
            assert isinstance(answer[2], int)
            hold.ticket, hold.seq, hold.aborted = answer[2], 0, str(answer[4])
        elif word in ("interrupt", "stop"):
            hold.aborted = str(word)
        elif word in ("failed", "backoff"):
            hold.ticket, hold.aborted = 0, ""
        elif word != "refused":
            self.drop(worker, room, hold)

    def drop(self, worker: Worker, room: str, hold: Hold) -> None:
        worker.holds.pop(room, None)
        if hold.later:
            worker.holds[room] = Hold(hold.later)

    def ask(self, worker: Worker, hold: Hold, request: Request) -> None:
        """A claim, commit or settle of a live worker, whose reply may be lost: then it must send the same again."""
        answer = self.request(request)
        if self.chance(REPLY_LOST):
            self.note("  its reply is lost")
            hold.lost = request
        else:
            hold.lost = None
            self.learn(worker, request.room, hold, answer)
