"""Asking: a message's outputs as they come, and the reply that they add up to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any, TypeVar

from .errors import AskTimeout, DeadLettered, Discarded, Interrupted, InvalidRequest, NoReply
from .keys import check_room
from .outbox import Outbox
from .records import Kind, Output
from .store import Enqueued

T = TypeVar("T")


def check_timeout(timeout: object) -> None:
    """Raises InvalidRequest, unless these are seconds for which can be waited."""
    if not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidRequest(f"timeout: want seconds, 0 or more, got {timeout!r}")


async def outputs_of(
    outbox: Outbox, send: Callable[[], Awaitable[Enqueued]], timeout: float | None, why: Callable[[int], Awaitable[str]]
) -> AsyncGenerator[Output, None]:
    """Send a message and yield its outputs, the last of them ``final``; ``timeout`` is for all of it. ``why`` tells why the
    message of that id still waits.

    A reader may take each output in another task, and be away in between: no time limit or other scope of a task is open while
    it has one.
    """
    check_room(outbox.room)
    if timeout is not None:
        check_timeout(timeout)
    deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
    late = f"Redis has not answered within {timeout} s: the message may or may not be queued"
    async with AsyncExitStack() as stack:
        hint = await _by(deadline, stack.enter_async_context(outbox.watch()), late)
        sent = await _by(deadline, send(), late)
        late = f"room {outbox.room} has not answered within {timeout} s; the message stays in its queue"
        outputs = await stack.enter_async_context(aclosing(outbox.follow_message(sent, hint)))
        while True:
            try:
                output = await _by(deadline, anext(outputs), late)
            except AskTimeout:
                raise AskTimeout(late + await why(sent.id)) from None
            yield output
            if output.final:
                return


async def _by(deadline: float | None, work: Awaitable[T], late: str) -> T:
    try:
        async with asyncio.timeout_at(deadline):
            return await work
    except TimeoutError as error:
        if type(error) is not TimeoutError:
            raise
        raise AskTimeout(late) from None


async def reply_of(room: str, outputs: AsyncGenerator[Output, None]) -> Any:
    """The reply that these outputs of one message add up to: what was returned, else the chunks of the cycle that committed.

    Raises:
        Interrupted, DeadLettered, Discarded: there is none.
    """
    chunks: dict[int, list[Any]] = {}
    async with aclosing(outputs):
        async for output in outputs:
            if output.kind is Kind.CHUNK:
                chunks.setdefault(output.ticket, []).append(output.body)
            elif output.kind is Kind.REPLY:
                pieces = chunks.get(output.ticket)
                if output.body is not None or not pieces:
                    return output.body
                return "".join(pieces) if all(isinstance(piece, str) for piece in pieces) else pieces
            elif output.final:
                raise no_reply(room, output)
    raise AssertionError("the last output is final")


def no_reply(room: str, output: Output) -> NoReply:
    """Why a message is not answered, of its final output."""
    message = f"message {output.message} of room {room}"
    if output.kind is Kind.DEAD:
        return DeadLettered(f"{message} is a dead letter: {output.error}")
    if output.kind is Kind.DISCARDED:
        return Discarded(f"{message} was discarded")
    return Interrupted(f"{message} was interrupted")
