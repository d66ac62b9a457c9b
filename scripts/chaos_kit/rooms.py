"""What must be so of one room's outputs, read once in their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from greenroom import Kind

from .agent import MAX_ATTEMPTS
from .ledger import Place, Seen

Finding = tuple[int, str]  # the message, and what is wrong with it


@dataclass
class RoomReading:
    """Reads a room. ``accepted`` are its messages; what is found is sorted by the line of the account that it belongs to."""

    accepted: Iterable[int]
    doomed: frozenset[int] = frozenset()
    ends: dict[int, list[str]] = field(default_factory=dict)
    late: dict[Place, Finding] = field(default_factory=dict)  # by output: each is late once, for whatever reason
    out_of_order: list[Finding] = field(default_factory=list)
    wrong: list[Finding] = field(default_factory=list)
    commits: int = 0
    replays: int = 0
    crashes: int = 0

    def __post_init__(self) -> None:
        self._queue = sorted(self.accepted)
        self._known = set(self._queue)
        self._head = 0  # the first of the queue that has not ended
        self._newest = 0  # the newest ticket
        self._closed: set[int] = set()
        self._seq: Counter[int] = Counter()
        self._failures: Counter[int] = Counter()
        self._begun: set[int] = set()
        self._jumped: set[int] = set()

    def read(self, output: Seen) -> None:
        """Take the room's next output."""
        if output.message not in self._known:
            self.wrong.append((output.message, f"nobody had sent it, but there is a {output.kind} of it"))
            return
        self._read_order(output)
        if output.of_cycle:
            self._read_cycle(output)
        self._read_message(output)

    def find_late(self, output: Seen, why: str) -> None:
        """Note an output that should not have been accepted."""
        self.late.setdefault(output.place, (output.message, f"{output.kind} {output.seq} of ticket {output.ticket} {why}"))

    def _find_closed(self, output: Seen, why: str) -> None:
        if output.is_speech:
            self.find_late(output, why)
        else:
            self.wrong.append((output.message, f"{output.kind} of ticket {output.ticket} {why}"))

    def _read_order(self, output: Seen) -> None:
        while self._head < len(self._queue) and self._queue[self._head] in self.ends:
            self._head += 1
        if output.kind is Kind.DISCARDED or self._head == len(self._queue) or output.message in self._jumped:
            return
        head = self._queue[self._head]
        if head < output.message:
            self._jumped.add(output.message)
            self.out_of_order.append((output.message, f"began before message {head} had ended"))

    def _read_cycle(self, output: Seen) -> None:
        ticket = output.ticket
        if ticket > self._newest:
            self._newest = ticket
            self.replays += output.message in self._begun
            self._begun.add(output.message)
        elif ticket < self._newest:
            self.find_late(output, f"came after ticket {self._newest} had begun")
        elif ticket in self._closed:
            self._find_closed(output, "came after that cycle had ended")
        self._seq[ticket] += 1
        if output.seq != self._seq[ticket]:
            self.wrong.append((output.message, f"output {self._seq[ticket]} of ticket {ticket} has number {output.seq}"))
            self._seq[ticket] = output.seq
        if output.kind is not Kind.CHUNK:
            self._closed.add(ticket)

    def _read_message(self, output: Seen) -> None:
        message, ends = output.message, self.ends.get(output.message)
        if ends and not output.end:
            self._find_closed(output, f"came after the message had ended ({ends[0]})")
        if output.end:
            self.ends.setdefault(message, []).append(output.end)
        attempt = 1 + self._failures[message]
        if output.is_speech and output.said.get("attempt") != attempt:
            self.wrong.append((message, f"attempt {attempt}, but its handler was told {output.said.get('attempt')}"))
        if output.kind is Kind.FAILED:
            self._failures[message] += 1
            self.crashes += 1
        elif output.kind is Kind.REPLY:
            self.commits += 1
            if output.said.get("count") != self.commits:
                self.wrong.append(
                    (message, f"commit {self.commits} of the room counted {output.said.get('count')} in its state")
                )
        elif output.kind is Kind.DEAD and message not in self.doomed and attempt != MAX_ATTEMPTS + 1:
            self.wrong.append((message, f"a dead letter after {attempt - 1} failures of {MAX_ATTEMPTS}"))
