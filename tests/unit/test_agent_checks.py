"""What the doctor says about an agent: what ails it, and what to do."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from greenroom import AgentStatus, Hold, Mode, RelayStatus, WorkerStatus
from greenroom.protocol.agent_checks import Gathered, findings
from greenroom.protocol.checks import Severity

NOW = dt.datetime(2026, 11, 29, 21, 0, tzinfo=dt.UTC)
LONG_AGO = NOW - dt.timedelta(hours=2)
JUST_NOW = NOW - dt.timedelta(seconds=1)
ALIVE = WorkerStatus(name="web-1", alive=True, owns=3)
GONE = WorkerStatus(name="web-2", alive=False, owns=5)
KEEPS = {"outbox": 1000, "outbox_for": 604_800, "events": 10_000, "control": 10_000, "receipts": 90, "dead": 100}


def gathered(**agent: Any) -> Gathered:
    counts = {"rooms": 9, "waiting": 0, "processing": 0, "held": 0, "dead": 0}
    whole = AgentStatus(**{"agent": "support", "hold": None, "oldest": None, "workers": (), **counts, **agent})
    return Gathered(NOW, whole, [ALIVE], [], 0, None, {}, {}, {**KEEPS, "idle_rooms": None})


def relay(**more: Any) -> RelayStatus:
    facts = {"name": "chat", "since": LONG_AGO, "holder": "h:1:a", "seen_at": JUST_NOW, "rooms": 0, "oldest": None}
    return RelayStatus(**{**facts, **more})


def bad(found: Gathered) -> dict[str, Severity]:
    assert all(each.do for each in findings(found) if each.severity is not Severity.OK), "each says what to do"
    return {each.check: each.severity for each in findings(found) if each.severity is not Severity.OK}


def says(found: Gathered, check: str) -> str:
    return next(each.says for each in findings(found) if each.check == check)


def test_an_agent_that_is_well_has_nothing_but_ok() -> None:
    busy = replace(gathered(waiting=2, processing=3, oldest=JUST_NOW), owned=3, queued_at=JUST_NOW, relays=[relay(rooms=1)])
    assert bad(gathered()) == bad(busy) == {}
    checks = [each.check for each in findings(busy)]
    assert len(checks) == len(set(checks))


@pytest.mark.parametrize(("waiting", "severity"), [(0, Severity.WARNING), (4, Severity.ERROR)])
@pytest.mark.parametrize("workers", [[], [GONE]])
def test_that_no_worker_lives_is_worse_while_there_is_work(
    waiting: int, severity: Severity, workers: list[WorkerStatus]
) -> None:
    found = replace(gathered(waiting=waiting), workers=workers, owned=waiting)
    assert bad(found)["workers"] is severity


def test_rooms_of_a_worker_that_is_gone_are_told() -> None:
    assert (
        says(replace(gathered(), workers=[ALIVE, GONE]), "workers") == "web-1 live; 5 rooms of gone ones are being taken over"
    )


def test_a_worker_whose_loop_is_blocked_is_told_and_that_all_are_full() -> None:
    blocked = replace(gathered(), workers=[ALIVE, ALIVE.model_copy(update={"name": "web-3", "lag_s": 4.2})])
    assert bad(blocked) == {"workers": Severity.WARNING}
    assert says(blocked, "workers").endswith("within the last minute: web-3 for 4.2 s")
    waits = replace(gathered(waiting=7), queued_at=LONG_AGO)
    for rooms, full in ((3, False), (4, True)):
        found = replace(waits, workers=[ALIVE.model_copy(update={"rooms": rooms, "slots": 4})])
        assert ("all workers have" in says(found, "queue")) is full


def test_a_hold_of_the_whole_agent_is_told_with_who_when_and_why() -> None:
    hold = Hold(mode=Mode.PAUSE, by="ann", reason="model is down", at=LONG_AGO)
    found = gathered(hold=hold)
    assert bad(found) == {"mode": Severity.WARNING}
    assert says(found, "mode") == "all rooms are held: pause by ann since 2026-11-29T19:00:00Z, because: model is down"


@pytest.mark.parametrize(
    ("found", "check", "words"),
    [
        (replace(gathered(processing=2, oldest=LONG_AGO), owned=2), "cycles", "2 cycles in flight, the oldest since"),
        (replace(gathered(waiting=7), queued_at=LONG_AGO), "queue", "in line for a worker: 7 rooms, the first since"),
        (replace(gathered(waiting=1), owned=1), "failures", "1 room"),
        (gathered(held=1), "held", "1 room"),
        (gathered(dead=1), "dead", "1 dead letter"),
        (gathered(dead=95), "dead", "95 dead letters of 100 that are kept"),
        (replace(gathered(), relays=[relay(holder=None)]), "relay chat", "does not run since 2026-11-29T20:59:59Z"),
        (replace(gathered(), relays=[relay(rooms=2, oldest=LONG_AGO)]), "relay chat", "it runs, but outputs of 2 rooms wait"),
        (replace(gathered(), often={"web-1": 9}), "starts", "web-1 has joined 9 times"),
        (replace(gathered(), lately={"room.unreadable": 2}), "events", "2 room.unreadable"),
    ],
)
def test_what_an_operator_should_know_of_is_a_warning(found: Gathered, check: str, words: str) -> None:
    assert bad(found) == {check: Severity.WARNING}
    assert words in says(found, check)


def test_the_limits_that_are_in_force_are_told_as_they_are_given() -> None:
    limits = "outbox=1000, outbox_for=7d, events=10000, control=10000, receipts=90s, dead=100, idle_rooms for ever"
    assert says(gathered(), "retention") == limits
