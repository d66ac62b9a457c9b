"""The parent of several worker processes: it starts them, starts again what crashes, and runs no code of the agent itself.

All of it happens on the main thread, in the order of one queue: signals, what children say, their ends, and the times at which
they are started again. A parent that is killed takes nobody with it by force: its children see their lifelines end, and drain.

Under a watchdog the parent is well as long as this thread comes round, whatever becomes of its children: to end it would end
them all. It watches each of them in the same way, and starts again the one that hangs.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ..actors.backoff import Backoff
from ..protocol.keys import check_name
from ..protocol.log import log
from .notify import PERIOD, Notifier
from .orders import STDERR, Order, Orders
from .process import EXIT_S, ExitCode, complain
from .restart import RestartHistory, RestartPolicy
from .system import default_name

POLICY = RestartPolicy(5, timedelta(seconds=60), Backoff(timedelta(milliseconds=100), timedelta(seconds=10)))
REDIS_RETRY_S = 2.0
FORCE_S = EXIT_S + 2.0  # a process that was forced to end needs so long at the most, unless it hangs
# A child says that it lives in each look of the parent's. It is counted by looks, not by the time: a parent that was itself
# suspended for an hour has not looked for one.
DUMP_LOOKS, KILL_LOOKS = 3, 4
MAX_LINE_BYTES = 4096


@dataclass(slots=True, eq=False)
class _Child:
    name: str
    words: tuple[str, ...]
    history: RestartHistory
    process: subprocess.Popen[bytes] | None = None
    lifeline: socket.socket | None = None  # the only other end that there is
    ready: bool = False
    silent: int = 0  # how many looks ago it has said that it lives
    starts: int = 0
    started_s: float = 0.0
    start_at_s: float | None = None  # when it is to be started again

    def tell(self, order: Order) -> None:
        if self.lifeline is not None:
            with contextlib.suppress(OSError):  # it has just ended, or heard none of thousands
                self.lifeline.send(order.value, socket.MSG_DONTWAIT)

    def let_go(self) -> None:
        """Its end is known, or nobody is left to give it orders."""
        if self.lifeline is not None:
            with contextlib.suppress(OSError):
                self.lifeline.shutdown(socket.SHUT_RDWR)  # for who listens, and for a fork of the child's that has it still
            self.lifeline.close()
            self.lifeline = None


class _ChildEnded:
    """At least one."""


@dataclass(frozen=True, slots=True)
class _Said:
    """A line that a child has said over its lifeline."""

    child: _Child
    process: subprocess.Popen[bytes]
    line: bytes


def ends_all(code: int, *, first: bool) -> ExitCode | None:
    """The exit code with which all must end when a child has ended with ``code``, or None when a new start may help.

    ``first``: it had been started for the first time, so what is wrong was wrong from the beginning.
    """
    if code in (ExitCode.SUPERSEDED, ExitCode.EMPTIED) or (first and code in (ExitCode.USAGE, ExitCode.REDIS)):
        return ExitCode(code)
    return None


def worker_names(name: str | None, count: int) -> list[str]:
    """NAME-1 to NAME-``count``; by default of the host and process id of this process.

    Raises:
        InvalidName: they cannot be names of workers.
    """
    name = default_name() if name is None else name
    return [check_name(f"{name}-{number}", "worker name") for number in range(1, count + 1)]


def _lifeline() -> tuple[socket.socket, socket.socket]:
    """Two ends of which none is one of the standard streams, which may be closed: a child's own would take its place."""
    low = socket.socketpair()
    try:
        ours, theirs = (socket.socket(fileno=fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, STDERR + 1)) for end in low)
    finally:
        for end in low:
            end.close()
    return ours, theirs


class Processes:
    """Keeps one process for each of ``workers`` running, until it is told to end or one of them must not be started again.

    Args:
        command: what starts a worker; ``--name NAME --lifeline FD`` are added.
        workers: their names, and the words that are added for each.
        environment: of the workers.
        policy: how often each worker may be started again, and when.
        notifier: who is told how all of them are; if it has a watchdog, workers that hang are ended.
    """

    def __init__(
        self,
        command: Sequence[str],
        workers: Mapping[str, Sequence[str]],
        orders: Orders,
        *,
        environment: Mapping[str, str],
        policy: RestartPolicy = POLICY,
        notifier: Notifier | None = None,
    ) -> None:
        self._command = tuple(command)
        self._environment = dict(environment)
        self._notifier = notifier or Notifier()  # nobody
        if self._notifier.watchdog_s is not None:
            self._environment[PERIOD] = str(int(self._notifier.watchdog_s * 1e6))
        self._look_at_s: float | None = None
        self._up = False  # all have been ready at once
        self._orders = orders
        self._policy = policy
        self._children = [_Child(name, tuple(words), RestartHistory(policy)) for name, words in workers.items()]
        self._ending = False
        self._code = ExitCode.OK
        self._kill_at_s: float | None = None

    def run(self) -> ExitCode:
        """Start all, and return when all have ended. Call it on the main thread, in a process that has no other children whose
        end anybody waits for: it takes notice of all of them, so that none becomes a zombie, not even one that it inherits.

        The first SIGTERM, SIGINT or SIGHUP lets the workers drain, a second SIGTERM or SIGINT forces them. SIGUSR1 is
        passed on.
        """
        events = self._orders.events
        before = signal.signal(signal.SIGCHLD, lambda *_: events.put(_ChildEnded()))
        self._orders.begin()
        if self._notifier.watchdog_s is not None:
            self._look_at_s = time.monotonic()
        try:
            for child in self._children:
                self._start(child)
            while not self._ending or any(child.process for child in self._children):
                self._take(self._next_event())
            return self._code
        finally:
            signal.signal(signal.SIGCHLD, before)
            for child in self._children:
                child.let_go()  # after an error in here: they drain by themselves

    def _next_event(self) -> object:
        """What has happened, or None when it is time to do something."""
        times = [child.start_at_s for child in self._children] + [self._kill_at_s, self._look_at_s]
        return self._orders.next(min((at for at in times if at is not None), default=None))

    def _take(self, event: object) -> None:
        if isinstance(event, _ChildEnded):
            self._reap()
        elif isinstance(event, _Said):
            self._heard(event)
        elif event is Order.STOP and not self._ending:
            log.info("process.stopping", workers=len(self._children))
            self._end(ExitCode.OK)
        elif event is Order.FORCE:
            self._force()
        elif event is Order.DUMP:
            self._dump()
        now_s = time.monotonic()
        for child in self._children:
            if child.start_at_s is not None and child.start_at_s <= now_s:
                self._start(child)
        if self._kill_at_s is not None and self._kill_at_s <= now_s:
            self._kill()
        if self._look_at_s is not None and self._look_at_s <= now_s:
            self._look_at_s = now_s + self._notifier.period_s
            self._look()

    # Start. ---------------------------------------------------------------------------------------

    def _start(self, child: _Child) -> None:
        child.start_at_s = None
        ours, theirs = _lifeline()
        command = (*self._command, *child.words, "--name", child.name, "--lifeline", str(theirs.fileno()))
        try:
            # A session of its own: Ctrl-C in a terminal is for the parent, who passes it on.
            child.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=self._environment, start_new_session=True
            )
        except OSError as error:  # no memory, or too many processes: it may be over soon
            ours.close()
            log.error("process.start_failed", worker=child.name, error=error)
            self._plan(child, f"cannot be started: {error}")
            return
        finally:
            theirs.close()
        child.lifeline, child.started_s = ours, time.monotonic()
        child.ready, child.silent = False, 0
        child.starts += 1
        listening = (child, child.process, ours)
        threading.Thread(target=self._listen, args=listening, name=f"greenroom-{child.name}", daemon=True).start()
        log.info("process.started", worker=child.name, pid=child.process.pid, start=child.starts)

    def _plan(self, child: _Child, why: str) -> None:
        """Plan the next start of a child, or end all when it has had too many."""
        delay_s = child.history.next_delay_s(time.monotonic())
        if delay_s is None:
            period_s = self._policy.period.total_seconds()
            words = f"{child.name} {why}; it was started again {self._policy.intensity} times within {period_s:.0f} s"
            self._end(ExitCode.BUDGET, words)
        else:
            self._start_in(child, delay_s)

    def _start_in(self, child: _Child, delay_s: float) -> None:
        log.warning("process.restarting", worker=child.name, in_s=round(delay_s, 3))
        child.start_at_s = time.monotonic() + delay_s

    # How they are. --------------------------------------------------------------------------------

    def _listen(self, child: _Child, process: subprocess.Popen[bytes], lifeline: socket.socket) -> None:
        """On a thread of its own, until the child has ended."""
        with contextlib.suppress(OSError), lifeline.makefile("rb") as lines:
            while line := lines.readline(MAX_LINE_BYTES):
                self._orders.events.put(_Said(child, process, line))

    def _heard(self, said: _Said) -> None:
        child, word = said.child, said.line.strip()
        if child.process is not said.process:
            return
        if word == b"READY=1":
            child.ready = True
            self._tell_status()
        elif word == b"WATCHDOG=1":
            child.silent = 0

    def _tell_status(self) -> None:
        status = f"{sum(child.ready for child in self._children)} of {len(self._children)} workers ready"
        if not self._up and all(child.ready for child in self._children):
            self._up = True
            self._notifier.ready(status)
        else:
            self._notifier.say(status)

    def _look(self) -> None:
        """Show that this parent is well, and see who of its children is not."""
        self._notifier.alive()
        for child in self._children:
            if child.process is None or not child.ready or self._ending:
                continue
            child.silent += 1
            if child.silent == DUMP_LOOKS:
                log.error("process.hangs", worker=child.name, pid=child.process.pid)
                child.tell(Order.DUMP)
            elif child.silent == KILL_LOOKS:
                self._kill_child(child, child.process)

    # Their ends. ----------------------------------------------------------------------------------

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for child in self._children:
                if child.process is not None and child.process.pid == pid:
                    self._exited(child, child.process, os.waitstatus_to_exitcode(status))

    def _exited(self, child: _Child, process: subprocess.Popen[bytes], code: int) -> None:
        process.returncode, child.process = code, None  # so that Popen waits for it no more
        child.let_go()
        child.ready = False
        self._tell_status()
        lived_s = round(time.monotonic() - child.started_s, 3)
        log.log(logging.INFO if code == 0 else logging.ERROR, "process.ended", worker=child.name, code=code, after_s=lived_s)
        if self._ending:
            if code != 0 and self._code is ExitCode.OK:
                self._code = ExitCode.FAILED
        elif all_end := ends_all(code, first=child.starts == 1):
            self._end(all_end, f"{child.name} ended with exit code {code}")
        elif code == ExitCode.REDIS:  # an outage of Redis is nobody's crash
            self._start_in(child, REDIS_RETRY_S)
        else:
            self._plan(child, f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}")

    # The end of all. ------------------------------------------------------------------------------

    def _end(self, code: ExitCode, why: str = "") -> None:
        self._ending, self._code = True, code
        self._notifier.stopping(why or f"{len(self._children)} workers end")
        if why:
            complain(f"{why}: all workers end")
        for child in self._children:
            child.start_at_s = None
            child.tell(Order.STOP)

    def _force(self) -> None:
        if self._kill_at_s is not None:  # a third signal
            self._kill()
            return
        if not self._ending:
            self._end(ExitCode.FAILED)
        if self._code is ExitCode.OK:
            self._code = ExitCode.FAILED
        self._kill_at_s = time.monotonic() + FORCE_S
        complain("forced to end by a second signal")
        for child in self._children:
            child.tell(Order.FORCE)

    def _kill(self) -> None:
        """End those who hang: not reaped yet, their process ids are still theirs."""
        self._kill_at_s = None
        for child in self._children:
            if child.process is not None:
                self._kill_child(child, child.process)

    def _kill_child(self, child: _Child, process: subprocess.Popen[bytes]) -> None:
        log.error("process.killed", worker=child.name, pid=process.pid)
        os.kill(process.pid, signal.SIGKILL)

    def _dump(self) -> None:
        now_s = time.monotonic()
        for child in self._children:
            up = f"pid {child.process.pid} up {now_s - child.started_s:.1f} s" if child.process else "waits for its restart"
            complain(f"worker {child.name}: {up}, started {child.starts} times")
            child.tell(Order.DUMP)
