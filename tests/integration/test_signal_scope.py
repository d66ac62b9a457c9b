"""Which rooms a signal is for: one, several, all, those that do not exist yet; and how it gets past a crowd of messages."""

from __future__ import annotations

import asyncio
import time

import pytest
import redis as redis_py

from greenroom import AsyncClient, Client, InvalidName, InvalidRequest, Kind, Mode, Outcome, Phase
from integration.agents import Director, Run, eventually, wait_event, wait_output
from integration.conftest import Running

AT_ONCE_S = 2.0  # far more than a signal needs, far less than what waits before it


def begin(director: Director, client: Client, *rooms: str) -> list[Run]:
    """Rooms in the middle of a message each."""
    for room in rooms:
        client.send(room, "wait")
    return [director.run(room) for room in rooms]


def reply_of(client: Client, room: str, body: str) -> None:
    wait_output(client, room, lambda output: output.kind is Kind.REPLY and output.body == body)


# Several rooms. ------------------------------------------------------------------------------------------


def test_a_signal_for_several_rooms_acts_on_each_of_them_and_on_no_other(
    running: Running, director: Director, client: Client
) -> None:
    """row 14"""
    running(director.agent())
    first, second, third = begin(director, client, "1", "2", "3")
    receipts = client.stop("1", "2", "idle")
    assert [(r.room, r.outcome, r.message) for r in receipts] == [
        ("1", Outcome.APPLIED, first.message.id),
        ("2", Outcome.APPLIED, second.message.id),
        ("idle", Outcome.APPLIED, None),
    ]
    first.wait_cancelled()
    second.wait_cancelled()
    third.send("unharmed")
    receipts = client.interrupt("1", "3")
    assert [(r.room, r.outcome) for r in receipts] == [("1", Outcome.HELD), ("3", Outcome.APPLIED)]
    third.wait_cancelled()
    receipts = client.play("1", "3")
    assert [(r.room, r.outcome) for r in receipts] == [("1", Outcome.APPLIED), ("3", Outcome.ALREADY)]
    assert director.run("1").message.id == first.message.id
    assert director.count("2") == 1


# Rooms that do not exist yet. ------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [Mode.STOP, Mode.PAUSE])
def test_a_hold_of_a_room_that_does_not_exist_yet_holds_its_first_message(
    verb: Mode, running: Running, director: Director, client: Client
) -> None:
    """row 14"""
    running(director.agent())
    [receipt] = getattr(client, verb)("new")
    assert (receipt.outcome, receipt.message) == (Outcome.APPLIED, None)
    client.send("new", "hello")
    assert client.ask("passer-by", "hello") == "hello"
    status = client.status("new")
    assert status.hold is not None
    assert (status.hold.mode, status.phase, status.waiting) == (verb, Phase.HELD, 1)
    assert director.count("new") == 0
    client.play("new")
    reply_of(client, "new", "hello")


def test_interrupt_and_play_of_a_room_that_does_not_exist_answer_idle_and_already_and_make_none(
    running: Running, director: Director, client: Client
) -> None:
    """row 14"""
    running(director.agent())
    assert client.interrupt("new")[0].outcome is Outcome.IDLE
    assert client.play("new")[0].outcome is Outcome.ALREADY
    assert client.status("new").hold is None
    assert client.ask("new", "hello") == "hello"


@pytest.mark.parametrize("verb", list(Mode))
def test_a_signal_for_no_room_or_for_both_or_for_a_name_that_is_none_is_refused(verb: Mode, client: Client) -> None:
    """row 14"""
    send = getattr(client, verb)
    for rooms, options in (((), {}), (("1",), {"everywhere": True}), (("1", "1"), {})):
        with pytest.raises(InvalidRequest):
            send(*rooms, **options)
    for name in ("", "a b", "x" * 257, 42):
        with pytest.raises(InvalidName):
            send(name)


# Everywhere. ---------------------------------------------------------------------------------------------


def test_a_stop_everywhere_ends_every_cycle_and_holds_all_rooms_also_new_ones_until_play_everywhere(
    running: Running, director: Director, client: Client
) -> None:
    """row 14: on two workers"""
    for _ in range(2):
        running(director.agent())
    rooms = [str(n) for n in range(8)]
    runs = begin(director, client, *rooms)
    receipts = client.stop(everywhere=True, reason="fire drill")
    assert (receipts[0].room, receipts[0].outcome) == (None, Outcome.APPLIED)
    assert {(r.room, r.outcome, r.message) for r in receipts[1:]} == {
        (run.room, Outcome.APPLIED, run.message.id) for run in runs
    }
    for run in runs:
        run.wait_cancelled()
    eventually(lambda: client.overview().processing == 0, "every cycle is settled")
    client.send("new", "hello")
    overview = client.overview()
    assert overview.hold is not None
    assert (overview.hold.mode, overview.hold.reason, overview.held) == (Mode.STOP, "fire drill", 9)
    assert client.stop(everywhere=True)[0].outcome is Outcome.ALREADY
    assert director.count("new") == 0

    assert client.play(everywhere=True)[0].outcome is Outcome.APPLIED
    reply_of(client, "new", "hello")
    replays = [director.run(room) for room in rooms]
    assert [run.message.id for run in replays] == [run.message.id for run in runs]
    assert {run.attempt for run in replays} == {1}


def test_play_everywhere_leaves_rooms_held_that_were_held_by_themselves_and_play_of_a_room_waits_for_its_agent(
    running: Running, director: Director, client: Client
) -> None:
    """row 14"""
    running(director.agent())
    client.stop("1")
    client.pause("2")
    client.stop(everywhere=True)
    for room in ("1", "2", "3"):
        client.send(room, "hello")
    client.play(everywhere=True)
    reply_of(client, "3", "hello")
    assert client.ask("passer-by", "hello") == "hello"
    assert [director.count(room) for room in ("1", "2")] == [0, 0]

    client.pause(everywhere=True)
    client.play("1", "2")
    assert [client.status(room).phase for room in ("1", "2")] == [Phase.HELD, Phase.HELD]
    client.play(everywhere=True)
    reply_of(client, "1", "hello")
    reply_of(client, "2", "hello")


def test_a_pause_everywhere_lets_all_cycles_commit_and_starts_none(
    running: Running, director: Director, client: Client
) -> None:
    """row 14"""
    running(director.agent())
    runs = begin(director, client, "1", "2")
    for run in runs:
        client.send(run.room, "next")
    client.pause(everywhere=True)
    for run in runs:
        run.send("still sent")
        run.finish("done")
        reply_of(client, run.room, "done")
    eventually(lambda: client.overview().held == 2, "both rooms are held")
    assert [director.count(run.room) for run in runs] == [1, 1]
    client.play(everywhere=True)
    for run in runs:
        reply_of(client, run.room, "next")


def test_an_interrupt_everywhere_consumes_what_is_in_processing_and_nothing_that_waits_or_is_stopped(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """row 14"""
    running(director.agent())
    runs = begin(director, client, "1", "2", "stopped")
    for run in runs:
        client.send(run.room, "next")
    client.stop("stopped")
    wait_event(redis, agent, "cycle.stopped", room="stopped")
    receipts = client.interrupt(everywhere=True)
    assert receipts[0].room is None
    assert {(r.room, r.outcome) for r in receipts[1:]} == {("1", Outcome.APPLIED), ("2", Outcome.APPLIED)}
    for room in ("1", "2"):
        reply_of(client, room, "next")
    assert client.status("stopped").waiting == 2
    assert client.ask("new", "hello") == "hello"


# Past a crowd. -------------------------------------------------------------------------------------------


async def crowd(agent: str, url: str) -> None:
    """Ten thousand messages: four in each of 500 rooms, and the others in room 1."""
    async with AsyncClient(agent, redis=url) as client:
        for _ in range(4):
            await asyncio.gather(*(client.send(f"crowd-{n}", "hello") for n in range(500)))
        for _ in range(8):
            await asyncio.gather(*(client.send("1", "hello") for _ in range(1000)))


def test_signals_are_as_fast_as_ever_with_ten_thousand_messages_waiting_and_every_slot_busy(
    running: Running, director: Director, client: Client, redis_url: str, agent: str
) -> None:
    """row 18: the busy rooms, a room in the crowd, and all of them"""
    running(director.agent(), max_rooms=2)
    first, second = begin(director, client, "1", "2")
    asyncio.run(crowd(agent, redis_url))
    assert client.overview().rooms >= 502
    assert client.status("crowd-7").phase is Phase.QUEUED

    begun = time.monotonic()
    client.stop("1", "crowd-7")  # none of the crowd can run before it: both slots are taken for ever
    first.wait_cancelled()
    assert time.monotonic() - begun < AT_ONCE_S
    client.interrupt("2")
    second.wait_cancelled()
    assert time.monotonic() - begun < 2 * AT_ONCE_S
    client.stop(everywhere=True)
    eventually(lambda: client.overview().processing == 0, "nothing runs any more")
    assert time.monotonic() - begun < 3 * AT_ONCE_S
    assert client.status("1").waiting == 8001
    assert director.count("crowd-7") == 0
    client.play(everywhere=True)
    client.play("crowd-7")
    eventually(lambda: client.overview().rooms == 1, "the crowd has passed, and only the stopped room has messages")
    assert director.count("crowd-7") == 4
    assert director.count("1") == 1


def test_a_stop_of_a_room_that_waits_for_a_slot_keeps_it_from_running_when_one_is_free(
    running: Running, director: Director, client: Client
) -> None:
    """row 18"""
    running(director.agent(), max_rooms=1)
    [busy] = begin(director, client, "busy")
    client.send("1", "hello")
    client.send("2", "hello")
    assert client.stop("1")[0].outcome is Outcome.APPLIED
    busy.finish("done")
    reply_of(client, "2", "hello")
    assert director.count("1") == 0
    assert client.status("1").phase is Phase.HELD
