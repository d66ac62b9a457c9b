"""The supervisor process: an actor system under the orders of an operating system, and the exit codes it ends with."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from enum import Enum, IntEnum
from queue import SimpleQueue
from typing import Any, NoReturn, Protocol, TextIO, cast

from ..protocol.errors import AgentError, GreenroomError, InvalidRequest, RedisEmptied, RedisError, Superseded, words_of
from ..protocol.log import log
from .notify import Notifier
from .orders import Order, Orders
from .supervisor import BudgetSpent
from .system import DEFAULT_GRACE

EXIT_S = 5.0


class ExitCode(IntEnum):
    """What a process of greenroom ends with."""

    OK = 0  # drained, when it was told to end
    FAILED = 1  # crashed, or forced to end
    USAGE = 2
    REDIS = 3  # it cannot be used, at the start
    SUPERSEDED = 4
    BUDGET = 5  # too many restarts, of parts of the worker or of the parent's workers
    EMPTIED = 6  # Redis has lost the agent's data


# The first that fits. RedisError is the base of two others.
_CODES: tuple[tuple[type[GreenroomError], ExitCode], ...] = (
    (InvalidRequest, ExitCode.USAGE),
    (AgentError, ExitCode.USAGE),
    (Superseded, ExitCode.SUPERSEDED),
    (RedisEmptied, ExitCode.EMPTIED),
    (RedisError, ExitCode.REDIS),
    (BudgetSpent, ExitCode.BUDGET),
)


def exit_code(error: BaseException | None) -> ExitCode:
    """The exit code that says who must act on ``error``."""
    if error is None:
        return ExitCode.OK
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)


def complain(line: str) -> None:
    """Say on stderr, in one line, what the user should know."""
    with contextlib.suppress(OSError, ValueError):  # whoever read it has gone: no reason to do anything else
        sys.stderr.write(f"greenroom: {' '.join(line.splitlines())}\n")
        sys.stderr.flush()


class _Labelled:
    """A text stream that begins each line with a label, and writes whole lines only: those of other processes come between."""

    def __init__(self, stream: TextIO, label: str) -> None:
        self._stream = stream
        self._label = label
        self._begun = ""
        self._lock = threading.RLock()  # a signal handler may write, too

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
            if lines:
                self._stream.write("".join(f"{self._label}: {line}\n" for line in lines))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        with self._lock:
            if self._begun:
                self.write("\n")
            self._stream.flush()


def label_stderr(label: str) -> None:
    """Begin each line that this process writes to stderr with ``label``: several processes share it."""
    sys.stderr = cast("TextIO", _Labelled(sys.stderr, label))


class _Event(Enum):
    READY = "ready"  # the system has started
    ENDED = "ended"  # the system has ended, by itself or because it was stopped


class _Over:
    """There is nothing left to wait for."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Runnable(Protocol):
    """What a process runs: an actor system, or a relay."""

    name: str

    def start(self) -> object: ...
    def stop(self, grace: timedelta, /) -> None: ...
    def wait(self, timeout: float | None = None, /) -> bool: ...
    def dump(self) -> str: ...
    def report_every(self, period_s: float, report: Callable[[str], object], /) -> None: ...


_Events = SimpleQueue[object]
_dumping, _dumps = threading.Lock(), threading.BoundedSemaphore(2)  # one that is being written, and one that waits for it


def run_process(system: Runnable, grace: timedelta = DEFAULT_GRACE, orders: Orders | None = None) -> ExitCode:
    """Run ``system`` until it ends or the process is told to; answer the exit code, and say on stderr why if it is not 0.

    The first SIGTERM, SIGINT or SIGHUP stops the system with ``grace``; a second SIGTERM or SIGINT gives up at once, with
    FAILED; SIGUSR1 has it say on stderr what it is doing. Call it on the main thread, where Python handles signals.
    ``orders``, if entered before, tells what came until now. systemd, if it asks to be notified, or the parent of several
    workers is told how it is.
    """
    with contextlib.ExitStack() as stack:
        orders = orders or stack.enter_context(Orders())
        orders.begin()
        told = Notifier.from_environment() if orders.lifeline is None else Notifier.to_parent(orders.lifeline)
        notifier = stack.enter_context(told)
        _spawn(_start_and_wait, system, orders.events)
        code, words = _conduct(system, grace, orders, notifier)
        if words:
            complain(words)
            notifier.say(words)
    return code


def _conduct(system: Runnable, grace: timedelta, orders: Orders, notifier: Notifier) -> tuple[ExitCode, str]:
    told = ready = ended = stopping = False
    while not isinstance(event := orders.next(), _Over):
        if event is Order.FORCE:
            return ExitCode.FAILED, "forced to end by a second signal: what is in flight is replayed when its lease has run out"
        if event is Order.DUMP:
            _spawn(_dump, system)
        if event is _Event.READY:
            ready = True
            notifier.ready("works")
            system.report_every(notifier.period_s, notifier.alive)
        told |= event is Order.STOP
        ended |= event is _Event.ENDED
        if ready and (told or ended) and not stopping:
            stopping = True
            notifier.stopping("ends")
            if told:
                log.info("process.stopping", grace_s=grace.total_seconds())
            _spawn(_stop, system, grace, orders.events)
    return exit_code(event.error), _words(event.error)


def _dump(system: Runnable) -> None:
    if not _dumps.acquire(blocking=False):
        return
    try:
        with _dumping:
            sys.stderr.write(f"{system.dump()}\n")
            sys.stderr.flush()
    finally:
        _dumps.release()


def _words(error: BaseException | None) -> str:
    if error is None:
        return ""
    if isinstance(error, GreenroomError):
        return str(error)
    log.error("process.failed", exc_info=error)  # the agent's constructor, or a bug: only its traceback tells
    return f"{type(error).__name__}: {words_of(error)}"


def _start_and_wait(system: Runnable, events: _Events) -> None:
    try:
        system.start()
    except BaseException as error:
        events.put(_Over(error))
        return
    events.put(_Event.READY)
    with contextlib.suppress(Exception):  # why it ended is asked again after the stop
        system.wait()
    events.put(_Event.ENDED)


def _stop(system: Runnable, grace: timedelta, events: _Events) -> None:
    try:
        system.stop(grace)
        system.wait(0)
    except BaseException as error:
        events.put(_Over(error))
    else:
        events.put(_Over(None))


def _spawn(work: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=work, args=args, name=f"process{work.__name__}", daemon=True).start()


class Exit:
    """The end of this process, 5 s after it is called at the latest, whatever the agent's code leaves running.

    Threads are waited for and atexit functions run as usual within that time, until Ctrl-C, SIGTERM or SIGHUP. Make it before
    the agent's code is imported: of the atexit functions, the first registered is the last to run.
    """

    def __init__(self) -> None:
        self._code = int(ExitCode.FAILED)
        atexit.register(self._end)

    def __call__(self, code: int) -> NoReturn:
        self._code = code
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: os._exit(code))
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
