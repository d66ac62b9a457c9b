"""The demo as a newcomer runs it, and its account: it must hold, and must not hold when the record says that it cannot."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from greenroom import Kind, Output

from started import Started

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DEADLINE_S = 110


def start_demo(folder: Path) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8"}
    return Started(
        [sys.executable, "-m", "demo"], cwd=EXAMPLES, env=env, stdout=subprocess.PIPE, encoding="utf-8", start_new_session=True
    )


def processes_of(story: str) -> set[int]:
    return {int(pid) for pid in re.findall(r"[Pp]rocess (\d+)", story)}


def running(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists()} if Path("/proc/self").exists() else set()


def number(story: str, what: str) -> int:
    found = re.search(rf"^ *{what}.*? (\d+)(?:  .*)?$", story, re.MULTILINE)
    assert found, f"{what!r} is not in the account"
    return int(found[1])


def test_the_demo_tells_its_story_and_the_account_holds(tmp_path: Path) -> None:
    with start_demo(tmp_path) as demo:
        story, _ = demo.communicate(timeout=DEADLINE_S)

    assert demo.returncode == 0, story
    assert number(story, "sent") >= 300  # more only where the machine is so slow that the rooms ran out of work
    assert number(story, "committed") + number(story, "interrupted") == number(story, "sent")
    assert number(story, "interrupted") >= 1
    assert number(story, "cycles replayed") >= 4  # one that was stopped, three that were killed
    for nothing in ("dead letters", "still waiting", "lost", "ended twice", "sent after a stop", "out of order"):
        assert number(story, nothing) == 0, nothing
    assert re.search(r"mode_reason +customer is on the phone", story)
    assert len(processes_of(story)) == 4  # Redis and the supervisor, before and after they were killed
    assert not running(processes_of(story))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_ended_from_outside_leaves_no_process_and_says_where_its_files_are(
    how: signal.Signals, tmp_path: Path
) -> None:
    with start_demo(tmp_path) as demo:
        assert demo.stdout is not None
        told = ""
        while "5. Stop" not in told:
            line = demo.stdout.readline()
            assert line, told
            told += line
        demo.send_signal(how)
        rest, _ = demo.communicate(timeout=DEADLINE_S)

    assert demo.returncode == 1
    assert "ended from outside" in rest
    (folder,) = tmp_path.iterdir()
    assert str(folder) in rest
    assert {"client.log", "record.jsonl", "redis", "supervisor.log"} <= {path.name for path in folder.iterdir()}
    assert len(processes_of(told)) == 2
    assert not running(processes_of(told))


# The account. ---------------------------------------------------------------------------------------

Falsify = Callable[[Any, Any], None]


@pytest.fixture
def evidence(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """A record and a snapshot of one room that agree: messages 1 to 5, answered, interrupted, stopped, cut off, and waiting."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    demo_account, demo_record = importlib.import_module("demo.account"), importlib.import_module("demo.record")
    record = demo_record.Record()
    for message in range(1, 6):
        record.add_sent(demo_record.Sent("ana", message, f"line-{message}", f"question {message}"))
    for place, row in enumerate(OUTPUTS, start=10):
        record.add_output("ana", output(place, *row))
    record.add_signal(demo_record.Signalled("ana", "interrupt", "applied", 2, "12-0", "12-0"))
    record.add_signal(demo_record.Signalled("ana", "stop", "applied", 3, "14-0", "14-0"))
    record.add_signal(demo_record.Signalled("ana", "play", "applied", 3, "15-0", "15-0"))
    snapshot = demo_account.Snapshot(queued={"ana": [5]}, outboxes={"ana": list(record.outputs["ana"])}, questions={"ana": 3})
    return record, snapshot


# Kind, message, ticket, and the mode of an abort, at the places 10-0, 11-0 and so on.
OUTPUTS: list[tuple[Kind, int, int, str | None]] = [
    (Kind.CHUNK, 1, 101, None),
    (Kind.REPLY, 1, 101, None),
    (Kind.CHUNK, 2, 102, None),
    (Kind.ABORTED, 2, 102, "interrupt"),
    (Kind.CHUNK, 3, 103, None),
    (Kind.ABORTED, 3, 103, "stop"),
    (Kind.CHUNK, 3, 104, None),
    (Kind.REPLY, 3, 104, None),
    (Kind.CHUNK, 4, 105, None),
    (Kind.FAILED, 4, 105, None),
    (Kind.REPLY, 4, 106, None),
]


def output(place: int, kind: Kind, message: int, ticket: int, mode: str | None = None) -> Output:
    return Output(id=f"{place}-0", kind=kind, message=message, ticket=ticket, seq=1, mode=mode)


def settle(evidence: tuple[Any, Any]) -> Any:
    return importlib.import_module("demo.account").settle(*evidence)


def say(record: Any, snapshot: Any, said: Output, at: int | None = None) -> None:
    """One more output, at the end or at an index, which both the record and Redis have."""
    for outputs in (record.outputs["ana"], snapshot.outboxes["ana"]):
        outputs.insert(len(outputs) if at is None else at, said)


def test_the_account_of_an_honest_record_holds(evidence: tuple[Any, Any]) -> None:
    account = settle(evidence)

    assert account.wrong == []
    assert (account.sent, account.committed, account.interrupted, account.dead, account.waiting) == (5, 3, 1, 0, 1)
    assert (account.lost, account.ended_twice, account.late, account.out_of_order) == (0, 0, 0, 0)
    assert (account.replayed, account.replayed_after_crash) == (2, 1)


def lose_a_message(record: Any, snapshot: Any) -> None:
    snapshot.queued["ana"] = []


def end_a_message_twice(record: Any, snapshot: Any) -> None:
    say(record, snapshot, output(30, Kind.REPLY, 1, 107))


def end_a_message_that_still_waits(record: Any, snapshot: Any) -> None:
    snapshot.queued["ana"] = [4, 5]


def replay_an_interrupted_message(record: Any, snapshot: Any) -> None:
    say(record, snapshot, output(30, Kind.CHUNK, 2, 107))


def speak_after_the_interrupt(record: Any, snapshot: Any) -> None:
    late = Output(id="12-1", kind=Kind.CHUNK, message=2, ticket=102, seq=2)
    say(record, snapshot, late, at=3)  # before the entry that closes the cycle, but after the interrupt had answered


def speak_while_stopped(record: Any, snapshot: Any) -> None:
    say(record, snapshot, Output(id="14-1", kind=Kind.CHUNK, message=3, ticket=103, seq=2), at=5)


def speak_of_the_stopped_cycle_after_play(record: Any, snapshot: Any) -> None:
    say(record, snapshot, Output(id="16-1", kind=Kind.CHUNK, message=3, ticket=103, seq=3), at=7)


def begin_before_the_one_before_has_ended(record: Any, snapshot: Any) -> None:
    say(record, snapshot, Output(id="16-1", kind=Kind.CHUNK, message=4, ticket=105, seq=1), at=7)


@pytest.mark.parametrize(
    ("falsify", "finding"),
    [
        (lose_a_message, "lost"),
        (end_a_message_twice, "ended_twice"),
        (end_a_message_that_still_waits, "ended_twice"),
        (replay_an_interrupted_message, "late"),
        (speak_after_the_interrupt, "late"),
        (speak_while_stopped, "late"),
        (speak_of_the_stopped_cycle_after_play, "late"),
        (begin_before_the_one_before_has_ended, "out_of_order"),
    ],
)
def test_the_account_finds(falsify: Falsify, finding: str, evidence: tuple[Any, Any]) -> None:
    falsify(*evidence)

    account = settle(evidence)

    assert getattr(account, finding) == 1
    assert account.wrong


def forget_an_output(record: Any, snapshot: Any) -> None:
    del snapshot.outboxes["ana"][4]


def see_less_than_redis_has(record: Any, snapshot: Any) -> None:
    del record.outputs["ana"][4]


def invent_a_queued_message(record: Any, snapshot: Any) -> None:
    snapshot.queued["ana"].append(99)


def invent_a_dead_letter(record: Any, snapshot: Any) -> None:
    snapshot.dead.append(5)


def forget_a_question(record: Any, snapshot: Any) -> None:
    snapshot.questions["ana"] = 2


@pytest.mark.parametrize(
    "falsify", [forget_an_output, see_less_than_redis_has, invent_a_queued_message, invent_a_dead_letter, forget_a_question]
)
def test_the_account_does_not_hold_when_redis_and_the_record_differ(falsify: Falsify, evidence: tuple[Any, Any]) -> None:
    falsify(*evidence)

    assert settle(evidence).wrong
