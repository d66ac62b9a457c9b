"""A loop actor whose methods may be coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pykka
from pykka._envelope import Envelope

from ..actors.loop import LoopThread
from ..actors.loop_actor import LoopActor
from ..protocol.log import log


class Answering(LoopActor):
    """Who calls a coroutine through a proxy is answered when it has ended; the actor handles other messages meanwhile."""

    def __init__(self, loop: LoopThread) -> None:
        super().__init__(loop)
        self._requests: set[asyncio.Task[Any]] = set()

    def _answer(self, envelope: Envelope[Any]) -> None:
        """Handle a message and reply to it; raises what nobody waits for."""
        reply = envelope.reply_to
        try:
            answer = self._handle_receive(envelope.message)
        except BaseException:
            if reply is None:
                raise
            reply.set_exception()
            return
        if asyncio.iscoroutine(answer):
            self._answer_later(answer, reply)
        elif reply is not None:
            reply.set(answer)

    def _answer_later(self, work: Coroutine[Any, Any, Any], reply: pykka.Future[Any] | None) -> None:
        task = asyncio.create_task(work)
        self._requests.add(task)
        task.add_done_callback(partial(self._reply, reply))

    def _reply(self, reply: pykka.Future[Any] | None, task: asyncio.Task[Any]) -> None:
        self._requests.discard(task)
        error = pykka.ActorDeadError(f"{self} stopped") if task.cancelled() else task.exception()
        if reply is None:
            if error is not None:
                log.warning("actor.request_failed", actor=str(self), error=error)
        elif error is not None:
            reply.set_exception((type(error), error, error.__traceback__))
        else:
            reply.set(task.result())

    def _end(self) -> None:
        for task in self._requests:
            task.cancel()
        super()._end()
