"""``top`` without a terminal and without Redis: what it shows, what its keys do, and how it is drawn."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from greenroom import AgentStatus, Event, EventKind, Hold, Mode, Phase, RoomStatus
from greenroom.protocol.fleet import WorkerStatus
from greenroom.protocol.watching import Look
from greenroom.top.drawing import HELP, draw, rows_that_fit, snapshot, span
from greenroom.top.keyboard import Keyboard
from greenroom.top.view import Act, Quit, View

NOW = dt.datetime(2026, 11, 29, 21, 0, tzinfo=dt.UTC)


def ago(seconds: float) -> dt.datetime:
    return NOW - dt.timedelta(seconds=seconds)


def running(room: str, seconds: float = 1, **more: Any) -> RoomStatus:
    begun = {"phase": Phase.PROCESSING, "waiting": 1, "owner": "web-1", "processing": 7, "attempt": 1}
    return RoomStatus(**{"room": room, "claimed_at": ago(seconds), **begun, **more})


def failing(room: str, seconds: float = 60, error: str = "TimeoutError: no model") -> RoomStatus:
    facts = RoomStatus(room=room, phase=Phase.BACKOFF, waiting=1, owner="web-1", processing=8, attempt=2)
    return facts.model_copy(update={"retry_at": ago(-seconds), "last_error": error})


def held(room: str, seconds: float = 60, reason: str = "wrong answers") -> RoomStatus:
    hold = Hold(mode=Mode.STOP, by="ann", reason=reason, at=ago(seconds))
    return RoomStatus(room=room, phase=Phase.HELD, waiting=2, hold=hold)


def queued(room: str) -> RoomStatus:
    return RoomStatus(room=room, phase=Phase.QUEUED, waiting=1)


def look(*rooms: RoomStatus, **agent: Any) -> Look:
    counts = {
        "rooms": len(rooms),
        "waiting": sum(room.phase in (Phase.QUEUED, Phase.BACKOFF) for room in rooms),
        "processing": sum(room.phase is Phase.PROCESSING for room in rooms),
        "held": sum(room.phase is Phase.HELD for room in rooms),
        "dead": 0,
    }
    whole = AgentStatus(**{"agent": "support", "hold": None, "oldest": None, "workers": (), **counts, **agent})
    rates = {EventKind.CYCLE_COMMITTED: 12.4, EventKind.CYCLE_FAILED: 0.2, EventKind.CYCLE_INTERRUPTED: 0.0}
    workers = (WorkerStatus(name="web-1", alive=True, owns=3), WorkerStatus(name="web-2", alive=False, owns=5))
    event = Event(id="1-0", kind=EventKind.CYCLE_CRASHED, at=ago(90), room="42")
    return Look(NOW, whole, workers, rates, (event,), rooms)


def view(*rooms: RoomStatus, height: int = 10, **agent: Any) -> View:
    view = View()
    view.resize(height)
    view.take(look(*rooms, **agent))
    return view


def shown(view: View) -> list[str]:
    return [row.room for row in view.shown]


def press(view: View, *keys: str) -> Act | Quit | None:
    """What the last of the keys asks for."""
    return [view.press(key) for key in keys][-1]


# What is shown. -------------------------------------------------------------------------------------------


def test_rooms_are_in_the_order_of_what_should_be_seen_first() -> None:
    rooms = [queued("q"), held("h-old", 90), held("h-new", 5), failing("f-late", 90), failing("f-soon", 5)]
    assert shown(view(*rooms, running("r-new", 1), running("r-old", 500))) == [
        *("r-old", "r-new"),
        *("f-soon", "f-late"),
        *("h-new", "h-old"),
        "q",
    ]


def test_rooms_that_are_held_with_all_others_come_after_those_that_were_held_by_themselves() -> None:
    stopped = Hold(mode=Mode.STOP, by="bob", reason="model is down", at=ago(30))
    rows = view(RoomStatus(room="with-all", phase=Phase.HELD, waiting=1), held("by-itself", 900), hold=stopped).rows
    assert [row.room for row in rows] == ["by-itself", "with-all"]
    assert [row.says for row in rows] == ["stop by ann: wrong answers", "stop by bob (all rooms): model is down"]
    assert rows[1].age == dt.timedelta(seconds=30)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, ""),
        ({"shielded": True}, "shielded"),
        ({"shielded": True, "deferred": "stop"}, "shielded; stop waits for its shield"),
        ({"abort": "interrupt"}, "interrupt: its code is ending"),
        ({"attempt": 2, "last_error": "ValueError: x"}, "ValueError: x"),
    ],
)
def test_a_running_room_says_what_stands_in_the_way_of_a_signal_and_what_failed_before(more: dict[str, Any], says: str) -> None:
    assert view(running("42", **more)).rows[0].says == says


def test_no_kind_of_rooms_hides_another() -> None:
    many = [running(f"r{number:02}", 100 - number) for number in range(50)]
    first = shown(view(*many, *(held(f"h{number}", number) for number in range(50)), failing("f"), queued("q"), height=10))
    assert [room[0] for room in first] == ["r"] * 4 + ["f"] + ["h"] * 4 + ["q"]
    assert len(shown(view(*many, height=10))) == 10


def test_one_kind_alone_can_be_scrolled_through() -> None:
    v = view(*(held(f"h{number:02}", number) for number in range(50)), running("r"), height=10)
    press(v, "3")
    v.take(v.look or look())
    assert shown(v) == [f"h{number:02}" for number in range(10)]
    press(v, "page-down", "page-down")
    assert v.selected == "h10"
    press(v, "end")
    assert shown(v) == [f"h{number:02}" for number in range(40, 50)]
    assert v.there_are == 50
    press(v, "0")
    v.take(v.look or look())
    assert "r" in shown(v)


def test_idle_rooms_are_shown_only_when_they_are_searched_for() -> None:
    rooms = (RoomStatus(room="idle-42"), running("other"))
    v = view(*rooms)
    assert shown(v) == ["other"]
    press(v, "down", "/", *"le-4", "enter")
    v.take(look(*rooms))
    assert (v.search, v.selected) == ("le-4", None)
    assert shown(v) == ["idle-42"]
    press(v, "escape")
    v.take(look(*rooms))
    assert shown(v) == ["other"]


def test_a_room_whose_record_cannot_be_read_is_shown_with_what_is_wrong() -> None:
    rows = view(RoomStatus(room="broken", last_error="it has a hash that greenroom did not write")).rows
    assert [(row.room, row.phase, row.says) for row in rows] == [
        ("broken", "idle", "it has a hash that greenroom did not write")
    ]


# The selected room. ---------------------------------------------------------------------------------------


def test_nothing_is_selected_until_a_key_moves_and_then_it_stays_the_same_room_wherever_it_goes() -> None:
    v = view(running("a", 10), running("b", 9), held("c"))
    assert v.chosen is None
    press(v, "down", "j", "down", "down")
    assert v.selected == "c"
    press(v, "up")
    assert v.selected == "b"
    v.take(look(held("c"), running("b", 20), running("a", 5), running("new", 30)))
    assert v.selected == "b"
    press(v, "k")
    assert v.selected == "new"


def test_a_selected_room_that_has_ended_keeps_its_place_so_that_no_key_hits_another() -> None:
    v = view(running("a", 10), running("b", 9), running("c", 8))
    press(v, "down", "down")
    v.take(look(running("a", 10), RoomStatus(room="b"), running("c", 8)))
    assert shown(v) == ["a", "b", "c"]
    assert press(v, "i") is None
    assert v.notice == "b has nothing in processing"
    v.take(look(running("a", 10), running("c", 8)))
    assert shown(v) == ["a", "b", "c"], "also if a look did not have it"


def test_the_selected_room_is_on_the_screen() -> None:
    rooms = [held(f"h{number:02}", number) for number in range(30)]
    v = view(*rooms, height=5)
    press(v, "3")
    v.take(look(*rooms))
    for key in ("end", "up", "page-up", "home", "down", "page-down"):
        press(v, key)
        assert v.selected in shown(v), key
    v.resize(1)
    assert shown(v) == [v.selected]


# Acts. ----------------------------------------------------------------------------------------------------


def test_an_interrupt_is_for_the_message_that_was_seen() -> None:
    v = view(running("42", processing=123))
    assert press(v, "down", "i") == Act(Mode.INTERRUPT, "42", message=123)


@pytest.mark.parametrize(("key", "mode"), [("p", Mode.PLAY), ("P", Mode.PAUSE)])
def test_play_and_pause_are_for_the_selected_room(key: str, mode: Mode) -> None:
    assert press(view(held("a", 1), held("b", 2)), "down", "down", key) == Act(mode, "b")


def test_a_stop_asks_for_a_reason_and_is_for_the_room_that_was_selected_then() -> None:
    v = view(running("42"), running("43"))
    assert press(v, "down", "s") is None
    v.take(look(running("43", 99)))
    assert press(v, *"qp", "backspace", "i") is None
    assert press(v, "enter") == Act(Mode.STOP, "42", reason="qi")
    assert press(v, "s", "x", "escape") is None
    assert press(v, "s", "enter") == Act(Mode.STOP, "42", reason="")


@pytest.mark.parametrize("key", ["i", "s", "p", "P"])
def test_without_a_selected_room_nothing_is_done(key: str) -> None:
    v = view(running("42"))
    assert press(v, key) is None
    assert "no room is selected" in v.notice
    assert press(v, "enter") is None


def test_q_quits_but_not_where_it_is_typed_or_closes_the_help() -> None:
    v = view(running("42"))
    assert press(v, "/", "q") is None
    assert press(v, "escape", "?", "q") is None
    assert isinstance(press(v, "q"), Quit)


def test_what_is_typed_has_an_end() -> None:
    v = view(running("42"))
    act = press(v, "down", "s", *"x" * 5000, "enter")
    assert isinstance(act, Act)
    assert len(act.reason.encode()) < 1024


def test_a_failed_room_whose_try_is_due_says_that_it_waits_for_a_slot() -> None:
    assert view(failing("42", -60)).rows[0].says == "due, and waits for a slot; TimeoutError: no model"
    assert view(failing("42", 60)).rows[0].says == view(failing("42", 0)).rows[0].says == "TimeoutError: no model"


# How it is drawn. -----------------------------------------------------------------------------------------


def plain(view: View, width: int, height: int) -> list[str]:
    return [line.plain for line in draw(view, width, height)]


def test_the_screen_says_how_the_agent_is_and_what_its_rooms_do() -> None:
    v = view(running("42", 185), failing("43"), held("44", 7300), queued("45"), dead=2, oldest=ago(185), rooms=50)
    lines = plain(v, 120, 20)
    assert lines[0].split() == ["support", "plays", "2", "dead", "letters", "21:00:00Z"]
    assert lines[1] == "50 rooms: 1 running (oldest 3m05), 2 waiting, 1 held, 46 idle"
    assert lines[2].startswith("a second: 12.4 committed, 0.2 failed, 0.0 interrupted")
    assert lines[3] == "workers: web-1 3, web-2 GONE 5"
    assert lines[4] == "lately: 20:58:30 cycle.crashed 42"
    assert [line.split()[:4] for line in lines[7:11]] == [
        ["42", "processing", "3m05", "1"],
        ["43", "backoff", "in", "1m00"],
        ["44", "held", "2h01", "-"],
        ["45", "queued", "-", "-"],
    ]
    assert lines[8].endswith("TimeoutError: no model")
    assert lines[9].endswith("stop by ann: wrong answers")


def test_that_no_worker_is_there_for_work_is_said_in_red() -> None:
    for rooms, says, style in (((queued("45"),), "workers: none, so nothing runs", "bold red"), ((), "workers: none", "")):
        v = View()
        v.take(replace(look(*rooms), workers=()))
        line = draw(v, 80, 20)[3]
        assert (line.plain, line.style) == (says, style)


def test_a_held_agent_and_a_redis_that_does_not_answer_are_told() -> None:
    v = view(hold=Hold(mode=Mode.PAUSE, by="ann", reason="model is down", at=ago(60)))
    assert plain(v, 80, 12)[0].startswith("support PAUSED by ann for 1m00: model is down ")
    v.trouble = "Redis cannot be reached"
    assert "This is as it was at 21:00:00Z: Redis cannot be reached" in plain(v, 80, 12)[5]
    v.take(look())
    assert plain(v, 80, 12)[5] == ""


def test_without_rooms_it_says_so() -> None:
    v = view()
    assert "  no room has anything to do" in plain(v, 80, 12)
    press(v, "/", "x", "enter")
    assert "  no room with 'x' in its name" in plain(v, 80, 12)
    press(v, "2")
    assert "  no room is in a back-off" in plain(v, 80, 12)


def test_columns_keep_their_places_whatever_is_in_them() -> None:
    rooms = [running("r" * 256), held("部屋" * 100, 86_400 * 400, "why" * 300), failing("x", 90_000, "e\nrror\x1b[31m")]
    lines = plain(view(*rooms), 100, 20)
    places = {cell_len(line[: re.search(r"processing|backoff|held", line).start()]) for line in lines[7:10]}  # type: ignore[union-attr]
    assert len(places) == 1
    assert not any("\x1b" in line or "\n" in line for line in lines)


def test_the_bottom_line_has_the_keys_or_what_is_typed_or_what_came_of_it() -> None:
    v = view(running("42"), running("43"))
    assert plain(v, 80, 12)[-1].endswith("1-2 of 2")
    assert "q quit" in plain(v, 80, 12)[-1]
    press(v, "down", "s", *"why")
    assert plain(v, 80, 12)[-1] == "stop 42, because: why_"
    press(v, "escape")
    v.notice = "stop 42: applied"
    assert plain(v, 80, 12)[-1].startswith("stop 42: applied")
    press(v, "/", *"4")
    assert plain(v, 80, 12)[-1] == "find rooms with: 4_"


def test_the_whole_of_what_the_selected_room_says_is_above_the_bottom_line() -> None:
    v = view(failing("43", error="TimeoutError: the model did not answer within 30 s"))
    press(v, "down")
    lines = plain(v, 80, 12)
    assert "did not answer" not in lines[7]
    assert lines[-2] == "43: TimeoutError: the model did not answer within 30 s"


def test_help_fits_a_small_terminal_and_any_key_closes_it() -> None:
    v = view(running("42"))
    press(v, "?")
    lines = plain(v, 80, 24)
    assert [line for line in HELP if line in lines] == list(HELP)
    press(v, "x")
    assert "ROOM" in plain(v, 80, 24)[6]


@given(
    width=st.integers(1, 250), height=st.integers(1, 60), rooms=st.integers(0, 80), keys=st.text("jk/?s0123ipPx", max_size=6)
)
def test_on_any_terminal_it_draws_as_many_lines_as_there_are_and_none_too_wide(
    width: int, height: int, rooms: int, keys: str
) -> None:
    v = view(*(held(f"room-{number}", number) for number in range(rooms)), running("部屋"))
    for key in keys:
        v.press(key)
    lines = draw(v, width, height)
    assert len(lines) == height
    assert all(line.cell_len <= max(width, 1) for line in lines)
    assert len(v.shown) <= max(1, rows_that_fit(height))


def test_a_snapshot_has_all_rooms_as_plain_text() -> None:
    lines = snapshot(view(*(held(f"h{number:02}", number) for number in range(30)), height=30), 120)
    assert len([line for line in lines if "wrong answers" in line]) == 30
    assert all(line == line.rstrip() for line in lines)


SPANS = [
    (0, "0s"),
    (59.9, "59s"),
    (60, "1m00"),
    (3599, "59m59"),
    (3600, "1h00"),
    (86_399, "23h59"),
    (86_400, "1d"),
    (1e8, "1157d"),
]


@pytest.mark.parametrize(("seconds", "words"), SPANS)
def test_a_duration_is_short(seconds: float, words: str) -> None:
    assert span(dt.timedelta(seconds=seconds)) == words
    assert span(dt.timedelta(seconds=-seconds)) == words


# The keyboard. --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"jk", ["j", "k"]),
        (b"\x1b[A\x1b[B\x1bOA\x1bOB", ["up", "down", "up", "down"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[F\x1b[1~\x1b[4~", ["page-up", "page-down", "home", "end", "home", "end"]),
        (b"\r\n\x7f\x08", ["enter", "enter", "backspace", "backspace"]),
        (b"\x1b[1;5Ax\x1b[200~y", ["x", "y"]),
        ("é部".encode(), ["é", "部"]),
        (b"\x1b\x1b[A", ["escape", "up"]),
        (b"\x1bj", ["escape", "j"]),
        (b"\xff", ["\ufffd"]),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_keys_are_read_also_if_their_bytes_arrive_one_by_one(data: bytes, keys: list[str], whole: bool) -> None:
    keyboard = Keyboard()
    parts = [data] if whole else [data[place : place + 1] for place in range(len(data))]
    assert [key for part in parts for key in keyboard.feed(part)] == keys
    assert not keyboard.waits


@pytest.mark.parametrize(("begun", "keys"), [(b"\x1b", ["escape"]), (b"\x1b[", ["escape", "["])])
def test_an_escape_is_one_when_nothing_follows(begun: bytes, keys: list[str]) -> None:
    keyboard = Keyboard()
    assert keyboard.feed(begun) == []
    assert keyboard.waits
    assert keyboard.flush() == keys
    assert keyboard.flush() == []


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_whatever_arrives_is_read_and_no_sequence_waits_for_ever(parts: list[bytes]) -> None:
    keyboard = Keyboard()
    for part in parts:
        for key in keyboard.feed(part):
            assert len(key) == 1 or key.islower()
    keyboard.flush()
    assert not keyboard.waits
