"""The ledger, kept outside Redis: what was sent and signalled, and all that was seen, in memory and in a file."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from demo.record import ending, place

from greenroom import Kind, Output, Receipt

Place = tuple[int, int]  # of an entry in its stream: the server's time in ms, and a number within it
SETTLE_S = 0.5  # for which a worker may still be busy with what troubled it


def now_ms() -> int:
    """The time by this machine's clock, which is also the server's."""
    return int(time.time() * 1000)


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that Redis has accepted. ``key`` is empty for one that was put back from the dead letters."""

    room: str
    message: int
    key: str
    sender: str
    doomed: bool = False  # it rejects itself, however few attempts it has had


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal that was answered: its receipts, and where the outbox of each room was just after that."""

    cid: str
    mode: str
    rooms: tuple[str, ...]
    receipts: tuple[Receipt, ...]
    positions: dict[str, Place]


@dataclass(frozen=True, slots=True)
class Control:
    """An entry of the control stream: what a signal did to one room, or (``room`` None) to the agent as a whole.

    ``upto`` is the agent's clock at that instant: a cycle with a ticket up to it had been granted before, any other was not.
    """

    place: Place
    mode: str
    room: str | None
    cid: str
    outcome: str
    upto: int


@dataclass(frozen=True, slots=True)
class Seen:
    """An output that a follower saw. ``end`` says how it ended its message for good, if it did.

    ``said`` is the body, which tells of the attempt, and in a reply of the room's counter.
    """

    place: Place
    kind: Kind
    message: int
    ticket: int
    seq: int
    end: str | None = None
    said: Any = None

    @property
    def is_speech(self) -> bool:
        return self.kind in (Kind.CHUNK, Kind.REPLY)

    @property
    def of_cycle(self) -> bool:
        """Whether a cycle sent it; a discarded message and one that ends while it waits have no cycle."""
        return self.seq > 0


@dataclass(frozen=True, slots=True)
class Death:
    """A worker that was killed, and the cycles (room, ticket) that it left behind."""

    worker: str
    at_ms: int
    same_name: bool
    cycles: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Adoption:
    """A worker was given a room of one that is dead."""

    room: str
    worker: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """The time for which something kept a worker from its work: it was suspended, starting or ending; or (``worker`` None) kept
    all of them: Redis was away, or had cut them off.
    """

    worker: str | None
    since_ms: int
    until_ms: int


@dataclass
class Ledger:
    """Everything that was done and observed. ``path`` gets a JSON line for each; None keeps no file."""

    path: Path | None = None
    sent: list[Sent] = field(default_factory=list)
    signals: list[Signalled] = field(default_factory=list)
    control: list[Control] = field(default_factory=list)
    by_hand: set[str] = field(default_factory=set)  # entries of the control stream that no script wrote
    outputs: dict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    deaths: list[Death] = field(default_factory=list)
    adoptions: list[Adoption] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    discarded: set[int] = field(default_factory=set)  # as the calls that did so answered
    requeued: int = 0
    open: set[int] = field(default_factory=set)  # sent, and not ended
    ended: set[int] = field(default_factory=set)
    events: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)  # what the chaos did
    violations: list[str] = field(default_factory=list)  # seen on the way; the account adds to them

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._file = self.path.open("a", encoding="utf-8") if self.path is not None else None
        self._watchers: set[asyncio.Event] = set()
        self._rooms: dict[int, str] = {}

    def add_sent(self, sent: Sent) -> None:
        self.sent.append(sent)
        self._rooms[sent.message] = sent.room
        if sent.message not in self.ended:
            self.open.add(sent.message)
        self._write("sent", asdict(sent))

    def add_signal(self, cid: str, mode: str, rooms: Sequence[str], receipts: Iterable[Receipt], at: dict[str, Place]) -> None:
        signal = Signalled(cid, mode, tuple(rooms), tuple(receipts), at)
        self.signals.append(signal)
        outcomes = {receipt.room or "": f"{receipt.outcome} {receipt.message or ''}" for receipt in signal.receipts}
        self._write("signal", {"cid": cid, "mode": mode, "rooms": signal.rooms, "outcomes": outcomes, "positions": at})

    def add_control(self, entry: Control) -> None:
        self.control.append(entry)
        self._write("control", asdict(entry))

    def add_output(self, room: str, output: Output) -> None:
        body = output.body if output.kind in (Kind.CHUNK, Kind.REPLY) else None
        where, how = place(output.id), ending(output)
        seen = Seen(where, output.kind, output.message, output.ticket, output.seq, how, body)
        self.outputs[room].append(seen)
        if how:
            self.ended.add(seen.message)
            self.open.discard(seen.message)
        self._write("output", {"room": room, **asdict(seen), "mode": output.mode, "error": output.error})

    def add_death(self, death: Death) -> None:
        self.deaths.append(death)
        self._write("death", asdict(death))

    def add_adoption(self, adoption: Adoption) -> None:
        self.adoptions.append(adoption)
        self._write("adoption", asdict(adoption))

    def add_trouble(self, trouble: Trouble) -> None:
        self.troubles.append(trouble)
        self._write("trouble", asdict(trouble))

    @contextmanager
    def trouble(self, worker: str | None, settle_s: float = SETTLE_S) -> Iterator[None]:
        """What is done here troubles ``worker``, or all of them, and for ``settle_s`` longer."""
        since_ms = now_ms()
        try:
            yield
        finally:
            self.add_trouble(Trouble(worker, since_ms, now_ms() + int(settle_s * 1000)))

    def did(self, what: str, detail: str = "") -> None:
        """Count something that the chaos did."""
        self.done[what] += 1
        self._write("did", {"did": what, "detail": detail})

    def complain(self, what: str) -> None:
        """Note something that must not be, whatever the account says."""
        self.violations.append(what)
        self._write("violation", {"violation": what})

    def room_of(self, message: int) -> str:
        return self._rooms[message]

    def last(self, room: str) -> Place:
        """Where the last output was that was seen of a room."""
        outputs = self.outputs.get(room)
        return outputs[-1].place if outputs else (0, 0)

    def _write(self, what: str, row: dict[str, Any]) -> None:
        if self._file is not None:
            line = {"at_s": round(time.monotonic() - self._began, 3), "what": what, **row}
            self._file.write(json.dumps(line) + "\n")
        for watcher in self._watchers:
            watcher.set()

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    async def wait_for(self, condition: Callable[[], bool], deadline_s: float) -> bool:
        """Wait until ``condition`` holds, which is looked at whenever something was written; answer whether it came in time."""
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            async with asyncio.timeout(deadline_s):
                while not condition():
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            return condition()
        finally:
            self._watchers.discard(changed)
        return True
