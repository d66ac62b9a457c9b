"""One structlog logger over the standard library's ``greenroom`` logger: the host's logging configuration decides.

The message of a record is one ``event=… key=value`` line, with a stack in lines below it. The same as a dict is the record's
attribute ``greenroom``, for handlers that write JSON, say.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog
from structlog.typing import EventDict, WrappedLogger

from .errors import RedisError, words_of

DEPTH = 15  # the innermost frames of an error that are shown
MOST = 10  # errors that are shown of those that it came of, or is a group of
MOST_CHARS = 20_000  # of a field of a record that another process forwards

_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
_EVENT = re.compile(r"[a-z_]{1,50}\.[a-z_]{1,50}")
_FIELD = re.compile(r"(?!(?:level|event|self|exc_info|stack_info)$)[a-z_]{1,50}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")  # but tab and line feed
_LOGGER = logging.getLogger("greenroom")
_RENDER = structlog.processors.LogfmtRenderer(key_order=["event"], bool_as_flag=False)


class _Thread(threading.local):
    fields: Mapping[str, object] = {}


_thread = _Thread()


def _render(logger: WrappedLogger, name: str, event: EventDict) -> tuple[tuple[str], dict[str, Any]]:
    """Exceptions go to the standard library, which knows how to print them."""
    exc_info, stack = event.pop("exc_info", None), event.pop("stack", [])
    line = {"event": event.pop("event"), **_thread.fields, **event}
    line = {key: words_of(value) if isinstance(value, BaseException) else value for key, value in line.items()}
    shown = {key: harmless(value) if isinstance(value, str) else value for key, value in line.items()}
    text = "\n".join((str(_RENDER(logger, name, shown)), *stack))
    known = line | {"stack": "\n".join(stack)} if stack else line
    if isinstance(exc_info, BaseException):  # the standard library would ask it whether it is true
        exc_info = (type(exc_info), exc_info, exc_info.__traceback__)
    return (text,), {"exc_info": exc_info, "extra": {"greenroom": known}}


def harmless(text: str) -> str:
    """The text without what a terminal would obey, or a reader take for the end of a line, but for line feeds."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    _LOGGER,
    processors=[structlog.stdlib.filter_by_level, _render],
    wrapper_class=structlog.stdlib.BoundLogger,
    context_class=dict,
    cache_logger_on_first_use=True,
)


@contextmanager
def bound(**fields: object) -> Iterator[None]:
    """Within this block all lines of the calling thread have these fields, too. Of the thread, not of a context: what runs on
    a loop has the context of whoever posted it, which may be a thread of the host.
    """
    before = _thread.fields
    _thread.fields = {**before, **fields}
    try:
        yield
    finally:
        _thread.fields = before


def bound_as_here(work: Callable[[], object]) -> Callable[[], None]:
    """``work``, for another thread, whose lines are then to have the fields of this one's."""
    fields = _thread.fields

    def run() -> None:
        with bound(**fields):
            work()

    return run


def failed(error: BaseException | None) -> dict[str, Any]:
    """The fields for a part that failed: of what Redis refuses one line, for its operator; of all else the traceback."""
    return {"error": error} if isinstance(error, RedisError) else {"exc_info": error}


def told(error: BaseException, *, known: bool = False) -> dict[str, Any]:
    """The fields of a line for an error of the user's code: its type, and the places in the code that it came through.

    Not what it says, which may be a part of a message: that is only for who has asked for level DEBUG.
    ``known``: the places have been told of the error before it, of the same type.
    """
    if _LOGGER.isEnabledFor(logging.DEBUG):
        return {"error": type(error).__name__, "exc_info": error}
    if known:
        return {"error": type(error).__name__}
    return {"error": type(error).__name__, "stack": _places(error)}


def _places(error: BaseException) -> list[str]:
    """Lines for an error's frames, the innermost last; before them those of what it came of, after them those of its group."""
    lines = []
    for each in _related(error, set()):
        frames = traceback.extract_tb(each.__traceback__, -10 * DEPTH)
        begin = next((i for i, frame in enumerate(frames) if not frame.filename.startswith(_OWN)), 0)  # the user's code
        shown = traceback.StackSummary.from_list(frames[begin:][-DEPTH:])
        lines += [f"    {type(each).__name__}", *frame_lines(shown)]
    return lines


def _related(error: BaseException | None, seen: set[int]) -> Iterator[BaseException]:
    if error is None or id(error) in seen or len(seen) >= MOST:
        return
    seen.add(id(error))
    came_of = None if error.__suppress_context__ else error.__context__
    yield from _related(came_of if error.__cause__ is None else error.__cause__, seen)
    yield error
    for each in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from _related(each, seen)


def frame_lines(frames: traceback.StackSummary) -> list[str]:
    """Where each frame stands, and below it the line of source, if it is known."""
    lines = []
    for frame in frames:
        lines.append(f"    {frame.filename}:{frame.lineno} in {frame.name}")
        if frame.line:
            lines.append(f"      {frame.line}")
    return lines


# Records of another process. --------------------------------------------------------------------------


class Forwarded(logging.Handler):
    """Has ``send`` called with level, event and fields of each record of greenroom's, for ``repeat`` in another process."""

    def __init__(self, send: Callable[[int, str, dict[str, Any]], object]) -> None:
        super().__init__()
        self._send_on = send

    def emit(self, record: logging.LogRecord) -> None:
        known: dict[str, Any] = getattr(record, "greenroom", {"event": ""})
        fields = {name: _plain(value) for name, value in known.items()}
        if record.exc_info:
            fields["exception"] = _plain(logging.Formatter().formatException(record.exc_info))
        event = str(fields.pop("event"))
        if is_record(record.levelno, event, fields):  # else it is somebody else's, under our name
            self._send_on(record.levelno, event, fields)


def _plain(value: object) -> int | float | str:
    """A number, or a text that is valid and not too long."""
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 63):
        return value
    return str(value)[:MOST_CHARS].encode("utf-8", "backslashreplace").decode()


def forward(level: int, send: Callable[[int, str, dict[str, Any]], object]) -> None:
    """From now on greenroom's records from this level on go to ``send``, and nowhere else."""
    _LOGGER.handlers[:] = [Forwarded(send)]
    _LOGGER.setLevel(level)
    _LOGGER.propagate = False


def log_level() -> int:
    """From which level on greenroom's records go anywhere."""
    return _LOGGER.getEffectiveLevel()


def is_record(level: int, event: str, fields: dict[Any, Any]) -> bool:
    """Whether it is what ``repeat`` can log."""
    named = all(type(name) is str and _FIELD.fullmatch(name) for name in fields)
    plain = all(isinstance(value, int | float | str) for value in fields.values())
    return level in _LEVELS and _EVENT.fullmatch(event) is not None and named and plain


def repeat(level: int, event: str, fields: dict[str, Any]) -> None:
    """Log what another process has forwarded."""
    stack = fields.pop("stack", None)
    log.log(level, event, **fields, **({} if stack is None else {"stack": str(stack).split("\n")}))
