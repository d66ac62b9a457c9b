"""Runs the agent's code: coroutines on the user loop, plain functions in threads. Never on the control loop."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..protocol import codec
from ..protocol.errors import GreenroomError, Reject, words_of
from ..protocol.log import log, told
from ..protocol.records import Message, Mode
from ..protocol.store import KEEP_STATE, Abort
from .agent import Agent, AgentSpec, Runs
from .cycle import BaseCycle, Cycle, ThreadCycle
from .interruption import Code, Interruption
from .link import Link
from .loop import LoopThread
from .room_events import Cancelled, Closed, Failed, Finished
from .state import StateTooNew
from .threads import call, start_thread

MAX_ERROR_CHARS = 500

C = TypeVar("C", bound=BaseCycle)

Report = Callable[[Finished | Failed | Cancelled], None]
ReportClosed = Callable[[Closed], None]
OnBegin = Callable[[], None]


class Run(Protocol):
    """Code of the agent's under way."""

    def abort(self, why: str) -> None:
        """Tell the code to end. From any thread, and as often as you like."""

    def leave(self) -> Code:
        """The code has not ended in time: go on without it, and answer what became of it."""


def names(message: Message, ticket: int) -> dict[str, object]:
    """What a line of the log says of a cycle."""
    return {"room": message.room, "message": message.id, "attempt": message.attempt, "ticket": ticket}


class Starter(Protocol):
    """What starts the agent's code for the rooms of one worker.

    ``on_begin`` is called on the control loop when the code begins, and with it its time limit: at once, or when there is a
    process for it. ``report`` is called once, on any thread, also if it never begins.
    """

    def start(self, message: Message, state: bytes | None, link: Link, on_begin: OnBegin, report: Report) -> Run:
        """Start a cycle's code."""

    def start_hook(self, aborted: Aborted, state: bytes | None, on_begin: OnBegin, report: ReportClosed) -> Run:
        """Start the hook for an aborted cycle."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """All that a hook is told of."""

    message: Message
    ticket: int
    abort: Abort
    sent: list[bytes]
    code: Code

    def names(self) -> dict[str, object]:
        """What a line of the log says of it."""
        return names(self.message, self.ticket) | {"cid": self.abort.cid}

    def interruption(self) -> Interruption:
        abort, steps = self.abort, self.abort.steps

        def named(how: str) -> tuple[str, ...]:
            return tuple(name for name, became in steps.items() if became == how)

        return Interruption(
            mode=Mode(abort.mode),
            by=abort.by,
            reason=abort.reason,
            cid=abort.cid,
            at=dt.datetime.fromisoformat(abort.at),
            message=self.message,
            ran=dt.timedelta(milliseconds=abort.ran_ms),
            sent=tuple(map(codec.decode, self.sent)),
            done=named("done"),
            begun=named("begun"),
            unknown=named("unknown"),
            code=self.code,
        )


class CycleRun:
    """One cycle's code. It reports exactly once, also when it is aborted before it began."""

    def __init__(self, runner: Runner, message: Message, state: bytes | None, link: Link, report: Report) -> None:
        self._runner = runner
        self._message = message
        self._stored = state
        self._link = link
        self._report = report
        self._task: asyncio.Task[None] | None = None

    def abort(self, why: str) -> None:
        self._link.ended = self._link.ended or why
        self._runner.user.post(self._cancel)

    def leave(self) -> Code:
        self.abort("fenced")
        return "detached"

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def begin(self) -> None:
        """On the user loop: start the code."""
        if self._link.ended:
            self._report(Cancelled(self._link.ticket, "not started"))
        elif self._runner.spec.runs.on_loop:
            self._task = self._runner.keep(asyncio.create_task(self._on_loop(), name=f"greenroom-cycle-{self._link.ticket}"))
            self._task.add_done_callback(self._done)
        else:
            try:
                start_thread(f"greenroom-cycle-{self._link.ticket}", self._in_thread)
            except RuntimeError as error:  # the system has no more of them
                self._report(self._failed(error))

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = None  # its error refers to this: what the handler's frames hold ends now, on this thread
        if task.cancelled():  # it may not even have had its first step, so it has not reported
            self._report(Cancelled(self._link.ticket))
        elif (error := task.exception()) is not None:  # a GeneratorExit of the handler's own
            self._report(self._failed(error))

    async def _on_loop(self) -> None:
        try:
            cycle = self._cycle(Cycle)
            try:
                reply = await self._respond(cycle)
            except (asyncio.CancelledError, GeneratorExit):  # the latter: the loop is gone, and nothing can be awaited
                raise
            except BaseException:
                with suppress(GreenroomError):
                    await cycle.flush()  # what was yielded is sent, whatever became of the rest
                raise
            await cycle.flush()
            report: Finished | Failed | Cancelled = self._finished(cycle, reply)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # whatever it is, also SystemExit: it is the handler's, and ends this cycle alone
            report = self._failed(error)
        self._report(report)

    async def _respond(self, cycle: Cycle) -> Any:
        handler = self._runner.agent.respond(self._message, cycle)
        if self._runner.spec.runs is Runs.COROUTINE:
            return await handler
        async with aclosing(handler):
            async for chunk in handler:
                await cycle.stream(chunk)
        return None

    def _in_thread(self) -> None:
        try:
            cycle = self._cycle(ThreadCycle)
            try:
                reply = self._respond_in_thread(cycle)
            except BaseException:
                with suppress(GreenroomError):
                    cycle.flush()
                raise
            cycle.flush()
            report: Finished | Failed | Cancelled = self._finished(cycle, reply)
        except BaseException as error:
            report = self._failed(error)
        self._report(report)

    def _respond_in_thread(self, cycle: ThreadCycle) -> Any:
        handler = self._runner.agent.respond(self._message, cycle)
        if self._runner.spec.runs is Runs.FUNCTION:
            return handler
        with closing(handler):
            for chunk in handler:
                cycle.stream(chunk)
        return None

    def _cycle(self, kind: type[C]) -> C:
        runner = self._runner
        state = runner.spec.state.load(self._stored, runner.agent.upgrade_state)
        return kind(runner.name, self._message, state, self._link, shielded=runner.spec.terms.shielded)

    def _finished(self, cycle: BaseCycle, reply: Any) -> Finished:
        state = self._runner.spec.state.argument(cycle.state, self._stored)
        return Finished(self._link.ticket, codec.encode(reply, what="the reply"), state)

    def _failed(self, error: BaseException) -> Failed | Cancelled:
        ticket, message = self._link.ticket, self._message
        if self._link.ended:  # what it raises on its way out is no failure: Redis knows why the cycle has ended
            return Cancelled(ticket)
        if isinstance(error, StateTooNew):
            return Failed(ticket, str(error), too_new=True)
        log.warning("cycle.failed", **names(message, ticket), **told(error))
        words = words_of(error)
        text = f"{type(error).__name__}: {words}" if words else type(error).__name__
        return Failed(ticket, text[:MAX_ERROR_CHARS], rejected=isinstance(error, Reject))


class HookRun:
    """``on_interrupt`` or ``on_stop`` of one cycle. It reports exactly once."""

    def __init__(self, runner: Runner, aborted: Aborted, state: bytes | None, report: ReportClosed) -> None:
        self._runner = runner
        self._aborted = aborted
        self._stored = state
        self._report = report
        self._task: asyncio.Task[None] | None = None
        self._left = False

    def abort(self, why: str) -> None:
        self._runner.user.post(self._cancel)

    def leave(self) -> Code:
        self.abort("")
        return "detached"

    def _cancel(self) -> None:
        self._left = True
        if self._task is not None:
            self._task.cancel()

    def begin(self) -> None:
        """On the user loop: start the hook."""
        name = f"greenroom-{self._aborted.abort.mode}-{self._aborted.ticket}"
        if self._left:
            self._report(self._closed(b"", KEEP_STATE))
            return
        self._task = self._runner.keep(asyncio.create_task(self._run(name), name=name))
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled():
            self._report(self._closed(b"", KEEP_STATE))
        elif (error := task.exception()) is not None:  # a GeneratorExit of the hook's own
            self._report(self._hook_failed(error))

    async def _run(self, name: str) -> None:
        mode = self._aborted.abort.mode
        hook = getattr(self._runner.agent, f"on_{mode}")
        try:
            state = self._runner.spec.state.load(self._stored, self._runner.agent.upgrade_state)
            interruption = self._aborted.interruption()
            last = await call(name, hook, interruption, state)
            closing = b"" if last is None else codec.encode(last, what="what the hook returned")
            report = self._closed(closing, self._runner.spec.state.argument(state, self._stored))
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            report = self._hook_failed(error)
        self._report(report)

    def _hook_failed(self, error: BaseException) -> Closed:
        log.warning("hook.failed", **self._aborted.names(), hook=f"on_{self._aborted.abort.mode}", **told(error))
        return self._closed(b"", KEEP_STATE)

    def _closed(self, closing: bytes, state: bytes) -> Closed:
        return Closed(self._aborted.ticket, self._aborted.abort.mode, state, closing)


class Runner:
    """Runs one worker's agent. ``name`` is the agent's name."""

    def __init__(self, spec: AgentSpec, name: str, agent: Agent, user: LoopThread) -> None:
        self.spec = spec
        self.name = name
        self.agent = agent
        self.user = user
        # Also those that were left behind: collected as garbage, their code would run on whichever thread collects.
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def start(self, message: Message, state: bytes | None, link: Link, on_begin: OnBegin, report: Report) -> Run:
        """As ``Starter.start``."""
        run = CycleRun(self, message, state, link, report)
        on_begin()
        self.user.post(run.begin)
        return run

    def start_hook(self, aborted: Aborted, state: bytes | None, on_begin: OnBegin, report: ReportClosed) -> Run:
        """As ``Starter.start_hook``."""
        run = HookRun(self, aborted, state, report)
        on_begin()
        self.user.post(run.begin)
        return run
