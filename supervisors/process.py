"""The supervisor process: an actor system under the signals of an operating system, and the exit codes it ends with."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from enum import Enum, IntEnum
from queue import SimpleQueue
from typing import Any, NoReturn

from ..protocol.errors import AgentError, GreenroomError, InvalidRequest, RedisError, Superseded
from ..protocol.log import log
from .system import DEFAULT_GRACE, ActorSystem

EXIT_S = 5.0


class ExitCode(IntEnum):
    """What a process of greenroom ends with."""

    OK = 0
    FAILED = 1
    USAGE = 2
    REDIS = 3
    SUPERSEDED = 4


def exit_code(error: BaseException | None) -> ExitCode:
    """The exit code that says who must act on ``error``."""
    if error is None:
        return ExitCode.OK
    if isinstance(error, InvalidRequest | AgentError):
        return ExitCode.USAGE
    if isinstance(error, Superseded):
        return ExitCode.SUPERSEDED
    return ExitCode.REDIS if isinstance(error, RedisError) else ExitCode.FAILED


def complain(line: str) -> None:
    """Say on stderr, in one line, what the user should know."""
    sys.stderr.write(f"greenroom: {' '.join(line.splitlines())}\n")
    sys.stderr.flush()


class _Event(Enum):
    SIGNAL = "signal"  # SIGTERM or SIGINT
    READY = "ready"  # the system has started
    ENDED = "ended"  # the system has ended, by itself or because it was stopped


class _Over:
    """There is nothing left to wait for."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


# Signal handlers may put into a SimpleQueue, whatever they have interrupted: into a Queue or an Event they may not.
_Events = SimpleQueue[_Event | _Over]


def run_process(system: ActorSystem, grace: timedelta = DEFAULT_GRACE) -> ExitCode:
    """Run ``system`` until it ends or the process is told to; answer the exit code, and say on stderr why if it is not 0.

    The first SIGTERM or SIGINT stops the system with ``grace``; the second gives up at once, with FAILED. Call it on the main
    thread, where Python handles signals.
    """
    events = _Events()
    with _handling(signal.SIGTERM, signal.SIGINT, by=lambda *_: events.put(_Event.SIGNAL)):
        _spawn(_start_and_wait, system, events)
        code, words = _conduct(system, grace, events)
    if words:
        complain(words)
    return code


def _conduct(system: ActorSystem, grace: timedelta, events: _Events) -> tuple[ExitCode, str]:
    signalled = ready = ended = stopping = False
    while not isinstance(event := events.get(), _Over):
        if event is _Event.SIGNAL and signalled:
            return ExitCode.FAILED, "forced to end by a second signal: what is in flight is replayed when its lease has run out"
        signalled |= event is _Event.SIGNAL
        ready |= event is _Event.READY
        ended |= event is _Event.ENDED
        if ready and (signalled or ended) and not stopping:
            stopping = True
            if signalled:
                log.info("process.stopping", worker=system.name, grace_s=grace.total_seconds())
            _spawn(_stop, system, grace, events)
    return exit_code(event.error), _words(event.error)


def _words(error: BaseException | None) -> str:
    if error is None:
        return ""
    if isinstance(error, GreenroomError):
        return str(error)
    log.error("process.failed", exc_info=error)  # the agent's constructor, or a bug: only its traceback tells
    return f"{type(error).__name__}: {error}"


def _start_and_wait(system: ActorSystem, events: _Events) -> None:
    try:
        system.start()
    except BaseException as error:
        events.put(_Over(error))
        return
    events.put(_Event.READY)
    with contextlib.suppress(Exception):  # why it ended is asked again after the stop
        system.wait()
    events.put(_Event.ENDED)


def _stop(system: ActorSystem, grace: timedelta, events: _Events) -> None:
    try:
        system.stop(grace)
        system.wait(0)
    except BaseException as error:
        events.put(_Over(error))
    else:
        events.put(_Over(None))


def _spawn(work: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=work, args=args, name=f"process{work.__name__}", daemon=True).start()


@contextlib.contextmanager
def _handling(*numbers: signal.Signals, by: Callable[..., object]) -> Iterator[None]:
    before = {number: signal.signal(number, by) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Exit:
    """The end of this process, 5 s after it is called at the latest, whatever the agent's code leaves running.

    Threads are waited for and atexit functions run as usual within that time. Make it before the agent's code is imported: of
    the atexit functions, the first registered is the last to run.
    """

    def __init__(self) -> None:
        self._code = int(ExitCode.FAILED)
        atexit.register(self._end)

    def __call__(self, code: int) -> NoReturn:
        self._code = code
        deadline = threading.Timer(EXIT_S, os._exit, (code,))
        deadline.daemon = True
        deadline.start()
        _flush()
        sys.exit(code)

    def _end(self) -> None:
        # What Python would do next runs the agent's code once more: it closes coroutines, which may not want to end.
        _flush()
        logging.shutdown()
        os._exit(self._code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it has gone
            stream.flush()
