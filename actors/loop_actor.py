"""Pykka actors that live on an event loop: an idle one costs an object and not a thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import pykka
from pykka._envelope import Envelope
from pykka.messages import _ActorStop

from ..protocol.log import log
from .loop import LoopThread
from .mailbox import Control, Mailbox

BUDGET = 32  # messages handled in a row before other actors get their turn

OnExit = Callable[[BaseException | None], object]


class Monitor(Control):
    """Asks an actor to tell how it ends: ``on_exit`` is called on its loop, with the failure or None; ``on_up`` before that,
    when it has started.
    """

    __slots__ = ("on_exit", "on_up")

    def __init__(self, on_exit: OnExit, on_up: Callable[[], object] | None = None) -> None:
        self.on_exit = on_exit
        self.on_up = on_up


def monitor(ref: pykka.ActorRef[Any], on_exit: OnExit, on_up: Callable[[], object] | None = None) -> None:
    """Watch a loop actor's death. One that is dead already tells so at once; of one that is forgotten, as if it had stopped."""
    try:
        ref.tell(Monitor(on_exit, on_up))
    except pykka.ActorDeadError:
        actor = ref._actor_weakref()
        on_exit(actor._failure if actor is not None else None)


def tell(ref: pykka.ActorRef[Any] | None, message: Any) -> bool:
    """Tell an actor that may have ended; answer whether it lived."""
    try:
        if ref is not None:
            ref.tell(message)
            return True
    except pykka.ActorDeadError:
        pass
    return False


class LoopActor(pykka.Actor):
    """An actor scheduled on a ``LoopThread`` when its mailbox has something.

    ``tell``, ``ask``, proxies, ``stop`` and the registry work as in Pykka, from any thread. Unlike there, a BaseException
    ends this actor alone, and whoever monitors it learns how it ended: also in ``on_start`` and ``on_stop``.
    """

    actor_inbox: Mailbox

    def __init__(self, loop: LoopThread) -> None:
        super().__init__()
        self.loop = loop
        self._monitors: list[OnExit] = []
        self._scheduled = False
        self._started = False
        self._failure: BaseException | None = None

    @staticmethod
    def _create_actor_inbox() -> Mailbox:
        return Mailbox()

    @staticmethod
    def _create_future() -> pykka.Future[Any]:
        return pykka.ThreadingFuture()

    def _start_actor_loop(self) -> None:
        self.actor_inbox.on_put = self._schedule
        self._schedule()

    def _schedule(self, *_: Mailbox) -> None:
        if not self._scheduled:
            self._scheduled = True
            if not self.loop.post(self._drain):
                self._outlive_loop()

    def _outlive_loop(self) -> None:
        """The loop has ended, and this actor with it: nobody else is left to answer, so whoever told or asked does it."""
        pykka.ActorRegistry.unregister(self.actor_ref)
        self.actor_stopped.set()
        self._scheduled = False
        self._actor_loop_teardown()

    def _drain(self) -> None:
        self._scheduled = False
        if not self._started:
            self._started = True
            self._guard(self.on_start)
        for _ in range(BUDGET):
            if self.actor_stopped.is_set():
                self._end()  # also when told after the end, by one who did not know yet
                return
            envelope = self.actor_inbox.take()
            if envelope is None:
                return
            self._handle(envelope)
        self._schedule()

    def _handle(self, envelope: Envelope[Any]) -> None:
        if isinstance(envelope.message, Monitor):
            self._monitors.append(envelope.message.on_exit)
            if envelope.message.on_up is not None:
                envelope.message.on_up()
        elif envelope.reply_to is None:
            self._guard(self._handle_receive, envelope.message)
        else:
            try:
                envelope.reply_to.set(self._handle_receive(envelope.message))
            except BaseException:  # the asker gets it, as in Pykka; the actor lives on
                envelope.reply_to.set_exception()

    def _guard(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            function(*args)
        except BaseException as error:
            self._failure = error  # before it counts as stopped: whoever sees it so may ask why
            self._handle_failure(*sys.exc_info())
            try:
                self.on_failure(*sys.exc_info())
            except BaseException:
                log.exception("actor.on_failure_failed", actor=str(self))

    def _stop(self) -> None:
        pykka.ActorRegistry.unregister(self.actor_ref)
        self.actor_stopped.set()
        self._guard(self.on_stop)

    def _handle_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop for good; the supervisor decides, and logs."""
        pykka.ActorRegistry.unregister(self.actor_ref)
        self.actor_stopped.set()

    def _end(self) -> None:
        monitors, self._monitors = self._monitors, []
        self._actor_loop_teardown()
        # Told after the end, by one who did not know yet. Nothing here refers to the actor: it goes when its last user does,
        # and does not wait for the garbage collector.
        self.actor_inbox.on_put = partial(self.loop.post, _turn_away, str(self.actor_ref), self._failure)
        for on_exit in monitors:
            _tell_end(on_exit, self._failure)

    def _actor_loop_teardown(self) -> None:
        _turn_away(str(self.actor_ref), self._failure, self.actor_inbox)


def _tell_end(on_exit: OnExit, failure: BaseException | None) -> None:
    try:
        on_exit(failure)
    except BaseException:  # the next one is to be told all the same
        log.exception("actor.monitor_failed")


def _turn_away(actor: str, failure: BaseException | None, inbox: Mailbox) -> None:
    """Answer all that is in the mailbox of an actor that has ended."""
    while (envelope := inbox.take()) is not None:
        if isinstance(envelope.message, Monitor):
            _tell_end(envelope.message.on_exit, failure)
        elif envelope.reply_to is not None:
            if isinstance(envelope.message, _ActorStop):
                envelope.reply_to.set(None)
            else:
                error = pykka.ActorDeadError(f"{actor} stopped before handling the message")
                envelope.reply_to.set_exception((pykka.ActorDeadError, error, None))
