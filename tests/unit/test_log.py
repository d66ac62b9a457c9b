"""Log records: their fields, what is told of errors, and how ``greenroom run`` writes them."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from greenroom import RedisRefused, RedisUnavailable
from greenroom.actors.frames import FROM_WORKER, Frames, check_from_child, pack
from greenroom.actors.loop import LoopThread
from greenroom.actors.threads import start_thread
from greenroom.logs import LogFormat, formatter
from greenroom.protocol.log import DEPTH, MOST, Forwarded, bound, failed, log, repeat, told

from helpers import Mute

SECRET = "hunter2"


class Records(logging.Filter):
    """Keeps the records of greenroom, from pytest too: it would hand on, and print, what is no text."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[logging.LogRecord] = []

    def filter(self, record: logging.LogRecord) -> bool:
        self.all.append(record)
        return False

    @property
    def fields(self) -> list[dict[str, Any]]:
        return [record.greenroom for record in self.all]  # type: ignore[attr-defined]  # what every one of them has


@pytest.fixture
def records() -> Iterator[Records]:
    kept, logger = Records(), logging.getLogger("greenroom")
    before = logger.level
    logger.addFilter(kept)
    logger.setLevel(logging.INFO)
    yield kept
    logger.removeFilter(kept)
    logger.setLevel(before)


# Records. ---------------------------------------------------------------------------------------------


def test_an_error_is_shown_whatever_it_is_taken_for(records: Records) -> None:
    class Empty(Exception):
        def __len__(self) -> int:
            return 0

    error = Empty()
    log.error("child.failed", **failed(error), why=Mute())
    [record] = records.all
    assert record.exc_info == (Empty, error, None)
    assert records.fields[0]["why"] == "(says nothing: RuntimeError)"


def test_a_record_is_one_line_for_people_and_a_dict_for_programs(records: Records) -> None:
    log.warning("cycle.failed", room="42", message=7, error=ValueError("no"), note="two words")
    [record] = records.all
    assert record.getMessage() == 'event=cycle.failed room=42 message=7 error=no note="two words"'
    assert records.fields == [{"event": "cycle.failed", "room": "42", "message": 7, "error": "no", "note": "two words"}]


def test_a_stack_is_in_lines_below(records: Records) -> None:
    log.warning("loop.blocked", stack=["  one", "  two"])
    assert records.all[0].getMessage() == "event=loop.blocked\n  one\n  two"
    assert records.fields[0]["stack"] == "  one\n  two"


def test_what_is_bound_to_a_thread_is_in_its_lines_only(records: Records) -> None:
    with bound(agent="a", worker="w"):
        log.info("one.thing", worker="other")
        with bound(worker="w2"):
            log.info("two.things")
        thread = threading.Thread(target=log.info, args=("three.things",))
        thread.start()
        thread.join()
    log.info("four.things")
    assert records.fields == [
        {"event": "one.thing", "agent": "a", "worker": "other"},
        {"event": "two.things", "agent": "a", "worker": "w2"},
        {"event": "three.things"},
        {"event": "four.things"},
    ]


def test_a_loops_fields_are_in_its_lines_whoever_posted_them_and_in_those_of_its_threads(records: Records) -> None:
    loop, done = LoopThread("test-loop", fields={"worker": "w"}), threading.Event()

    def in_thread() -> None:
        log.info("in.thread")
        done.set()

    async def in_task() -> None:
        log.info("in.task")
        start_thread("test-thread", in_thread)

    loop.start()
    with bound(worker="of the caller"):
        loop.post(log.info, "in.callback")
        loop.run(in_task).result(10)
    assert done.wait(10)
    loop.stop()
    assert sorted(records.fields, key=lambda row: str(row["event"])) == [
        {"event": "in.callback", "worker": "w"},
        {"event": "in.task", "worker": "w"},
        {"event": "in.thread", "worker": "w"},
    ]


# Errors of the user's code. ---------------------------------------------------------------------------


def raised(function: Any, *args: Any) -> BaseException:
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def outer(value: str) -> None:
    try:
        int(value)
    except ValueError as error:
        raise KeyError(value) from error


def grouped(value: str) -> None:
    raise BaseExceptionGroup(value, [raised(outer, value), OSError(value)])


def deep(value: str, depth: int) -> None:
    if depth == 0:
        raise RuntimeError(value)
    deep(value, depth - 1)


def chained(value: str) -> None:
    error: BaseException | None = None
    for _ in range(3 * MOST):
        following = RuntimeError(value)
        following.__cause__ = error
        error = following
    assert error is not None
    error.__cause__.__cause__ = error  # type: ignore[union-attr]  # a circle, as somebody's code may make
    raise error


class Noted(Exception):
    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.add_note(value)


def noted(value: str) -> None:
    raise Noted(value)


def syntax(value: str) -> None:
    eval(f"{value} +", {})  # noqa: S307  # an error whose words are a source


@pytest.mark.parametrize("function", [outer, grouped, noted, syntax, chained, lambda value: deep(value, 500)])
def test_of_an_error_its_types_and_places_are_told_and_no_word(function: Any, records: Records) -> None:
    error = raised(function, SECRET)
    said = told(error)
    assert said["error"] == type(error).__name__
    log.warning("cycle.failed", **said)
    text = records.all[0].getMessage()
    assert SECRET not in text
    assert SECRET not in str(records.fields)
    assert records.all[0].exc_info is None
    assert "test_log.py:" in text


def test_the_causes_of_an_error_come_before_it_and_the_members_of_a_group_after_it(records: Records) -> None:
    lines = [line.strip() for line in told(raised(grouped, SECRET))["stack"]]
    assert [line for line in lines if line.endswith("Error") or line == "ExceptionGroup"] == [
        "ExceptionGroup",
        "ValueError",
        "KeyError",
        "OSError",
    ]
    assert f"{__file__}:{outer.__code__.co_firstlineno + 2} in outer" in lines
    assert "int(value)" in lines


def test_of_a_deep_stack_the_innermost_frames_are_told(records: Records) -> None:
    stack = told(raised(deep, SECRET, 500))["stack"]
    assert sum(" in deep" in line for line in stack) == DEPTH
    assert stack[-1].strip() == "raise RuntimeError(value)"


def test_who_asks_for_debug_gets_the_whole_traceback(records: Records) -> None:
    logging.getLogger("greenroom").setLevel(logging.DEBUG)
    error = raised(outer, SECRET)
    log.warning("cycle.failed", **told(error))
    [record] = records.all
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    assert f"KeyError: '{SECRET}'" in logging.Formatter().format(record)


# From another process. --------------------------------------------------------------------------------


def forwarded(record: logging.LogRecord) -> list[tuple[int, str, dict[str, Any]]]:
    sent: list[tuple[int, str, dict[str, Any]]] = []
    Forwarded(lambda *what: sent.append(what)).emit(record)
    return sent


def test_a_record_of_another_process_is_logged_with_the_fields_of_the_thread(records: Records) -> None:
    log.warning("cycle.failed", room="42", message=7, after_s=0.5, stack=["  one", "  two"])
    [(level, event, fields)] = forwarded(records.all.pop())
    check_from_child(["log", level, event, fields])
    with bound(worker="w1"):
        repeat(level, event, fields)
    assert records.all[0].levelno == logging.WARNING
    assert records.all[0].getMessage() == "event=cycle.failed worker=w1 room=42 message=7 after_s=0.5\n  one\n  two"
    assert records.fields[0]["stack"] == "  one\n  two"


def test_whatever_a_record_has_in_it_can_be_sent(records: Records) -> None:
    try:
        raise RuntimeError("no \udc80 text")
    except RuntimeError:
        log.exception("loop.callback_failed", huge=1 << 70, text="x" * 1_000_000, strange=object(), none=None)
    [sent] = forwarded(records.all[0])
    [frame] = Frames(FROM_WORKER).feed(pack("log", *sent))
    check_from_child(frame)
    assert len(pack(*frame)) < 100_000
    assert "RuntimeError" in frame[3]["exception"]
    repeat(*frame[1:])
    assert records.fields[-1]["huge"] == str(1 << 70)


def test_a_record_that_is_none_of_greenrooms_is_not_sent() -> None:
    assert forwarded(foreign()) == []
    odd = foreign()
    odd.greenroom = {"event": "cycle.failed", "two words": 1}
    assert forwarded(odd) == []


# How they are written. --------------------------------------------------------------------------------


def written(form: LogFormat, record: logging.LogRecord, *, colors: bool = False) -> str:
    return formatter(form, colors=colors).format(record)


@pytest.fixture
def record(records: Records) -> logging.LogRecord:
    log.warning("loop.blocked", room="4 2", blocked_s=1.5, stack=["  one", '  "two"'])
    [record] = records.all
    record.created = 1_700_000_000.1234
    return record


def foreign(words: str = "it %s", *args: object, exc_info: Any = None) -> logging.LogRecord:
    return logging.LogRecord("my.app", logging.ERROR, "app.py", 1, words, args or ("works",), exc_info)


def test_json_is_one_object_a_line(record: logging.LogRecord) -> None:
    text = written(LogFormat.JSON, record)
    assert "\n" not in text
    assert json.loads(text) == {
        "timestamp": "2023-11-14T22:13:20.123Z",
        "level": "warning",
        "event": "loop.blocked",
        "room": "4 2",
        "blocked_s": 1.5,
        "stack": '  one\n  "two"',
    }


def test_logfmt_is_one_line_a_record(record: logging.LogRecord) -> None:
    assert written(LogFormat.LOGFMT, record) == (
        'timestamp=2023-11-14T22:13:20.123Z level=warning event=loop.blocked room="4 2" blocked_s=1.5 '
        'stack="  one\\n  \\"two\\""'
    )


def test_console_has_the_stack_in_lines_and_colours_only_where_they_are_wanted(record: logging.LogRecord) -> None:
    plain = written(LogFormat.CONSOLE, record)
    first, *rest = plain.splitlines()
    assert first.split() == ["2023-11-14T22:13:20.123Z", "[warning", "]", "loop.blocked", "room='4", "2'", "blocked_s=1.5"]
    assert rest == ["  one", '  "two"']
    assert "\x1b[" not in plain
    assert "\x1b[" in written(LogFormat.CONSOLE, record, colors=True)


@pytest.mark.parametrize("form", list(LogFormat))
def test_records_of_others_are_written_too_with_their_tracebacks(form: LogFormat) -> None:
    try:
        raise RuntimeError("theirs")
    except RuntimeError:
        text = written(form, foreign(exc_info=sys.exc_info()))
    assert "it works" in text
    assert "my.app" in text
    assert "RuntimeError: theirs" in text
    assert form is LogFormat.CONSOLE or "\n" not in text


def test_a_traceback_on_the_console_shows_no_values_of_variables() -> None:
    hidden = f"{SECRET} of a variable"
    try:
        raise RuntimeError("theirs")
    except RuntimeError:
        text = written(LogFormat.CONSOLE, foreign(exc_info=sys.exc_info()))
    assert hidden.startswith(SECRET)
    assert f"{SECRET} of" not in text
    assert "Traceback (most recent call last)" in text


def test_the_console_is_told_nothing_that_a_terminal_would_obey(records: Records) -> None:
    log.warning("signal.malformed", error="a\x1b[2Jb\x07c\r\x9b", entry="1-0")
    assert "a\\x1b[2Jb\\x07c\\r\\x9b" in written(LogFormat.CONSOLE, records.all[0])
    assert "x\\x1b[2J" in written(LogFormat.CONSOLE, foreign("x\x1b[2J%s", "y"))


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x85", "\u2028", "\v", "\x1c"])
def test_nobody_can_end_a_line_of_the_log_and_begin_another(end: str, records: Records) -> None:
    log.info("signal.applied", by=f"ann{end}event=room.stopped")
    [record] = records.all
    assert len(record.getMessage().splitlines()) == 1
    assert len(written(LogFormat.LOGFMT, record).splitlines()) == 1
    assert len(written(LogFormat.JSON, record).splitlines()) == 1
    assert len(written(LogFormat.LOGFMT, foreign("it %s", f"one{end}two")).splitlines()) == 1


def test_nor_by_the_words_of_an_error() -> None:
    try:
        raise ValueError("\x1b]0;owned\x07 and \x9b2J")
    except ValueError as error:
        line = written(LogFormat.CONSOLE, foreign(exc_info=(type(error), error, error.__traceback__)))
    assert "ValueError: \\x1b]0;owned\\x07 and \\x9b2J" in line
    assert "\x1b" not in line


def test_what_is_no_json_value_is_written_as_text(records: Records) -> None:
    log.warning("process.started", path=json)
    assert "module" in json.loads(written(LogFormat.JSON, records.all[0]))["path"]


def test_what_redis_refuses_is_one_line_and_any_other_failure_has_its_traceback(records: Records) -> None:
    for error in (RedisRefused("no permissions"), RedisUnavailable("nothing there"), ValueError("a bug"), None):
        log.warning("child.failed", child="lease", **failed(error))
    refused, unavailable, bug, stopped = records.all
    assert refused.getMessage() == 'event=child.failed child=lease error="no permissions"'
    assert "nothing there" in unavailable.getMessage()
    assert bug.exc_info is not None
    assert bug.exc_info[0] is ValueError
    assert [record.exc_info for record in (refused, unavailable, stopped)] == [None, None, None]
