"""Runs the agent's code: coroutines on the user loop, plain functions in threads. Never on the control loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import aclosing, closing
from typing import Any

from ..protocol import codec
from ..protocol.errors import Reject
from ..protocol.log import log
from ..protocol.store import Grant
from .agent import Agent, AgentSpec, Runs
from .cycle import BaseCycle, Cycle, CycleLink, ThreadCycle
from .loop import LoopThread
from .transitions import Cancelled, Failed, Finished

MAX_ERROR_CHARS = 500

Report = Callable[[Finished | Failed | Cancelled], None]


class Run:
    """One cycle's code under way. It reports exactly once, also when it is aborted before it began."""

    def __init__(self, runner: Runner, grant: Grant, state: bytes | None, link: CycleLink, report: Report) -> None:
        self._runner = runner
        self._grant = grant
        self._state = state
        self._link = link
        self._report = report
        self._task: asyncio.Task[None] | None = None

    def abort(self, why: str) -> None:
        """Tell the code to end. From any thread, and as often as you like."""
        self._link.ended = self._link.ended or why
        self._runner.user.post(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def begin(self) -> None:
        """On the user loop: start the code."""
        ticket = self._grant.ticket
        if self._link.ended:
            self._report(Cancelled(ticket))
            return
        if self._runner.spec.runs.on_loop:
            self._task = asyncio.create_task(self._on_loop(), name=f"greenroom-cycle-{ticket}")
            self._runner.tasks.add(self._task)
            self._task.add_done_callback(self._done)
        else:
            threading.Thread(target=self._in_thread, name=f"greenroom-cycle-{ticket}", daemon=True).start()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._runner.tasks.discard(task)
        if task.cancelled():  # it may not even have had its first step, so it has not reported
            self._report(Cancelled(self._grant.ticket))

    async def _on_loop(self) -> None:
        try:
            cycle = Cycle(self._grant, self._state, self._link)
            handler = self._runner.agent.respond(self._grant.message, cycle)
            reply = None
            if self._runner.spec.runs is Runs.COROUTINE:
                reply = await handler
            else:
                async with aclosing(handler):
                    async for chunk in handler:
                        await cycle.send(chunk)
            report: Finished | Failed | Cancelled = self._finished(cycle, reply)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # whatever it is, also SystemExit: it is the handler's, and ends this cycle alone
            report = self._failed(error)
        self._report(report)

    def _in_thread(self) -> None:
        try:
            cycle = ThreadCycle(self._grant, self._state, self._link)
            handler = self._runner.agent.respond(self._grant.message, cycle)
            reply = handler
            if self._runner.spec.runs is Runs.GENERATOR:
                with closing(handler):
                    for chunk in handler:
                        cycle.send(chunk)
                reply = None
            report: Finished | Failed | Cancelled = self._finished(cycle, reply)
        except BaseException as error:
            report = self._failed(error)
        self._report(report)

    def _finished(self, cycle: BaseCycle, reply: Any) -> Finished:
        return Finished(self._grant.ticket, codec.encode(reply), cycle.state_argument())

    def _failed(self, error: BaseException) -> Failed | Cancelled:
        ticket, message = self._grant.ticket, self._grant.message
        if self._link.ended:  # what it raises on its way out is no failure: Redis knows why the cycle has ended
            return Cancelled(ticket)
        log.warning("cycle.failed", room=message.room, message=message.id, attempt=message.attempt, exc_info=error)
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return Failed(ticket, text[:MAX_ERROR_CHARS], rejected=isinstance(error, Reject))


class Runner:
    """Runs one worker's agent."""

    def __init__(self, spec: AgentSpec, agent: Agent, user: LoopThread) -> None:
        self.spec = spec
        self.agent = agent
        self.user = user
        # Also those that were left behind: collected as garbage, their code would run on whichever thread collects.
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self, grant: Grant, state: bytes | None, link: CycleLink, report: Report) -> Run:
        """Start a cycle's code. ``report`` is called once, from the thread that ran it."""
        run = Run(self, grant, state, link, report)
        self.user.post(run.begin)
        return run
