"""The account: what became of every message, from the ledger and from Redis, and whether that is as promised."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from .ledger import Ledger, Place, Seen
from .rooms import Finding, RoomReading
from .signals import Signals, held

OUTBOX_KEEPS = 1000  # outputs a room, or a few more


@dataclass
class Snapshot:
    """What Redis has at the end. ``outboxes``: the places of what is left of each; ``leftover``: what should be gone."""

    queued: dict[str, list[int]] = field(default_factory=dict)
    outboxes: dict[str, list[Place]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    dead: int = 0
    leftover: list[str] = field(default_factory=list)


@dataclass
class Account:
    """The numbers, and what is wrong: nothing, if the account holds."""

    sent: int = 0
    requeued: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    waiting: int = 0
    lost: int = 0
    ended_twice: int = 0
    late: int = 0
    out_of_order: int = 0
    replays: int = 0
    crashes: int = 0
    wrong: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The numbers as a table."""
        return [
            f"sent                                  {self.sent:7}   of which put back from the dead letters {self.requeued}",
            f"  committed                           {self.ends['committed']:7}",
            f"  interrupted                         {self.ends['interrupted']:7}",
            f"  dead                                {self.ends['dead']:7}",
            f"  discarded                           {self.ends['discarded']:7}",
            f"  waiting                             {self.waiting:7}",
            f"lost                                  {self.lost:7}",
            f"ended twice                           {self.ended_twice:7}",
            f"sent after a stop or an interrupt     {self.late:7}",
            f"out of order                          {self.out_of_order:7}",
            f"cycles replayed                       {self.replays:7}   failed or crashed {self.crashes}",
        ]


def settle(ledger: Ledger, redis: Snapshot) -> Account:
    """Account for every message that was accepted, and for every signal."""
    account = Account(sent=len(ledger.sent), requeued=ledger.requeued, wrong=list(ledger.violations))
    signals = Signals(ledger.control, ledger.signals)
    accepted, doomed = defaultdict[str, list[int]](list), frozenset(sent.message for sent in ledger.sent if sent.doomed)
    for sent in ledger.sent:
        accepted[sent.room].append(sent.message)
    ends: dict[int, list[str]] = {}
    for room in sorted({*accepted, *ledger.outputs, *redis.queued}):
        reading = RoomReading(accepted[room], doomed)
        for output in ledger.outputs.get(room, ()):
            reading.read(output)
        _file_room(account, room, reading, signals, ledger.outputs.get(room, []))
        _check_state(account, room, reading, redis)
        ends |= reading.ends
    _count_ends(account, ledger, redis, ends)
    _check_redis(account, ledger, redis)
    _check_signals(account, ledger, ends)
    _check_senders(account, ledger)
    return account


def _file_room(account: Account, room: str, reading: RoomReading, signals: Signals, outputs: list[Seen]) -> None:
    for output, mode in signals.late(room, outputs):
        reading.find_late(output, f"came after a {mode} had answered")
    holds = signals.holds(room)
    began = {output.ticket: output for output in reversed(outputs) if output.of_cycle}
    for ticket, output in began.items():
        if held(ticket, holds):
            reading.find_late(output, "was granted while the room was held")
    account.late += _say(account, room, list(reading.late.values()))
    account.out_of_order += _say(account, room, reading.out_of_order)
    _say(account, room, reading.wrong)
    account.replays += reading.replays
    account.crashes += reading.crashes


def _say(account: Account, room: str, findings: list[Finding]) -> int:
    account.wrong += [f"room {room}, message {message}: {what}" for message, what in findings]
    return len(findings)


def _check_state(account: Account, room: str, reading: RoomReading, redis: Snapshot) -> None:
    if redis.counts.get(room, 0) != reading.commits:
        account.wrong.append(f"room {room}: its state counts {redis.counts.get(room, 0)}, but {reading.commits} were committed")


def _count_ends(account: Account, ledger: Ledger, redis: Snapshot, ends: dict[int, list[str]]) -> None:
    """Every accepted message has ended once, or waits in Redis."""
    waiting = {message: room for room, queue in redis.queued.items() for message in queue}
    account.waiting = len(waiting)
    for sent in ledger.sent:
        how = [*ends.get(sent.message, ()), *["waiting"] * (waiting.pop(sent.message, None) is not None)]
        account.ends.update(how)
        if len(how) > 1:
            account.ended_twice += 1
            account.wrong.append(f"room {sent.room}, message {sent.message}: ended more than once: {', '.join(how)}")
        elif not how:
            account.lost += 1
            account.wrong.append(f"room {sent.room}, message {sent.message}: lost (key {sent.key!r})")
        elif how == ["waiting"]:
            account.wrong.append(f"room {sent.room}, message {sent.message}: still waits, though everything plays")
    account.wrong += [f"room {room}, message {message}: waits, but nobody had sent it" for message, room in waiting.items()]
    if account.sent != sum(account.ends.values()):
        account.wrong.append("sent is not committed + interrupted + dead + discarded + waiting")


def _check_redis(account: Account, ledger: Ledger, redis: Snapshot) -> None:
    """What Redis has and what was seen from outside must be the same thing."""
    account.wrong += [f"left in Redis: {what}" for what in redis.leftover]
    if redis.dead != account.ends["dead"] - ledger.requeued:
        died = f"{account.ends['dead']} messages died and {ledger.requeued} were put back"
        account.wrong.append(f"{died}, but Redis has {redis.dead} dead letters")
    for room in sorted({*ledger.outputs, *redis.outboxes}):
        seen, kept = [output.place for output in ledger.outputs.get(room, ())], redis.outboxes.get(room, [])
        if len(kept) < min(len(seen), OUTBOX_KEEPS) or kept != seen[len(seen) - len(kept) :]:
            account.wrong.append(f"room {room}: what was seen of it is not what its outbox has")


def _check_signals(account: Account, ledger: Ledger, ends: dict[int, list[str]]) -> None:
    """A signal is in the control stream once, as it was answered, and what it interrupted has ended by that."""
    entries = Counter((entry.cid, entry.room) for entry in ledger.control)
    outcomes = {(entry.cid, entry.room): entry.outcome for entry in ledger.control}
    account.wrong += [f"room {room}, signal {cid}: applied {n} times" for (cid, room), n in entries.items() if n > 1]
    for signal in ledger.signals:
        for receipt in signal.receipts:
            if outcomes.get((signal.cid, receipt.room)) != receipt.outcome:
                found = outcomes.get((signal.cid, receipt.room))
                account.wrong.append(
                    f"room {receipt.room}, signal {signal.cid}: answered {receipt.outcome}, but shows as {found}"
                )
            applied = receipt.mode == "interrupt" and receipt.outcome == "applied" and receipt.message is not None
            if applied and receipt.message is not None and ends.get(receipt.message) != ["interrupted"]:
                how = ends.get(receipt.message)
                account.wrong.append(f"room {receipt.room}, message {receipt.message}: interrupted, but ended as {how}")
    for entry in sorted(ledger.by_hand - {entry.cid for entry in ledger.control}):
        account.wrong.append(f"signal {entry}, written by hand: never applied")
    for message in sorted(ledger.discarded):
        if ends.get(message) != ["discarded"]:
            room = ledger.room_of(message)
            account.wrong.append(f"room {room}, message {message}: discarded, but ended as {ends.get(message)}")


def _check_senders(account: Account, ledger: Ledger) -> None:
    """Each message has an id of its own, and ids follow the order in which one sender sent."""
    ids = Counter(sent.message for sent in ledger.sent)
    account.wrong += [
        f"message {message}: {count} sends were answered with this id" for message, count in ids.items() if count > 1
    ]
    last: dict[tuple[str, str], int] = {}
    for sent in ledger.sent:
        if sent.sender and sent.message <= last.get((sent.room, sent.sender), 0):
            account.out_of_order += 1
            account.wrong.append(f"room {sent.room}, message {sent.message}: sent after one with a higher id")
        last[sent.room, sent.sender] = sent.message
