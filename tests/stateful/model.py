"""An account of one agent, kept outside Redis: what each script must answer and leave behind (docs/protocol.md).

It knows nothing of ready entries, phases or expiries: those are checked against it, in ``checks``. Because the logical clock
moves by one for each message, grant and join, every message id and ticket is known before Redis says it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Expected = tuple[object, ...]
Receipt = tuple[str, str, str]


@dataclass(slots=True)
class Terms:
    """What the agent's class says: the budget of a message, and whether its cycles are shielded for their whole life."""

    max_attempts: int
    shielded: bool


@dataclass(slots=True)
class Cycle:
    """The live cycle of a room."""

    ticket: int
    message: str
    shield: bool
    abort: str = ""
    deferred: str = ""
    seq: int = 0
    adopted: bool = False  # its room was given to another worker, who has not claimed it yet


@dataclass(slots=True)
class Output:
    """One entry of a room's outbox: what was sent, in order, and nothing else, must be there."""

    kind: str
    message: str
    ticket: int
    seq: int
    body: bytes = b""
    why: str = ""
    closing: bool = False  # what an interrupted cycle said at its end


@dataclass(slots=True)
class Relay:
    """One relay: of each room, from which output on it is due any, which it is at, and which it was given."""

    since: dict[str, int]
    places: dict[str, int] = field(default_factory=dict)
    given: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.places = dict(self.since)


@dataclass(slots=True)
class Room:
    """One room: ``queue`` holds the accepted messages that have not ended, ``ended`` how each of the others did."""

    name: str
    queue: list[str] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)
    mode: str = ""
    live: Cycle | None = None
    begun: bool = False  # a cycle has run on the head of the queue
    charged: int = 0  # failures and crashes of the head of the queue
    retry: bool = False  # the head waits for its retry time
    error: str = ""
    state: bytes | None = None
    steps: dict[str, bytes] = field(default_factory=dict)
    outbox: list[Output] = field(default_factory=list)
    settled: int = 0
    died: bool = False  # the cycle of that ticket, with its worker
    owner: str = ""  # who claimed it last
    request: str = ""
    answer: Expected | None = None
    claims: set[str] = field(default_factory=set)

    def send(self, kind: str, message: str, ticket: int, seq: int, body: bytes = b"", why: str = "") -> None:
        self.outbox.append(Output(kind, message, ticket, seq, body, why))

    def end_message(self, message: str, how: str) -> None:
        """Invariant 3: every accepted message ends once."""
        assert message not in self.ended, f"{message} ends twice"
        self.queue.remove(message)
        self.ended[message] = how
        if how != "discarded unread":
            self.begun, self.charged, self.retry, self.error = False, 0, False, ""
            self.steps = {}

    def end_cycle(self) -> Cycle:
        assert self.live is not None
        cycle, self.live = self.live, None
        self.settled, self.died = cycle.ticket, False
        return cycle

    def refused(self, ticket: int) -> str:
        """Invariants 1 and 5: why an effect of this ticket is refused, or nothing."""
        if self.live is None or self.live.ticket != ticket:
            return "fenced"
        return self.live.abort

    def set_state(self, argument: bytes) -> None:
        if argument != b"=":
            self.state = argument[1:] if argument[:1] == b"+" else None

    def consume(self, message: str, ticket: int, seq: int) -> None:
        self.send("aborted", message, ticket, seq, why="interrupt")
        self.end_message(message, "consumed")

    def remember(self, request: str, answer: Expected | None) -> None:
        self.request, self.answer = request, answer


CLOCK = 4 * 10**15  # ahead of the server's time for a century, so that each tick is the one after the last


class Account:
    """One agent. Each method is a script: it answers what that must, and changes the account as that must change Redis."""

    def __init__(self, terms: Terms, rooms: list[str]) -> None:
        self.terms = terms
        self.rooms = {name: Room(name) for name in rooms}
        self.clock = CLOCK
        self.mode = ""
        self.bodies: dict[str, bytes] = {}
        self.seen: dict[str, tuple[str, str]] = {}
        self.requests: dict[str, Expected] = {}
        self.dead: dict[str, tuple[str, int, str]] = {}
        self.leases: dict[str, int] = {}
        self.signals: dict[str, tuple[str, list[Receipt]]] = {}
        self.cursor = (0, 0)
        self.relays: dict[str, Relay] = {}
        self.relay_leases: dict[str, str] = {}

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def may_run(self, room: Room) -> bool:
        return not room.mode and not self.mode

    # Messages. ----------------------------------------------------------------------------------------

    def enqueue(self, room: Room, key: str, limit: int, body: bytes) -> Expected:
        if key in self.seen:
            message, of = self.seen[key]
            return ("ok", message) if of == room.name else ("conflict", of)
        if len(room.queue) >= limit:
            return ("full", str(len(room.queue)))
        message = self._append(room, body)
        self.seen[key] = (message, room.name)
        return ("ok", message)

    def _append(self, room: Room, body: bytes) -> str:
        message = f"{self.tick()}-0"
        self.bodies[message] = body
        room.queue.append(message)
        return message

    def discard(self, room: Room, message: str, request: str) -> Expected:
        if request in self.requests:
            return self.requests[request]
        if room.live is not None and room.live.message == message:
            return ("processing", room.live.abort or room.live.deferred)
        if message not in room.queue:
            return ("unknown", "")
        begun = room.begun and room.queue[0] == message
        room.send("discarded", message, 0, 0)
        room.end_message(message, "discarded" if begun else "discarded unread")
        self.requests[request] = ("discarded", "")
        return ("discarded", "")

    def requeue(self, message: str, request: str) -> Expected:
        if request in self.requests:
            return self.requests[request]
        if message not in self.dead:
            return ("unknown", "")
        name, _, _ = self.dead.pop(message)
        new = self._append(self.rooms[name], self.bodies[message])
        self.requests[request] = ("ok", name, new)
        return ("ok", name, new)

    def drop(self, message: str, request: str) -> Expected:
        if request in self.requests:
            return self.requests[request]
        if self.dead.pop(message, None) is None:
            return ("unknown", "")
        self.requests[request] = ("dropped", "")
        return ("dropped", "")

    # Cycles. ------------------------------------------------------------------------------------------

    def answered(self, room: Room, request: str) -> Expected | None:
        """What a request that is sent again must answer; None when it is new."""
        if room.request == request:
            if room.answer is not None:
                return room.answer
            return self._grant(room) if room.live else ("lost", "")
        return ("settled", "") if room.settled and str(room.settled) == request and not room.died else None

    def _grant(self, room: Room) -> Expected:
        assert room.live is not None
        return ("grant", room.live.message, room.live.ticket, room.charged + 1, room.live.abort)

    def claim(self, room: Room, worker: str, incarnation: int, request: str, *, entitled: bool) -> Expected:
        """``entitled``: the ready entry was pending for this worker. A request that was answered before grants nothing new."""
        lease = self.leases.get(worker, 0)
        if lease > incarnation:
            return ("superseded", str(lease))
        if (before := self.answered(room, request)) is not None:
            return before
        if not entitled or request in room.claims:
            return ("lost", "")
        room.claims.add(request)
        room.owner = worker
        if room.live is not None:
            self._bury(room)
        return self._take(room, request)

    def _bury(self, room: Room) -> None:
        """A cycle whose worker died: invariant 6 charges it, unless it had been aborted."""
        cycle = room.end_cycle()
        room.died = True
        if cycle.abort == "interrupt" or (not cycle.abort and cycle.deferred == "interrupt"):
            room.consume(cycle.message, cycle.ticket, cycle.seq + 1)
        elif cycle.abort == "stop":
            room.send("aborted", cycle.message, cycle.ticket, cycle.seq + 1, why="stop")
        else:
            room.charged, room.error = room.charged + 1, "the worker died"
            room.send("failed", cycle.message, cycle.ticket, cycle.seq + 1, why=room.error)

    def _take(self, room: Room, request: str) -> Expected:
        """Invariants 2, 4 and 6: the head of the queue and no other, only while playing, and with its exact attempt."""
        while True:
            answer: Expected
            if not room.queue:
                answer = ("empty", "")
            elif not self.may_run(room):
                answer = ("held", "")
            elif room.retry:
                answer = ("backoff", "")
            elif room.charged >= self.terms.max_attempts:
                self._bury_message(room, room.error, room.charged)
                continue
            else:
                room.live = Cycle(self.tick(), room.queue[0], self.terms.shielded)
                room.begun = True
                room.remember(request, None)
                return self._grant(room)
            room.remember(request, answer)
            return answer

    def _bury_message(self, room: Room, error: str, attempts: int) -> None:
        message = room.queue[0]
        self.dead[message] = (room.name, attempts, error)
        room.send("dead", message, room.settled, 0, why=error)
        room.end_message(message, "dead")

    def _superseded(self, room: Room, cycle: Cycle) -> bool:
        """Whether whoever ran the cycle has begun anew since."""
        return not cycle.adopted and self.leases.get(room.owner, 0) > cycle.ticket

    def _go_on(self, room: Room, cycle: Cycle, *, take_next: bool) -> Expected:
        if take_next and not cycle.adopted and not self._superseded(room, cycle):
            return self._take(room, str(cycle.ticket))
        room.remember(str(cycle.ticket), ("released", ""))
        return ("released", "")

    def commit(self, room: Room, ticket: int, *, take_next: bool, state: bytes, reply: bytes) -> Expected:
        if (before := self.answered(room, str(ticket))) is not None:
            return before
        if why := room.refused(ticket):
            return (why, "")
        cycle = room.end_cycle()
        room.set_state(state)
        room.send("reply", cycle.message, ticket, cycle.seq + 1, reply)
        room.end_message(cycle.message, "committed")
        return self._go_on(room, cycle, take_next=take_next)

    def settle(
        self, room: Room, ticket: int, how: str, *, take_next: bool, state: bytes, closing: bytes, error: str, retry_ms: int
    ) -> Expected:
        if (before := self.answered(room, str(ticket))) is not None:
            return before
        if room.live is None or room.live.ticket != ticket:
            return ("fenced", "")
        aborted = room.live.abort or ("interrupt" if room.live.deferred == "interrupt" else "")
        if aborted and how != {"interrupt": "consume", "stop": "release"}[aborted]:
            return (aborted, "")
        if how == "consume" and not aborted:
            return ("refused", "")
        cycle = room.end_cycle()
        seq = cycle.seq + 1
        if how == "consume":
            room.set_state(state)
            if closing:
                room.send("chunk", cycle.message, ticket, seq, closing)
                room.outbox[-1].closing = True
                seq += 1
            room.consume(cycle.message, ticket, seq)
        elif how == "release":
            room.send("aborted", cycle.message, ticket, seq, why=aborted or "release")
        elif how == "too_new":
            if cycle.seq:
                room.send("aborted", cycle.message, ticket, seq, why="release")
            news = "" if error == room.error else error
            room.error, room.retry = error, retry_ms > 0
            room.remember(str(ticket), ("released", news))
            return ("released", news)
        elif how == "reject":
            self._bury_message(room, error, room.charged + 1)
        else:
            room.charged, room.error = room.charged + 1, error
            room.send("failed", cycle.message, ticket, seq, why=error)
            wait = retry_ms if room.charged < self.terms.max_attempts else 0
            room.retry = wait > 0
            if take_next and self.may_run(room) and not self._superseded(room, cycle):
                room.remember(str(ticket), ("failed", str(wait)))
                return ("failed", str(wait))
        return self._go_on(room, cycle, take_next=take_next)

    def emit(self, room: Room, ticket: int, first: int, bodies: list[bytes]) -> Expected:
        if why := room.refused(ticket):
            return (why, "")
        cycle = room.live
        assert cycle is not None
        for seq, body in enumerate(bodies, first):
            if seq > cycle.seq:
                room.send("chunk", cycle.message, ticket, seq, body)
                cycle.seq = seq
        return ("ok", str(cycle.seq))

    def step(self, room: Room, ticket: int, name: str, act: str, result: bytes) -> Expected:
        if why := room.refused(ticket):
            return (why, b"")
        if act == "done":
            room.steps[name] = b"!" + result
            return ("ok", b"")
        value, mine = room.steps.get(name), b"?%d" % ticket
        if act == "failed":
            if value == mine:
                del room.steps[name]
            return ("ok", b"")
        if value is not None and value[:1] == b"!":
            return ("done", value[1:])
        if value not in (None, mine) and act != "again":
            return ("unknown", b"")
        room.steps[name] = mine
        return ("run", b"")

    def shield(self, room: Room, ticket: int, *, up: bool) -> Expected:
        if why := room.refused(ticket):
            return (why, "")
        cycle = room.live
        assert cycle is not None
        cycle.shield = up
        if not up:
            cycle.abort, cycle.deferred = cycle.deferred, ""
        return (cycle.abort or "ok", "")

    # Workers. -----------------------------------------------------------------------------------------

    def join(self, worker: str) -> Expected:
        self.leases[worker] = self.tick()
        return ("ok", str(self.clock))

    def beat(self, worker: str, incarnation: int) -> Expected:
        lease = self.leases.get(worker)
        if lease is not None and lease > incarnation:
            return ("superseded", str(lease))
        self.leases[worker] = incarnation
        return ("lapsed" if lease is None else "ok", str(incarnation))

    def leave(self, worker: str, incarnation: int) -> Expected:
        lease = self.leases.get(worker, incarnation)
        if lease != incarnation:
            return ("superseded", str(lease))
        self.leases.pop(worker, None)
        return ("ok", "")
