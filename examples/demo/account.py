"""The account: what became of every message, from Redis and from the record outside it, and whether that is as promised."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from greenroom import Kind, Output

from .record import Record, Signalled, ending, place

OUTBOX_KEEPS = 1000  # outputs a room, or a few more
SPEECH = (Kind.CHUNK, Kind.REPLY)  # what a customer gets to see


@dataclass
class Snapshot:
    """What Redis has at the end."""

    queued: dict[str, list[int]] = field(default_factory=dict)
    outboxes: dict[str, list[Output]] = field(default_factory=dict)
    dead: list[int] = field(default_factory=list)
    questions: dict[str, int] = field(default_factory=dict)  # how many the agent remembers of each room


@dataclass
class Account:
    """The numbers, and what is wrong with them: nothing, if all is well."""

    sent: int = 0
    committed: int = 0
    interrupted: int = 0
    dead: int = 0
    waiting: int = 0
    lost: int = 0
    ended_twice: int = 0
    late: int = 0
    out_of_order: int = 0
    replayed: int = 0
    replayed_after_crash: int = 0
    wrong: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The numbers as a table."""
        return [
            f"sent                                  {self.sent:5}",
            f"  committed: answered to the end      {self.committed:5}",
            f"  interrupted: ended on purpose       {self.interrupted:5}",
            f"  dead letters                        {self.dead:5}",
            f"  still waiting                       {self.waiting:5}",
            f"lost                                  {self.lost:5}",
            f"ended twice                           {self.ended_twice:5}",
            f"sent after a stop or an interrupt     {self.late:5}",
            f"out of order                          {self.out_of_order:5}",
            f"cycles replayed                       {self.replayed:5}   of which after a crash {self.replayed_after_crash}",
        ]


def settle(record: Record, redis: Snapshot) -> Account:
    """Account for every message that was accepted."""
    account = Account(sent=len(record.sent))
    _count_endings(account, record, redis)
    for room, outputs in record.outputs.items():
        sent = [item.message for item in record.sent if item.room == room]
        account.late += _say(account, _late(outputs, [signal for signal in record.signals if signal.room == room]), room)
        account.out_of_order += _say(account, _out_of_order(outputs, sent), room)
        tickets = {(output.message, output.ticket) for output in outputs}
        account.replayed += len(tickets) - len({message for message, _ in tickets})
        account.replayed_after_crash += sum(output.kind is Kind.FAILED for output in outputs)
    _cross_check(account, record, redis)
    return account


def _say(account: Account, findings: list[str], room: str) -> int:
    account.wrong += [f"room {room}: {finding}" for finding in findings]
    return len(findings)


def _count_endings(account: Account, record: Record, redis: Snapshot) -> None:
    """Every accepted message has ended once, or waits in Redis."""
    endings: dict[int, list[str]] = {}
    for outputs in record.outputs.values():
        for output in outputs:
            if how := ending(output):
                endings.setdefault(output.message, []).append(how)
    waiting = {message for queue in redis.queued.values() for message in queue}
    for sent in record.sent:
        ended = [*endings.pop(sent.message, []), *["waiting"] * (sent.message in waiting)]
        if len(ended) > 1:
            account.ended_twice += 1
            account.wrong.append(f"room {sent.room}: message {sent.message} ended more than once: {', '.join(ended)}")
        elif not ended:
            account.lost += 1
            account.wrong.append(f"room {sent.room}: message {sent.message} is lost: {sent.text!r}")
    ends = Counter(how for room in record.outputs.values() for output in room if (how := ending(output)))
    account.committed, account.interrupted, account.dead = ends["committed"], ends["interrupted"], ends["dead"]
    account.waiting = len(waiting)
    account.wrong += [f"message {message} ended, but nobody had sent it" for message in endings]
    if account.sent != account.committed + account.interrupted + account.dead + account.waiting:
        account.wrong.append("sent is not committed + interrupted + dead + waiting")


def _late(outputs: list[Output], signals: list[Signalled]) -> list[str]:
    """Speech of a cycle that had been stopped or interrupted, or had ended, and speech of a room while it was stopped."""
    late: dict[str, str] = {}
    over: set[int] = set()
    for output in outputs:
        if output.kind in SPEECH and output.ticket in over:
            late[output.id] = f"output {output.id} came after the end of its cycle"
        if output.kind is not Kind.CHUNK:
            over.add(output.ticket)
    for index, signal in enumerate(signals):
        speech = [output for output in outputs if output.kind in SPEECH and place(output.id) > place(signal.after)]
        if signal.outcome != "applied":
            continue
        if signal.mode == "interrupt":
            found = [output for output in speech if output.message == signal.message]
        elif signal.mode == "stop":
            play = next((later.before for later in signals[index:] if later.mode == "play"), None)
            live = {output.ticket for output in outputs if place(output.id) <= place(signal.after)}
            found = [o for o in speech if play is None or place(o.id) <= place(play) or o.ticket in live]
        else:
            continue
        late |= {output.id: f"output {output.id} came after the {signal.mode} had answered" for output in found}
    return list(late.values())


def _out_of_order(outputs: list[Output], sent: list[int]) -> list[str]:
    """A message begins only after the one that was sent before it has ended."""
    first: dict[int, int] = {}
    end: dict[int, int] = {}
    for index, output in enumerate(outputs):
        first.setdefault(output.message, index)
        if ending(output):
            end.setdefault(output.message, index)
    begun = [message for message in sent if message in first]
    findings = [
        f"message {later} began before message {earlier} had ended"
        for earlier, later in pairwise(begun)
        if earlier not in end or end[earlier] > first[later]
    ]
    if sent != sorted(sent):
        findings.append("the ids of its messages are not in the order of sending")
    return findings


def _cross_check(account: Account, record: Record, redis: Snapshot) -> None:
    """What Redis says and what was seen from outside must be the same thing."""
    rooms_of = {sent.message: sent.room for sent in record.sent}
    for room, queue in redis.queued.items():
        _say(account, [f"message {m} waits, but nobody had sent it" for m in queue if rooms_of.get(m) != room], room)
    if len(redis.dead) != account.dead:
        account.wrong.append(f"{account.dead} messages were seen to die, but Redis has {len(redis.dead)} dead letters")
    for room in {*record.outputs, *redis.outboxes}:
        seen, kept = record.outputs.get(room, []), redis.outboxes.get(room, [])
        if len({output.id for output in seen}) != len(seen):
            account.wrong.append(f"room {room}: an output was seen twice")
        # Redis drops the oldest outputs of a long conversation: what it has must be the latest that was seen.
        if len(kept) < min(len(seen), OUTBOX_KEEPS) or kept != seen[len(seen) - len(kept) :]:
            account.wrong.append(f"room {room}: what was seen of it is not what its outbox has")
    for room, questions in redis.questions.items():
        committed = sum(output.kind is Kind.REPLY for output in record.outputs.get(room, ()))
        if questions != committed:
            account.wrong.append(f"room {room}: the agent remembers {questions} questions, but {committed} were answered")
