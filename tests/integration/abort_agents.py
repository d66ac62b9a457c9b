"""A representative agent for each runner, which an abort can meet at every point of its cycle.

It takes steps (of each policy, one after the other and several at a time), sends chunks, is shielded for a while, and changes
its state. Everything that happens to it is written into its room's journal.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from datetime import timedelta
from typing import Any

from greenroom import Agent, Cycle, Interruption, Message, OutcomeUnknown, ThreadCycle, idempotent
from integration.abort_signals import POINTS, Calls, Points, note, read_journal, watch_awaits

CHUNKS = ("one", "left", "right", "paid", "two", "three")  # left and right in any order
STEPS = {"look": "again", "left": "again", "right": "raise", "pay": "raise", "file": "raise"}  # if their outcome is unknown
SORRY = "sorry"


class Representative(Agent):
    """What its four kinds have in common. A message with ``"kind": "echo"`` is answered with little ado."""

    max_attempts = 2
    abort_timeout = timedelta(seconds=20)
    hook_timeout = timedelta(seconds=20)

    @contextmanager
    def run(self, message: Message, cycle: Any) -> Iterator[None]:
        """Around a cycle's code: what it finds, and what it ends with."""
        note(message.body, message.room, "run", **_about(cycle), attempt=message.attempt, state=dict(cycle.state))
        cycle.state["answered"] = [*cycle.state.get("answered", []), message.id]  # of no effect unless the cycle commits
        try:
            yield
        except BaseException as error:
            note(message.body, message.room, "raised", **_about(cycle), errors=sorted(_names(error)))
            raise

    def on_interrupt(self, interruption: Interruption, state: Any) -> Any:
        self.on_stop(interruption, state)
        state["interrupted"] = [*state.get("interrupted", []), interruption.message.id]
        return SORRY

    def on_stop(self, interruption: Interruption, state: Any) -> None:
        told = interruption.model_dump(mode="json", include={"mode", "done", "begun", "unknown", "sent", "code"})
        note(interruption.message.body, interruption.message.room, "hook", message=interruption.message.id, **told)


def _about(cycle: Any) -> dict[str, Any]:
    return {"message": cycle.message.id, "ticket": cycle.ticket}


def _names(error: BaseException) -> set[str]:
    if isinstance(error, BaseExceptionGroup):
        return {name for part in error.exceptions for name in _names(part)}
    return {type(error).__name__}


def _happened(message: Message, key: str) -> bool:
    return any(
        line.get("key") == key and line["what"] == "effect" for line in read_journal(message.body["journal"], message.room)
    )


def do(cycle: Any, step: str, idempotency_key: str) -> str:
    """A plain function with an effect."""
    message = cycle.message
    note(message.body, message.room, "call", step=step, **_about(cycle))
    note(message.body, message.room, "effect", step=step, key=idempotency_key, **_about(cycle))
    return step


async def ado(cycle: Any, step: str, idempotency_key: str) -> str:
    """A coroutine function that may be cancelled before its effect."""
    message = cycle.message
    note(message.body, message.room, "call", step=step, **_about(cycle))
    await asyncio.sleep(0)
    note(message.body, message.room, "effect", step=step, key=idempotency_key, **_about(cycle))
    return step


@idempotent
async def look(cycle: Any, step: str, idempotency_key: str) -> str:
    return await ado(cycle, step, idempotency_key)


@idempotent
def look_in_thread(cycle: Any, step: str, idempotency_key: str) -> str:
    return do(cycle, step, idempotency_key)


class OnLoop(Representative):
    """The work of the agents that run on the loop; what it yields is to be sent."""

    async def on_interrupt(self, interruption: Interruption, state: Any) -> Any:
        return super().on_interrupt(interruption, state)

    async def work(self, message: Message, cycle: Cycle) -> AsyncGenerator[str]:
        await self._take(cycle, "look", look)
        yield "one"
        async with asyncio.TaskGroup() as group:
            group.create_task(self._side(cycle, "left", look_in_thread))
            group.create_task(self._side(cycle, "right", ado))
        async with cycle.shield():
            await self._take(cycle, "pay", do)
            await cycle.send("paid")
            async with cycle.shield():
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        await self._take(cycle, "file", ado)
        yield "two"
        yield "three"

    async def _side(self, cycle: Cycle, name: str, function: Callable[..., Any]) -> None:
        await self._take(cycle, name, function)
        await cycle.send(name)

    async def _take(self, cycle: Cycle, name: str, function: Callable[..., Any]) -> None:
        try:
            await cycle.step(name, function, cycle, name)
        except OutcomeUnknown as unknown:
            note(cycle.message.body, cycle.room, "unknown", step=name, **_about(cycle))
            if not _happened(cycle.message, unknown.idempotency_key):
                await cycle.step(name, function, cycle, name, if_unknown="again")


class CoroutineAgent(OnLoop):
    chunk_interval = timedelta(0)

    async def respond(self, message: Message, cycle: Cycle) -> Any:
        with self.run(message, cycle):
            if message.body["kind"] == "echo":
                return "echo"
            POINTS.set(Points(message.body, message.room, "await"))
            async with aclosing(self.work(message, cycle)) as chunks:
                async for chunk in chunks:
                    await cycle.send(chunk)
            return "done"


class AsyncGeneratorAgent(OnLoop):
    async def respond(self, message: Message, cycle: Cycle) -> AsyncIterator[str]:
        with self.run(message, cycle):
            if message.body["kind"] == "echo":
                yield "echo"
                return
            POINTS.set(Points(message.body, message.room, "await"))
            async with aclosing(self.work(message, cycle)) as chunks:
                async for chunk in chunks:
                    yield chunk


class InThread(Representative):
    """The same for those that run in threads."""

    def work(self, message: Message, cycle: Calls) -> Iterator[str]:
        self._take(cycle, "look", look_in_thread)
        yield "one"
        self._aside(cycle, {"left": look_in_thread, "right": do})
        with cycle.shield():
            self._take(cycle, "pay", do)
            cycle.send("paid")
            with cycle.shield():
                cycle.checkpoint()
        cycle.checkpoint()
        self._take(cycle, "file", do)
        yield "two"
        yield "three"

    def _aside(self, cycle: Calls, parts: dict[str, Callable[..., Any]]) -> None:
        errors: list[BaseException] = []

        def side(name: str, function: Callable[..., Any]) -> None:
            try:
                self._take(cycle, name, function)
                cycle.send(name)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=side, args=part, daemon=True) for part in parts.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def _take(self, cycle: Calls, name: str, function: Callable[..., Any]) -> None:
        try:
            cycle.step(name, function, cycle, name)
        except OutcomeUnknown as unknown:
            note(cycle.message.body, cycle.message.room, "unknown", step=name, **_about(cycle))
            if not _happened(cycle.message, unknown.idempotency_key):
                cycle.step(name, function, cycle, name, if_unknown="again")


class FunctionAgent(InThread):
    chunk_interval = timedelta(0)

    def respond(self, message: Message, cycle: ThreadCycle) -> Any:
        with self.run(message, cycle):
            if message.body["kind"] == "echo":
                return "echo"
            calls = Calls(cycle, Points(message.body, message.room, "call"))
            for chunk in self.work(message, calls):
                calls.send(chunk)
            return "done"


class GeneratorAgent(InThread):
    def respond(self, message: Message, cycle: ThreadCycle) -> Iterator[str]:
        with self.run(message, cycle):
            if message.body["kind"] == "echo":
                yield "echo"
                return
            calls = Calls(cycle, Points(message.body, message.room, "call"))
            for chunk in self.work(message, calls):
                calls.points.reach("before a yield")
                yield chunk
                calls.points.reach("after a yield")


class UninterruptibleCoroutine(CoroutineAgent):
    interruptible = False


class UninterruptibleFunction(FunctionAgent):
    interruptible = False


class IsolatedFunction(FunctionAgent):
    isolation = "process"
    max_processes = 4


class IsolatedCoroutine(CoroutineAgent):
    isolation = "process"
    max_processes = 4

    async def respond(self, message: Message, cycle: Cycle) -> Any:
        """In a task that begins when the child's loop is watched."""
        watch_awaits(asyncio.get_running_loop())
        return await asyncio.create_task(super().respond(message, cycle))
