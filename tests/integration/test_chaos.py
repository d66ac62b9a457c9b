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
from greenroom.protocol import codec

ROOT = Path(__file__).resolve().parents[2]
PATHS = [ROOT / "scripts", ROOT / "examples"]
DEADLINE_S = 240

Evidence = tuple[Any, Any]
Falsify = Callable[[Any, Any], None]
Kit = Callable[[str], Any]


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
    assert "staged resume: 1,000 rooms in processing, stated pace 200 a second; resumed in " in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_duration_of_nothing_is_refused_in_one_line(tmp_path: Path) -> None:
    done = chaos("--minutes", "0", folder=tmp_path)

    assert done.returncode == 2
    assert "--minutes: want more than 0, got 0.0" in done.stderr


# The account. -----------------------------------------------------------------------------------------


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch) -> Kit:
    """The modules of the chaos, by name."""
    for path in PATHS:
        monkeypatch.syspath_prepend(path)
    return lambda name: importlib.import_module(f"chaos_kit.{name}")


@pytest.fixture
def evidence(kit: Kit) -> Evidence:
    """An honest ledger of one room, and what Redis has of it: messages 1 to 6 committed, interrupted, stopped and played,
    failed once, dead, and discarded.
    """
    ledger = kit("ledger").Ledger()
    for message in range(1, 7):
        accept(ledger, message, doomed=message == 5)
    for number, row in enumerate(OUTPUTS):
        say(ledger, None, 10 * number + 10, *row)
    signal(ledger, 35, Mode.INTERRUPT, 102, message=2)
    signal(ledger, 55, Mode.STOP, 103, message=3)
    signal(ledger, 65, Mode.PLAY, 110)
    ledger.discarded.add(6)
    snapshot = kit("account").Snapshot
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

    assert [(found.ms, found.same_name) for found in recovery.recoveries(ledger)] == [(5, True)]
    assert recovery.unrecovered(ledger.deaths, ledger) == ["room ana: nobody took up ticket 999 of w2, which was killed"]


@pytest.mark.parametrize(
    ("worker", "since_ms", "until_ms", "undisturbed"),
    [
        (None, 0, 1400, False),  # Redis was away, or had cut all off
        ("w3", 1900, 1900, False),
        ("w2", 0, 5000, True),  # another worker's trouble
        (None, 2101, 2500, True),
        ("w3", 0, 1300, True),  # over before the lease could have run out
    ],
)
def test_a_take_over_is_undisturbed_when_nothing_but_the_lease_kept_it_waiting(
    worker: str | None, since_ms: int, until_ms: int, undisturbed: bool, evidence: Evidence, kit: Kit
) -> None:
    ledger, _ = evidence
    module = kit("ledger")
    accept(ledger, 7)
    say(ledger, None, 2100, Kind.FAILED, 7, 120, 1, None)
    ledger.add_death(module.Death("w1", 0, False, (("ana", 120),)))
    ledger.add_adoption(module.Adoption("ana", "w3", 2090))
    ledger.add_adoption(module.Adoption("ana", "w2", 2200))
    ledger.add_adoption(module.Adoption("bob", "w2", 2000))
    ledger.add_trouble(module.Trouble(worker, since_ms, until_ms))

    (found,) = kit("recovery").recoveries(ledger)

    assert (found.ms, found.undisturbed) == (2100, undisturbed)


# Staged recovery. -------------------------------------------------------------------------------------

PACE, JOINED_MS = 100, 1000
PACED = [JOINED_MS + 50 + 10 * number for number in range(500)]  # at the stated pace, a little after the worker joined


def resumed(kit: Kit, times_ms: list[int], **seen: Any) -> Any:
    """What is found of rooms that were resumed at these times, and of an account that holds unless ``seen`` tells otherwise."""
    count = len(times_ms)
    account = kit("account").Account(sent=count, crashes=seen.get("crashes", count))
    account.ends["committed"] = seen.get("committed", count)
    account.wrong += seen.get("wrong", [])
    found = kit("staged").Staged(float(PACE), count, JOINED_MS, times_ms, seen.get("silent_s", 0.02))
    found.check(account)
    return found


@pytest.mark.parametrize(
    "times_ms",
    [
        PACED,
        [JOINED_MS + 20 * number for number in range(500)],  # slower, as on a busy machine
        [*PACED[:100], *(at_ms + 3000 for at_ms in PACED[100:])],  # three seconds in which nothing happened
        [at_ms if not 1500 <= at_ms < 1700 else 1700 for at_ms in PACED],  # Redis stood still
    ],
)
def test_staged_recovery_holds_at_the_stated_pace_or_a_slower_one(times_ms: list[int], kit: Kit) -> None:
    assert resumed(kit, times_ms).wrong == []


@pytest.mark.parametrize(
    "times_ms",
    [
        [JOINED_MS + 300] * 500,  # all at once
        [JOINED_MS + 50 + 8 * number for number in range(500)],  # a quarter faster
        [JOINED_MS + 5000 + 5 * number for number in range(500)],  # late, and then twice as fast
        [*PACED[:100], *(6000 + number for number in range(400))],
    ],
)
def test_staged_recovery_does_not_hold_at_a_clearly_higher_pace(times_ms: list[int], kit: Kit) -> None:
    assert resumed(kit, times_ms).wrong


@pytest.mark.parametrize(
    "seen", [{"committed": 499}, {"committed": 501}, {"crashes": 499}, {"crashes": 501}, {"wrong": ["lost"]}]
)
def test_staged_recovery_does_not_hold_unless_each_message_was_committed_by_its_second_attempt(
    seen: dict[str, Any], kit: Kit
) -> None:
    assert resumed(kit, PACED, **seen).wrong


def test_what_was_asked_for_while_redis_stood_still_may_be_granted_at_once(kit: Kit) -> None:
    times_ms = [at_ms if at_ms < 2000 else max(at_ms, 4000) for at_ms in PACED]

    assert resumed(kit, times_ms, silent_s=2.0).wrong == []
    assert resumed(kit, times_ms, silent_s=0.02).wrong


def test_the_line_of_a_staged_recovery_tells_its_pace(kit: Kit) -> None:
    assert resumed(kit, PACED).line() == (
        "staged resume: 500 rooms in processing, stated pace 100 a second; "
        "resumed in 5.0 s, 100 a second, at most 100 in any second"
    )


@pytest.mark.parametrize(("stored", "count"), [(None, 0), ([3, {"count": 7}], 7)])
def test_the_counter_is_found_in_a_stored_state(stored: Any, count: int, kit: Kit) -> None:
    assert kit("snapshot").count_of(None if stored is None else codec.encode(stored)) == count
