"""A short chaos, as people run it; and its account, which must not hold when the ledger says that it cannot."""

from __future__ import annotations

import datetime as dt
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from greenroom import Kind, Mode, Outcome, Output, Receipt

ROOT = Path(__file__).resolve().parents[2]
PATHS = [ROOT / "scripts", ROOT / "examples"]
DEADLINE_S = 240

Evidence = tuple[Any, Any]
Falsify = Callable[[Any, Any], None]


def chaos(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [ROOT / "src", *PATHS])), "TMPDIR": str(folder)}
    command = [sys.executable, "-P", "-m", "chaos_kit", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=DEADLINE_S)


@pytest.mark.timeout(DEADLINE_S + 30)
def test_the_account_of_a_short_chaos_holds(tmp_path: Path) -> None:
    done = chaos("--minutes", "0.25", "--seed", "7", folder=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 7" in done.stdout
    for nothing in ("waiting", "lost", "ended twice", "sent after a stop or an interrupt", "out of order"):
        assert re.search(rf"^ *{nothing} +0$", done.stdout, re.MULTILINE), nothing
    for something in ("sent", "committed", "started"):
        assert re.search(rf"^ *{something} +[1-9]", done.stdout, re.MULTILINE), something
    assert not list(tmp_path.iterdir())


def test_a_duration_of_nothing_is_refused_in_one_line(tmp_path: Path) -> None:
    done = chaos("--minutes", "0", folder=tmp_path)

    assert done.returncode == 2
    assert "--minutes: want more than 0, got 0.0" in done.stderr


# The account. -----------------------------------------------------------------------------------------


@pytest.fixture
def evidence(monkeypatch: pytest.MonkeyPatch) -> Evidence:
    """An honest ledger of one room, and what Redis has of it: messages 1 to 6 committed, interrupted, stopped and played,
    failed once, dead, and discarded.
    """
    for path in PATHS:
        monkeypatch.syspath_prepend(path)
    ledger = importlib.import_module("chaos_kit.ledger").Ledger()
    for message in range(1, 7):
        accept(ledger, message, doomed=message == 5)
    for number, row in enumerate(OUTPUTS):
        say(ledger, None, 10 * number + 10, *row)
    signal(ledger, 35, Mode.INTERRUPT, 102, message=2)
    signal(ledger, 55, Mode.STOP, 103, message=3)
    signal(ledger, 65, Mode.PLAY, 110)
    ledger.discarded.add(6)
    snapshot = importlib.import_module("chaos_kit.account").Snapshot
    places = [output.place for output in ledger.outputs["ana"]]
    return ledger, snapshot(queued={"ana": []}, outboxes={"ana": places}, counts={"ana": 3}, dead=1)


# Kind, message, ticket, number, and what the body or the abort says; at the times 10, 20 and so on.
Row = tuple[Kind, int, int, int, Any]
OUTPUTS: list[Row] = [
    (Kind.CHUNK, 1, 101, 1, {"attempt": 1}),
    (Kind.REPLY, 1, 101, 2, {"attempt": 1, "count": 1}),
    (Kind.CHUNK, 2, 102, 1, {"attempt": 1}),
    (Kind.ABORTED, 2, 102, 2, "interrupt"),
    (Kind.CHUNK, 3, 103, 1, {"attempt": 1}),
    (Kind.ABORTED, 3, 103, 2, "stop"),
    (Kind.REPLY, 3, 111, 1, {"attempt": 1, "count": 2}),
    (Kind.CHUNK, 4, 112, 1, {"attempt": 1}),
    (Kind.FAILED, 4, 112, 2, None),
    (Kind.REPLY, 4, 113, 1, {"attempt": 2, "count": 3}),
    (Kind.DEAD, 5, 114, 0, None),
    (Kind.DISCARDED, 6, 0, 0, None),
]
AFTER = 10 * len(OUTPUTS) + 10


def accept(ledger: Any, message: int, *, doomed: bool = False) -> None:
    sent = importlib.import_module("chaos_kit.ledger").Sent
    ledger.add_sent(sent("ana", message, f"key-{message}", "sender", doomed))


def say(ledger: Any, redis: Any, at: int, kind: Kind, message: int, ticket: int, seq: int, told: Any) -> None:
    """One more output, at its place in time, which both the ledger and Redis (if given) have."""
    mode = told if kind is Kind.ABORTED else None
    body = None if mode else told
    ledger.add_output("ana", Output(id=f"{at}-0", kind=kind, message=message, ticket=ticket, seq=seq, mode=mode, body=body))
    ledger.outputs["ana"].sort(key=lambda output: output.place)
    if redis is not None:
        redis.outboxes["ana"] = [output.place for output in ledger.outputs["ana"]]


def signal(ledger: Any, at: int, mode: Mode, upto: int, *, message: int | None = None, outcome: str = "applied") -> None:
    """A signal for the room, which the control stream has and whose answer came back."""
    cid = f"{mode}-{at}"
    when = dt.datetime.now(dt.UTC)
    receipt = Receipt(room="ana", mode=mode, outcome=Outcome(outcome), message=message, cid=cid, by="test", reason="", at=when)
    entry = importlib.import_module("chaos_kit.ledger").Control((at, 0), mode.value, "ana", cid, outcome, upto)
    ledger.add_signal(cid, mode.value, ["ana"], [receipt], {"ana": (at, 0)})
    ledger.add_control(entry)


def settle(evidence: Evidence) -> Any:
    return importlib.import_module("chaos_kit.account").settle(*evidence)


def test_the_account_of_an_honest_ledger_holds(evidence: Evidence) -> None:
    account = settle(evidence)

    assert account.wrong == []
    assert account.sent == 6
    assert account.ends == {"committed": 3, "interrupted": 1, "dead": 1, "discarded": 1}
    assert (account.waiting, account.lost, account.ended_twice, account.late, account.out_of_order) == (0, 0, 0, 0, 0)
    assert (account.replays, account.crashes) == (2, 1)


def lose_a_message(ledger: Any, redis: Any) -> None:
    accept(ledger, 7)


def end_a_message_twice(ledger: Any, redis: Any) -> None:
    say(ledger, redis, AFTER, Kind.REPLY, 1, 120, 1, {"attempt": 1, "count": 4})


def leave_an_ended_message_in_the_queue(ledger: Any, redis: Any) -> None:
    redis.queued["ana"] = [4]


def speak_after_the_interrupt(ledger: Any, redis: Any) -> None:
    say(ledger, redis, 37, Kind.CHUNK, 2, 102, 2, {"attempt": 1})


def speak_after_the_stop(ledger: Any, redis: Any) -> None:
    say(ledger, redis, 57, Kind.CHUNK, 3, 103, 2, {"attempt": 1})


def speak_of_a_replaced_cycle(ledger: Any, redis: Any) -> None:
    say(ledger, redis, 95, Kind.CHUNK, 4, 111, 2, {"attempt": 1})


def speak_after_the_end_of_the_cycle(ledger: Any, redis: Any) -> None:
    say(ledger, redis, 25, Kind.CHUNK, 1, 101, 3, {"attempt": 1})


def begin_while_held(ledger: Any, redis: Any) -> None:
    signal(ledger, 1, Mode.PAUSE, 100)
    signal(ledger, 12, Mode.PLAY, 101)


def begin_before_the_one_before_has_ended(ledger: Any, redis: Any) -> None:
    say(ledger, redis, 5, Kind.CHUNK, 4, 100, 1, {"attempt": 1})


def accept_out_of_turn(ledger: Any, redis: Any) -> None:
    ledger.sent[0], ledger.sent[1] = ledger.sent[1], ledger.sent[0]


@pytest.mark.parametrize(
    ("falsify", "finding"),
    [
        (lose_a_message, "lost"),
        (end_a_message_twice, "ended_twice"),
        (leave_an_ended_message_in_the_queue, "ended_twice"),
        (speak_after_the_interrupt, "late"),
        (speak_after_the_stop, "late"),
        (speak_of_a_replaced_cycle, "late"),
        (speak_after_the_end_of_the_cycle, "late"),
        (begin_while_held, "late"),
        (begin_before_the_one_before_has_ended, "out_of_order"),
        (accept_out_of_turn, "out_of_order"),
    ],
)
def test_the_account_finds(falsify: Falsify, finding: str, evidence: Evidence) -> None:
    falsify(*evidence)

    account = settle(evidence)

    assert getattr(account, finding) == 1
    assert account.wrong


def test_what_a_shielded_cycle_says_after_a_deferred_interrupt_is_not_late(evidence: Evidence) -> None:
    ledger, _ = evidence
    signal(ledger, 15, Mode.INTERRUPT, 101, message=1, outcome="deferred")

    account = settle(evidence)

    assert account.wrong == []


def miss_an_output(ledger: Any, redis: Any) -> None:
    del redis.outboxes["ana"][4]


def count_a_commit_less(ledger: Any, redis: Any) -> None:
    redis.counts["ana"] = 2


def invent_a_waiting_message(ledger: Any, redis: Any) -> None:
    redis.queued["ana"] = [99]


def invent_an_output(ledger: Any, redis: Any) -> None:
    say(ledger, redis, AFTER, Kind.CHUNK, 99, 120, 1, {"attempt": 1})


def lose_a_dead_letter(ledger: Any, redis: Any) -> None:
    redis.dead = 0


def leave_a_room_held(ledger: Any, redis: Any) -> None:
    redis.leftover = ["held has 1 entries"]


def die_too_early(ledger: Any, redis: Any) -> None:
    accept(ledger, 7)
    say(ledger, redis, AFTER, Kind.DEAD, 7, 113, 0, None)
    redis.dead = 2


def charge_an_attempt_too_many(ledger: Any, redis: Any) -> None:
    accept(ledger, 7)
    say(ledger, redis, AFTER, Kind.REPLY, 7, 120, 1, {"attempt": 2, "count": 4})
    redis.counts["ana"] = 4


def skip_a_number(ledger: Any, redis: Any) -> None:
    accept(ledger, 7)
    say(ledger, redis, AFTER, Kind.REPLY, 7, 120, 2, {"attempt": 1, "count": 4})
    redis.counts["ana"] = 4


def commit_what_was_interrupted(ledger: Any, redis: Any) -> None:
    signal(ledger, AFTER, Mode.INTERRUPT, 114, message=4)


def apply_a_signal_twice(ledger: Any, redis: Any) -> None:
    ledger.add_control(ledger.control[0])


def forget_a_signal(ledger: Any, redis: Any) -> None:
    del ledger.control[0]


def ignore_a_signal_by_hand(ledger: Any, redis: Any) -> None:
    ledger.by_hand.add("1700000000000-0")


def accept_two_as_one(ledger: Any, redis: Any) -> None:
    accept(ledger, 4)


def see_a_worker_end(ledger: Any, redis: Any) -> None:
    ledger.complain("worker w1 ended with 1")


@pytest.mark.parametrize(
    "falsify",
    [
        miss_an_output,
        count_a_commit_less,
        invent_a_waiting_message,
        invent_an_output,
        lose_a_dead_letter,
        leave_a_room_held,
        die_too_early,
        charge_an_attempt_too_many,
        skip_a_number,
        commit_what_was_interrupted,
        apply_a_signal_twice,
        forget_a_signal,
        ignore_a_signal_by_hand,
        accept_two_as_one,
        see_a_worker_end,
    ],
)
def test_the_account_does_not_hold_with(falsify: Falsify, evidence: Evidence) -> None:
    falsify(*evidence)

    assert settle(evidence).wrong


def test_recovery_is_measured_from_the_kill_to_the_end_of_the_dead_cycle(evidence: Evidence) -> None:
    ledger, _ = evidence
    death = importlib.import_module("chaos_kit.ledger").Death
    recovery = importlib.import_module("chaos_kit.recovery")
    ledger.add_death(death("w1", 85, True, (("ana", 112),)))
    ledger.add_death(death("w2", 100, False, (("ana", 999),)))

    assert recovery.recovery_ms(ledger) == {True: [5], False: []}
    assert recovery.unrecovered(ledger.deaths, ledger) == ["room ana: nobody took up ticket 999 of w2, which was killed"]
