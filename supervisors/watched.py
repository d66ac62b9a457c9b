"""Starts any Pykka actor so that it is seen how it ends, and tells who wants to know."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import pykka
from pykka._envelope import Envelope
from pykka.messages import _ActorStop

from ..actors.loop_actor import LoopActor, OnExit, monitor
from ..protocol.errors import InvalidRequest, words_of
from ..protocol.log import log

_WATCH = "_greenroom_watch"


class _Watch:
    """Runs an actor on its thread in the place of Pykka's loop.

    That loop reports nothing: it swallows what on_start and on_stop raise, stops all actors of the process at a BaseException
    in a handler, and leaves an actor registered whose thread was ended in any other way. The hooks are the instance's, so the
    actor keeps its class.
    """

    def __init__(self, actor: pykka.Actor, on_up: Callable[[], object], on_exit: OnExit) -> None:
        self._actor: pykka.Actor | None = actor
        self._on_up = on_up
        self._watchers = [on_exit]
        self._lock = threading.Lock()
        self._ended = False
        self._failure: BaseException | None = None
        vars(actor).update({"_actor_loop": self._run, "_handle_failure": self._failed, _WATCH: self})

    def add(self, on_exit: OnExit) -> None:
        with self._lock:
            if not self._ended:
                self._watchers.append(on_exit)
                return
        _tell_end(on_exit, self._failure)

    def detach(self) -> None:
        """Let go of the actor, once it is over or was never begun: it goes when its last user does."""
        self._actor = None

    def _run(self) -> None:
        actor, up = self._actor, False
        assert actor is not None
        try:
            actor._actor_loop_setup()
            up = not actor.actor_stopped.is_set()
            if up:
                self._on_up()
            while not actor.actor_stopped.is_set():
                self._handle(actor, actor.actor_inbox.get())
        except BaseException as error:  # also one that was raised into the thread from outside
            self._die(actor, error, clean_up=up)
        finally:
            try:
                actor._actor_loop_teardown()
            finally:
                self._end()

    def _handle(self, actor: pykka.Actor, envelope: Envelope[Any]) -> None:
        reply = envelope.reply_to
        try:
            answer = actor._handle_receive(envelope.message)
            if reply is not None:
                reply.set(answer)
        except Exception as error:
            if reply is not None:  # the asker gets it, and the actor lives on, as in Pykka
                reply.set_exception()
            else:
                self._die(actor, error)
        except BaseException as error:
            self._die(actor, error)
            if reply is not None:
                dead = pykka.ActorDeadError(f"{actor} ended while it handled the message: {words_of(error, repr)}")
                reply.set_exception((pykka.ActorDeadError, dead, None))

    def _die(self, actor: pykka.Actor, error: BaseException, *, clean_up: bool = True) -> None:
        self._failed(type(error), error, error.__traceback__)
        if clean_up:  # not for on_start: nor does Pykka
            try:
                actor.on_failure(type(error), error, error.__traceback__)
            except BaseException:
                log.exception("actor.on_failure_failed", actor=str(actor))

    def _failed(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._failure = error if self._failure is None else self._failure  # the first is the reason; what comes of it is not
        if self._actor is not None:
            type(self._actor)._handle_failure(self._actor, kind, error, traceback)

    def _end(self) -> None:
        with self._lock:
            watchers = [] if self._ended else self._watchers
            self._ended = True
        for on_exit in watchers:
            _tell_end(on_exit, self._failure)
        self.detach()


def _tell_end(on_exit: OnExit, failure: BaseException | None) -> None:
    try:
        on_exit(failure)
    except BaseException:  # the next one is to be told all the same
        log.exception("actor.monitor_failed")


def prepare(started: Any, on_up: Callable[[], object], on_exit: OnExit) -> tuple[pykka.ActorRef[Any], Callable[[], None]]:
    """The reference of a new actor, and what starts it: by then its supervisor must know the one, as the actor may be faster.

    ``on_up`` is called once its ``on_start`` is done, ``on_exit`` when it has ended, with its failure or None: both on its own
    thread. ``started`` may also be the reference of a loop actor that has just been started.

    Raises:
        InvalidRequest: it is neither.
    """
    if isinstance(started, pykka.ActorRef):
        if not issubclass(started.actor_class, LoopActor):
            started.stop(block=False)
            raise InvalidRequest(f"start: answer the actor itself and do not start it: {started} cannot be watched any more")
        return started, partial(monitor, started, on_exit, on_up)
    if not isinstance(started, pykka.Actor) or started.actor_stopped.is_set() or _WATCH in vars(started):
        raise InvalidRequest(f"start: want a new actor for each start, got {started!r}")
    return started.actor_ref, partial(_begin, started, on_up, on_exit)


def _begin(actor: pykka.Actor, on_up: Callable[[], object], on_exit: OnExit) -> None:
    watch = None if isinstance(actor, LoopActor) else _Watch(actor, on_up, on_exit)
    pykka.ActorRegistry.register(actor.actor_ref)
    try:
        actor._start_actor_loop()
    except BaseException:  # no thread is to be had
        pykka.ActorRegistry.unregister(actor.actor_ref)
        actor.actor_stopped.set()
        if watch is not None:
            watch.detach()
        raise
    if watch is None:
        monitor(actor.actor_ref, on_exit, on_up)


def leave_behind(ref: pykka.ActorRef[Any]) -> None:
    """Have an actor that did not stop in time end after what it is at, whatever else is in its mailbox."""
    pykka.ActorRegistry.unregister(ref)
    ref.actor_stopped.set()
    ref.actor_inbox.put(Envelope(_ActorStop()))  # wakes it


def watch(ref: pykka.ActorRef[Any], on_exit: OnExit) -> None:
    """Have ``on_exit(failure)`` called once when a supervised actor has ended: with what it failed of, or None when it was
    stopped. At once when it has ended already.

    It is called on the thread of the actor, so it should be short: tell another actor. What it raises is logged. An actor that
    ended so long ago that it is forgotten counts as stopped.

    Raises:
        InvalidRequest: a Pykka actor that no supervisor has started; it cannot be seen how that one ends.
    """
    actor = ref._actor_weakref()
    if issubclass(ref.actor_class, LoopActor):
        monitor(ref, on_exit)
    elif actor is None:
        _tell_end(on_exit, None)
    elif (watch := vars(actor).get(_WATCH)) is not None:
        watch.add(on_exit)
    else:
        raise InvalidRequest(f"watch: {ref} was not started by a supervisor")
