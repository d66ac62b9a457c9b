"""How ``greenroom run`` and ``relay`` write their log to stderr: for people, or a line of JSON or logfmt a record for programs.

A program that embeds greenroom has nothing to do with this: its own configuration of the logger ``greenroom`` counts.
"""

from __future__ import annotations

import datetime as dt
import io
import logging
import os
import sys
from enum import StrEnum
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from .protocol.log import harmless


class LogLevel(StrEnum):
    """From which level on a command logs."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a record is written."""

    CONSOLE = "console"
    JSON = "json"
    LOGFMT = "logfmt"


def configure_logging(level: str, form: LogFormat | None = None) -> None:
    """Log to stderr, from this level on; by default in console format to a terminal, in JSON to anything else.

    What is there already, as when a test runs this, stays.
    """
    terminal = sys.stderr.isatty()
    form = form or (LogFormat.CONSOLE if terminal else LogFormat.JSON)
    # The label of one of several processes would make a line of JSON none; the field `worker` says the same.
    stream: TextIO | None = sys.stderr if form is LogFormat.CONSOLE else sys.__stderr__
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter(form, colors=terminal and "NO_COLOR" not in os.environ))
    logging.basicConfig(handlers=[handler], level=level.upper())


def formatter(form: LogFormat, *, colors: bool = False) -> logging.Formatter:
    """The formatter for records of greenroom and of anybody else."""
    render: dict[LogFormat, list[Processor]] = {
        LogFormat.CONSOLE: [_harmless, _console(colors)],
        LogFormat.JSON: [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)],
        LogFormat.LOGFMT: [
            structlog.processors.format_exc_info,
            _harmless,
            structlog.processors.LogfmtRenderer(bool_as_flag=False),
        ],
    }
    strip = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=[_fields], processors=[strip, *render[form]])


def _console(colors: bool) -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_traceback, sort_keys=False)


def _traceback(out: TextIO, exc_info: ExcInfo) -> None:
    """Not the one that rich makes: it would show the values of variables, and so what messages say."""
    plain = io.StringIO()
    structlog.dev.plain_traceback(plain, exc_info)
    out.write(harmless(plain.getvalue()))


def _fields(_: WrappedLogger, level: str, event: EventDict) -> EventDict:
    """What a line says: when, how loud, what, and the fields of a record of greenroom's; of another one, whose it is."""
    record: logging.LogRecord = event["_record"]
    at = dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    known: dict[str, Any] = getattr(record, "greenroom", None) or {"event": event["event"], "logger": record.name}
    return {"timestamp": at, "level": level, **known, **{name: event[name] for name in event if name != "event"}}


def _harmless(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {name: harmless(value) if isinstance(value, str) else value for name, value in event.items()}
