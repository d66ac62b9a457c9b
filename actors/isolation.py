"""Runs an agent's code in child processes, a cycle or hook at a time in each, and keeps one more child ready than are at work.

A child whose cycle has ended by itself is used again. One whose cycle was aborted is not: told to end, its code has the
agent's ``abort_timeout``, and then the whole process group is killed, in any case: nothing that the cycle has started lives on.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from typing import Any

from ..protocol.errors import AgentError, CycleEnded
from ..protocol.log import log, log_level, repeat
from ..protocol.records import Message
from .agent import AgentSpec
from .child_process import ChildProcess
from .frames import pack_error, pack_message
from .interruption import Code
from .link import Link
from .loop import LoopThread
from .origin import origin_of
from .room_events import Cancelled, Closed, Failed, Finished
from .runner import MAX_ERROR_CHARS, Aborted, OnBegin, Report, ReportClosed, Run, names

START_S = 60.0  # for a child to import the agent and make it
END_S = 2.0  # for all children to be dead, once they are killed


class ChildRun:
    """One cycle's code in a child, or on its way there. On the control loop, but for ``abort``. It reports exactly once."""

    def __init__(
        self, pool: ChildPool, message: Message, state: bytes | None, link: Link, on_begin: OnBegin, report: Report
    ) -> None:
        self._pool = pool
        self._link = link
        self._on_begin = on_begin
        self._report = report
        self._frame = ("cycle", link.ticket, pack_message(message), state)
        self._names = names(message, link.ticket)
        self._child: ChildProcess | None = None
        self._aborted = False
        self._over = False
        self._code: Code | None = None  # what became of the code, once that is known
        self._deadline: asyncio.TimerHandle | None = None
        self.ticket = link.ticket

    def begin(self, child: ChildProcess) -> None:
        self._child = child
        self._on_begin()
        child.send(*self._frame)

    def abort(self, why: str) -> None:
        self._link.ended = self._link.ended or why
        self._pool.on_control(self._abort, why)

    def _abort(self, why: str) -> None:
        if self._aborted or self._over:
            return
        self._aborted = True
        if self._child is None:
            self._pool.withdraw(self)
            self._end(Cancelled(self.ticket, "not started"))
        else:
            self._child.send("abort", self.ticket, why)
            # Its room may be gone by then, so that nobody would call ``leave``.
            self._deadline = self._pool.control.loop.call_later(self._pool.spec.abort_timeout_s, self._kill)

    def leave(self) -> Code:
        self._kill()
        return self._code or "killed"

    def _kill(self) -> None:
        if self._child is not None and not self._over:
            self._aborted = True
            self._code = self._code or "killed"
            self._child.kill()

    def _end(self, report: Finished | Failed | Cancelled) -> None:
        self._over = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._report(report)

    # What its child says. -------------------------------------------------------------------------

    def told(self, kind: str, *rest: Any) -> None:
        match kind:
            case "push":
                self._link.push(*rest)
            case "ask":
                number, what, args = rest
                self._link.request(partial(self._answer, number), what, *args)
            case "finished":
                self._code_ended(Finished(self.ticket, *rest))
            case "failed":
                error, rejected, too_new = rest
                self._code_ended(Failed(self.ticket, error[:MAX_ERROR_CHARS], rejected, too_new))
            case "cancelled":
                (code,) = rest
                self._code_ended(Cancelled(self.ticket, "not started" if code == "not started" else "cancelled"))

    def _answer(self, number: int, answer: bytes | str, error: BaseException | None) -> None:
        if self._child is not None:
            self._child.send("answer", number, self._link.acked, answer, pack_error(error))

    def _code_ended(self, report: Finished | Failed | Cancelled) -> None:
        """The code has ended by itself."""
        assert self._child is not None
        if self._aborted or self._link.ended:
            self._aborted = True
            self._code = self._code or (report.code if isinstance(report, Cancelled) else "cancelled")
            self._child.kill()  # it is told to the room when nothing is left of it
        else:
            self._end(report)
            self._pool.give_back(self._child)

    def child_ended(self, how: str) -> None:
        if self._over:
            return
        if self._aborted:
            self._end(Cancelled(self.ticket, self._code or "cancelled"))
        else:
            self.failed(f"its process {how}")

    def failed(self, error: str) -> None:
        log.warning("cycle.failed", **self._names, error=error)
        self._end(Failed(self.ticket, error[:MAX_ERROR_CHARS]))


class ChildHook:
    """``on_interrupt`` or ``on_stop`` of one cycle, in a child. It reports exactly once."""

    def __init__(self, pool: ChildPool, aborted: Aborted, state: bytes | None, on_begin: OnBegin, report: ReportClosed) -> None:
        self._pool = pool
        self._on_begin = on_begin
        self._aborted = aborted
        self._report = report
        message, abort = pack_message(aborted.message), astuple(aborted.abort)
        self._frame = ("hook", aborted.ticket, message, state, abort, aborted.sent, aborted.code)
        self._child: ChildProcess | None = None
        self._over = False
        self.ticket = aborted.ticket

    def begin(self, child: ChildProcess) -> None:
        self._child = child
        self._on_begin()
        child.send(*self._frame)

    def abort(self, why: str) -> None:
        self._pool.on_control(self.leave)

    def leave(self) -> Code:
        if not self._over:
            if self._child is None:
                self._pool.withdraw(self)
            else:
                self._child.kill()
            self._end(Closed(self.ticket, self._aborted.abort.mode))
        return "killed"

    def _end(self, report: Closed) -> None:
        self._over = True
        self._report(report)

    def told(self, kind: str, *rest: Any) -> None:
        if kind == "closed" and not self._over:
            _, state, closing = rest
            self._end(Closed(self.ticket, self._aborted.abort.mode, state, closing))
            assert self._child is not None
            self._pool.give_back(self._child)

    def child_ended(self, how: str) -> None:
        self.failed(f"its process {how}")

    def failed(self, error: str) -> None:
        if not self._over:
            hook = f"on_{self._aborted.abort.mode}"
            log.warning("hook.failed", **self._aborted.names(), hook=hook, error=error)
            self._end(Closed(self.ticket, self._aborted.abort.mode))


class ChildPool:
    """The children of one worker, on the control loop. ``name`` is the agent's name.

    Raises:
        AgentError: a child process could not find the agent's class.
    """

    def __init__(self, spec: AgentSpec, name: str, control: LoopThread) -> None:
        self.spec = spec
        self.control = control
        self._load = ("load", name, log_level(), *astuple(origin_of(spec.agent_class)), sys.argv)
        self._most = spec.agent_class.max_processes
        self._children: dict[ChildProcess, ChildRun | ChildHook | None] = {}  # all that are not dead, and their work
        self._starting: dict[ChildProcess, asyncio.TimerHandle] = {}
        self._unfit: dict[ChildProcess, str] = {}  # why those that are ended as they were not ready were not
        self._idle: list[ChildProcess] = []
        self._waiting: deque[ChildRun | ChildHook] = deque()
        self._first: asyncio.Future[None] | None = None
        self._none_left = asyncio.Event()
        self._closing = False

    async def open(self) -> None:
        """Start the first child, and wait until it is ready.

        Raises:
            AgentError: it cannot be started, or does not get ready within 60 s.
        """
        self._first = self.control.loop.create_future()
        self._fill()
        try:
            await self._first
        finally:
            self._first = None

    async def close(self) -> None:
        """Kill all children, and wait until they are dead, for 2 s at the most."""
        self._closing = True
        for child in self._children:
            child.kill()
        try:
            async with asyncio.timeout(END_S):
                while self._children:
                    self._none_left.clear()
                    await self._none_left.wait()
        except TimeoutError:
            log.warning("children.left", pids=[child.pid for child in self._children])
            for child in self._children:
                child.close()

    def describe(self) -> list[str]:
        """The children and what they are at, for an operator. From any thread."""
        lines = []
        for child, run in list(self._children.items()):
            at = f"ticket {run.ticket}" if run is not None else "starting" if child in self._starting else "idle"
            lines.append(f"  pid {child.pid} {at}")
        return [f"child processes: {len(lines)}", *lines]

    # A runner. ------------------------------------------------------------------------------------

    def start(self, message: Message, state: bytes | None, link: Link, on_begin: OnBegin, report: Report) -> Run:
        run = ChildRun(self, message, state, link, on_begin, report)
        self._waiting.append(run)
        self._serve()
        return run

    def start_hook(self, aborted: Aborted, state: bytes | None, on_begin: OnBegin, report: ReportClosed) -> Run:
        """It comes before the cycles that wait for a child, as it ends one that has begun."""
        hook = ChildHook(self, aborted, state, on_begin, report)
        self._waiting.appendleft(hook)
        self._serve()
        return hook

    def on_control(self, call: Callable[..., object], *args: Any) -> None:
        """Now, if this is the control loop."""
        if self.control.is_current:
            call(*args)
        else:
            self.control.post(call, *args)

    def withdraw(self, run: ChildRun | ChildHook) -> None:
        """It does not wait for a child any more."""
        self._waiting.remove(run)

    def give_back(self, child: ChildProcess) -> None:
        """What it was at has ended by itself."""
        self._children[child] = None
        self._idle.append(child)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._idle and not self._closing:
            run, child = self._waiting.popleft(), self._idle.pop()
            self._children[child] = run
            run.begin(child)
        self._fill()

    # Children. ------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Have a child for each that waits, and one to spare, as far as there may be so many."""
        while (
            not self._closing
            and len(self._children) < self._most
            and len(self._idle) + len(self._starting) < len(self._waiting) + 1
        ):
            try:
                child = ChildProcess(self.control, self._told, self._ended)
            except (OSError, RuntimeError) as error:
                self._not_started(f"could not be started: {error}")
                return
            self._children[child] = None
            self._starting[child] = self.control.loop.call_later(START_S, self._too_slow, child)
            child.send(*self._load)

    def _told(self, child: ChildProcess, frame: list[Any]) -> None:
        kind, *rest = frame
        run = self._children.get(child)
        if kind == "ready":
            self._ready(child)
        elif kind == "unfit":
            self._drop(child, f"could not load the agent: {rest[0]}")
        elif kind == "log":
            repeat(*rest)
        elif run is not None and run.ticket == rest[0]:
            run.told(kind, *rest[1:])
        elif kind == "ask":  # what an earlier cycle has left behind in this child goes on
            child.send("answer", rest[1], 0, "", pack_error(CycleEnded("fenced")))

    def _ready(self, child: ChildProcess) -> None:
        if timer := self._starting.pop(child, None):
            timer.cancel()
            log.info("child.ready", pid=child.pid, children=len(self._children))
            if self._first is not None and not self._first.done():
                self._first.set_result(None)
            self.give_back(child)

    def _too_slow(self, child: ChildProcess) -> None:
        self._drop(child, f"was not ready within {START_S:g} s")

    def _drop(self, child: ChildProcess, why: str) -> None:
        if child in self._starting:
            self._unfit[child] = why
            child.kill()

    def _ended(self, child: ChildProcess, how: str) -> None:
        run = self._children.pop(child)
        timer, why = self._starting.pop(child, None), self._unfit.pop(child, how)
        if not self._children:
            self._none_left.set()
        if self._closing:
            return
        if timer is not None:
            timer.cancel()
            self._not_started(why)
        elif run is not None:
            run.child_ended(how)
            self._fill()
        else:
            log.warning("child.died", how=how)
            self._idle.remove(child)
        if self._waiting:
            self._fill()

    def _not_started(self, why: str) -> None:
        """One that waited for it fails with it. If none did, the next that wants a child tries again: not earlier, as what is
        wrong may well be wrong for long.
        """
        log.error("child.not_started", why=why)
        if self._first is not None and not self._first.done():
            self._first.set_exception(AgentError(f"{self.spec.agent_class.__qualname__}: a child process {why}"))
        elif self._waiting:
            self._waiting.popleft().failed(f"a child process {why}")
