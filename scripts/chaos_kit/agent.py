"""The agent under chaos. What a message does is written in its body: see ``Plan``."""

from __future__ import annotations

import asyncio
import logging
import os
from datetime import timedelta
from typing import Any, TypedDict

from greenroom import Agent, Backoff, Cycle, CycleEnded, Message, Reject

MAX_ATTEMPTS = 6
PLANNED_EXIT = 70  # of a worker whose agent ends the process
GOES_ON = 8  # chunks that a hostile handler tries to send after it was told to end

log = logging.getLogger("chaos")


class Plan(TypedDict):
    """The body of a message. An attempt ``hangs``, ``fails`` by raising, ``collapses`` by a BaseException, ``exits`` with its
    worker, as long as its number is not above that figure.
    """

    n: int
    chunks: int
    pause_ms: int
    hangs: int
    fails: int
    collapses: int
    exits: int
    rejects: bool
    shields: bool
    hostile: bool


class Collapse(BaseException):
    """What no handler ought to raise."""


class Chaos(Agent):
    """Streams chunks and counts its committed messages in ``cycle.state``."""

    max_attempts = MAX_ATTEMPTS
    retry = Backoff(first=timedelta(milliseconds=50), most=timedelta(milliseconds=500))
    abort_timeout = timedelta(milliseconds=300)

    async def respond(self, message: Message, cycle: Cycle) -> dict[str, Any]:
        plan: Plan = message.body
        try:
            await self._speak(plan, message, cycle)
        except (asyncio.CancelledError, CycleEnded):
            if not plan["hostile"]:
                raise
            await self._go_on(message, cycle)
        count = cycle.state.get("count", 0) + 1
        cycle.state["count"] = count
        return {"n": plan["n"], "attempt": message.attempt, "count": count}

    async def _speak(self, plan: Plan, message: Message, cycle: Cycle) -> None:
        if message.attempt <= plan["hangs"]:
            await asyncio.Event().wait()
        before = plan["chunks"] // 2
        for _ in range(before):
            await self._say(plan, message, cycle)
        self._fail(plan, message.attempt)
        if plan["shields"]:
            async with cycle.shield():
                for _ in range(plan["chunks"] - before):
                    await self._say(plan, message, cycle)
        else:
            for _ in range(plan["chunks"] - before):
                await self._say(plan, message, cycle)

    async def _say(self, plan: Plan, message: Message, cycle: Cycle) -> None:
        await asyncio.sleep(plan["pause_ms"] / 1000)
        try:
            await cycle.send({"attempt": message.attempt})
        except CycleEnded as error:
            log.info("refused %s room=%s ticket=%d", error.why, message.room, cycle.ticket)
            raise

    def _fail(self, plan: Plan, attempt: int) -> None:
        if plan["rejects"]:
            raise Reject("as planned")
        if attempt <= plan["exits"]:
            os._exit(PLANNED_EXIT)
        if attempt <= plan["collapses"]:
            raise Collapse("as planned")
        if attempt <= plan["fails"]:
            raise RuntimeError("as planned")

    async def _go_on(self, message: Message, cycle: Cycle) -> None:
        """What a handler may not do: swallow its cancellation, more than once, and go on."""
        for _ in range(GOES_ON):
            try:
                await self._say(message.body, message, cycle)
            except (asyncio.CancelledError, CycleEnded):
                continue
