"""What a worker and its children say to each other, and how a child's end is told."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgpack
import pytest

from greenroom import CycleEnded, GreenroomError, Message, RedisUnavailable
from greenroom.actors.child_process import how_it_ended
from greenroom.actors.frames import (
    BadFrame,
    Frames,
    check_from_child,
    pack,
    pack_error,
    pack_message,
    unpack_error,
    unpack_message,
)

MOST = 1000


def test_frames_come_out_as_they_went_in_however_their_bytes_are_cut() -> None:
    frames: list[list[Any]] = [["push", 7, b"\x01" * 100], ["finished", 7, b"", b"="], ["ready"]]
    data = b"".join(pack(*frame) for frame in frames)
    for size in (1, 3, 50, len(data)):
        taken = Frames(MOST)
        got = [frame for start in range(0, len(data), size) for frame in taken.feed(data[start : start + size])]
        assert got == frames


def test_a_frame_that_is_too_large_is_refused_before_it_has_come() -> None:
    with pytest.raises(BadFrame, match="1001 bytes"):
        list(Frames(MOST).feed((MOST + 1).to_bytes(4, "big")))


def test_what_is_no_msgpack_is_refused() -> None:
    with pytest.raises(BadFrame):
        list(Frames(MOST).feed(b"\x00\x00\x00\x01\xc1"))


@pytest.mark.parametrize(
    "frame",
    [
        ["ready"],
        ["unfit", "why"],
        ["log", 30, "cycle.failed", {"room": "42", "message": 7, "after_s": 0.5}],
        ["push", 1, b"chunk"],
        ["ask", 1, 2, "flush", []],
        ["ask", 1, 2, "shield", [True]],
        ["ask", 1, 2, "step", ["name", "begin", b""]],
        ["finished", 1, b"reply", b"="],
        ["failed", 1, "error", False, True],
        ["cancelled", 1, "cancelled"],
        ["closed", 1, "stop", b"=", b""],
    ],
    ids=lambda frame: frame[0],
)
def test_a_child_may_say_this_with_its_own_kinds_of_values_only(frame: list[Any]) -> None:
    check_from_child(frame)
    for place in range(1, len(frame)):
        with pytest.raises(BadFrame):
            check_from_child([*frame[:place], None, *frame[place + 1 :]])
    with pytest.raises(BadFrame):
        check_from_child([*frame, 0])


@pytest.mark.parametrize(
    "frame",
    [
        [],
        None,
        "ready",
        {"ready": 1},
        [["ready"]],
        ["abort", 1, "stop"],
        ["ask", 1, 2, "commit", []],
        ["ask", 1, 2, "flush", [1]],
        ["log", 31, "cycle.failed", {}],
        ["log", 30, "no event", {}],
        ["log", 30, "cycle.failed", {"exc_info": 1}],
        ["log", 30, "cycle.failed", {"event": "other.thing"}],
        ["log", 30, "cycle.failed", {"level": 1}],
        ["log", 30, "cycle.failed", {"two words": 1}],
        ["log", 30, "cycle.failed", {1: 1}],
        ["log", 30, "cycle.failed", {"room": []}],
    ],
    ids=str,
)
def test_a_child_may_say_nothing_else(frame: Any) -> None:
    with pytest.raises(BadFrame):
        check_from_child(frame)


def test_a_message_passes_as_it_is() -> None:
    deep: list[Any] = []
    for _ in range(30):
        deep = [deep]
    at = dt.datetime(2026, 11, 29, 20, 15, 30, 123456, dt.UTC)
    message = Message(id=1, room="42", body={"deep": deep, "at": at}, attempt=2, enqueued_at=at)
    passed = msgpack.unpackb(msgpack.packb(pack_message(message)))
    assert unpack_message(passed) == message


@pytest.mark.parametrize("error", [CycleEnded("stop"), RedisUnavailable("gone"), GreenroomError("odd")], ids=repr)
def test_the_errors_that_code_tells_apart_stay_what_they_are(error: GreenroomError) -> None:
    passed = unpack_error(pack_error(error))
    assert (type(passed), str(passed)) == (type(error), str(error))


def test_any_other_error_is_one_of_this_library() -> None:
    passed = unpack_error(pack_error(ValueError("odd")))
    assert (type(passed), str(passed)) == (GreenroomError, "odd")
    assert unpack_error(pack_error(None)) is None


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-9, "was ended by SIGKILL"),
        (-63, "was ended by signal 63"),
    ],
)
def test_how_a_process_has_ended_is_told_in_words(code: int, words: str) -> None:
    assert how_it_ended(code) == words
