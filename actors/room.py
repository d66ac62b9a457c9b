"""The actor of one room: what has happened goes through the state machine, what it decides is done here."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..protocol import store as replies
from ..protocol.errors import GreenroomError
from ..protocol.log import log
from ..protocol.records import Unreadable
from ..protocol.store import DELETE_STATE, KEEP_STATE, Answer, Grant, Store
from .agent import AgentSpec
from .counts import Counts
from .link import CycleLink
from .loop import LoopThread
from .loop_actor import LoopActor, tell
from .room_events import (
    Abort,
    BackoffOver,
    Cancelled,
    Claim,
    Close,
    Closed,
    Commit,
    Crash,
    Effect,
    End,
    Failed,
    Finished,
    Overdue,
    Refused,
    Release,
    Settle,
    Start,
    Taken,
    TooSlow,
    Wait,
)
from .runner import Aborted, Run, Starter, names
from .slots import Slots
from .transitions import RoomMachine

TOO_NEW_MS = 500  # after how long a room is tried again that was left in a state of a newer version, by any worker
TURNS = 10  # messages in a row, before a room gives way to those that wait for a slot

_requests = itertools.count(1)


class CycleFailed(GreenroomError):
    """A room's cycle failed, and Redis has it on record: a new actor replays it at its time."""


@dataclass(slots=True)
class RoomContext:
    """What the rooms of one worker share."""

    control: LoopThread
    store: Store
    runner: Starter
    spec: AgentSpec
    slots: Slots
    worker: str
    incarnation: int = 0
    counts: Counts = field(default_factory=Counts)
    active: dict[str, str] = field(default_factory=dict)  # the rooms at work here, and the ready entry of each
    detached: int = 0  # cycles whose code was left behind, still running


@dataclass(frozen=True, slots=True)
class _Broken:
    """The store could not answer."""

    error: BaseException


def names_of(room: str, grant: Grant | None) -> dict[str, object]:
    """What a line of the log says of a room and its cycle, if one was granted."""
    return {"room": room} if grant is None else names(grant.message, grant.ticket)


class Room(LoopActor):
    """One room while it has work here. It ends when it has none; its supervisor starts it again when it fails."""

    def __init__(self, context: RoomContext, room: str, ready: str) -> None:
        super().__init__(context.control)
        self._context = context
        self.room = room
        self.machine = RoomMachine(ready, hooks=bool(context.spec.hooks))
        self._state: bytes | None = None  # as of the last commit
        self._state_next = KEEP_STATE
        self._run: Run | None = None  # the cycle's code, then its hook
        self._link: CycleLink | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._began_s: float | None = None  # when the cycle's code did, while it runs
        self.since_s = self.loop.loop.time()  # when the machine came into its state
        self._has_slot = True
        self._turns = 0  # cycles since the claim

    def __str__(self) -> str:
        return f"Room({self.room})"

    def on_start(self) -> None:
        self._act(self.machine.start())

    def on_receive(self, message: Any) -> None:
        if isinstance(message, _Broken):
            raise message.error
        if isinstance(message, Taken):
            self._count(message.answer)
            self._keep_state(message.answer)
            if isinstance(message.answer, Answer) and message.answer.word == "released" and message.answer.detail:
                log.warning("message.newer", room=self.room, error=message.answer.detail)
        self.machine.give_way = self._turns >= TURNS and not self._context.slots.free
        before = self.machine.state
        effects = self.machine.handle(message)
        if self.machine.state is not before:
            self.since_s = self.loop.loop.time()
        self._act(effects)

    def on_stop(self) -> None:
        self._leave()

    def on_failure(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        """However it ends: no code of this room runs on, no timer fires, no slot is held."""
        if self._run is not None:
            self._run.abort("fenced")
        self._end_cycle()
        if self._has_slot:
            self._has_slot = False
            self._context.slots.give()

    def _act(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._do(effect)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Claim():
                self._claim(effect)
            case Start():
                self._start_cycle(effect)
            case Commit():
                self._commit(effect)
            case Settle():
                self._settle(effect)
            case Abort():
                self._abort(effect)
            case Close():
                self._close(effect)
            case Release():
                self._expect(self._context.store.release(self.room, worker=self._context.worker, ready=effect.ready))
            case Wait():
                self._wait(effect)
            case End():
                self._stop()
            case Crash():
                raise CycleFailed(effect.error)

    def _count(self, answer: Grant | Answer) -> None:
        counts = self._context.counts
        if answer.happened:
            counts.happened(answer.happened)
        elif isinstance(answer, Answer) and answer.word == "fenced":
            counts.fenced += 1

    def _keep_state(self, answer: Grant | Answer) -> None:
        """What was committed is the room's state from now on; a claim answers with what Redis has."""
        refused = isinstance(answer, Answer) and answer.word in ("fenced", "interrupt", "stop", "refused")
        if not refused and self._state_next != KEEP_STATE:
            self._state = None if self._state_next == DELETE_STATE else self._state_next[1:]
        self._state_next = KEEP_STATE
        if isinstance(answer, Grant) and answer.state is not None:
            self._state = answer.state

    # Effects. -------------------------------------------------------------------------------------

    def _expect(self, future: asyncio.Future[Any]) -> None:
        future.add_done_callback(self._answered)

    def _answered(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        tell(self.actor_ref, _Broken(error) if error else Taken(future.result()))

    def _claim(self, effect: Claim) -> None:
        context = self._context
        self._end_cycle()
        if not self._has_slot:  # woken by a signal or a new entry, not by its turn
            self._has_slot = True
            context.slots.take()
        self._state, self._turns = None, 0
        request = f"{context.worker}:{context.incarnation}:{next(_requests)}"
        call = partial(context.store.claim, self.room, worker=context.worker, incarnation=context.incarnation)
        self._expect(call(ready=effect.ready, request=request, terms=context.spec.terms))

    def _start_cycle(self, effect: Start) -> None:
        context, spec, grant = self._context, self._context.spec, effect.grant
        self._turns += 1
        if isinstance(grant.message.body, Unreadable):
            self._report(Failed(grant.ticket, grant.message.body.error, rejected=True))
            return
        link = self._link = CycleLink(
            context.control,
            context.store,
            self.room,
            grant.ticket,
            self._refused,
            self._warn_of_shield,
            interval_s=spec.chunk_interval_s,
            shield_warning_s=spec.shield_warning_s,
            remember=bool(spec.hooks),
        )
        if spec.terms.shielded:
            link.watch_shield()
        watch = partial(self._watch, grant.ticket)
        self._run = context.runner.start(grant.message, self._state, link, watch, self._report)

    def _watch(self, ticket: int) -> None:
        """The cycle's code begins."""
        self._began_s = self.loop.loop.time()
        self._context.counts.in_flight += 1
        limit_s = self._context.spec.max_cycle_s
        if limit_s is not None:
            overdue = Overdue(ticket, f"it ran longer than max_cycle, {limit_s:g} s")
            self._watchdog = self.loop.loop.call_later(limit_s, tell, self.actor_ref, overdue)

    def _end_cycle(self) -> None:
        """The cycle's code has ended, or is not waited for any more."""
        self._run = None
        if self._began_s is not None:
            self._context.counts.in_flight -= 1
            self._context.counts.cycle_s.observe(self.loop.loop.time() - self._began_s)
            self._began_s = None
        if self._timer is not None:
            self._timer.cancel()  # what it was to end is not there any more, and the next cycle has no part in it
        if self._link is not None:
            self._link.close()
        if self._watchdog is not None:
            self._watchdog.cancel()

    def _report(self, event: Finished | Failed | Cancelled | Closed) -> None:
        tell(self.actor_ref, event)

    def names(self, cid: str = "") -> dict[str, object]:
        """What a line of the log says of this room and its cycle, if one was granted."""
        return names_of(self.room, self.machine.grant) | ({"cid": cid} if cid else {})

    def _warn_of_shield(self) -> None:
        log.warning("shield.long", **self.names(), after_s=self._context.spec.shield_warning_s)

    def _refused(self, ticket: int, why: str) -> None:
        if why == "fenced":
            self._context.counts.fenced += 1
        tell(self.actor_ref, Refused(ticket, why))

    def _abort(self, effect: Abort) -> None:
        if effect.why == "overdue":
            log.warning("cycle.overdue", **self.names(), after_s=self._context.spec.max_cycle_s)
        if self._run is not None:
            self._run.abort(effect.why)
        self._after(self._context.spec.abort_timeout_s, partial(self._leave_code, effect.ticket))

    def _leave_code(self, ticket: int) -> None:
        """An aborted cycle's code has not ended in time."""
        if self._run is None:
            return
        code = self._run.leave()
        if code == "detached":
            self._context.detached += 1
            log.warning("cycle.detached", **self.names(), after_s=self._context.spec.abort_timeout_s)
        else:
            log.warning("cycle.killed", **self.names(), after_s=self._context.spec.abort_timeout_s)
        tell(self.actor_ref, TooSlow(ticket, code))

    def _close(self, effect: Close) -> None:
        self._end_cycle()
        asked = self._context.store.interruption(self.room, effect.ticket)
        asked.add_done_callback(partial(self._start_hook, effect))

    def _start_hook(self, effect: Close, asked: asyncio.Future[replies.Abort | Answer]) -> None:
        if asked.cancelled() or self.actor_stopped.is_set():
            return
        if error := asked.exception():
            tell(self.actor_ref, _Broken(error))
            return
        abort, grant = asked.result(), self.machine.grant
        if isinstance(abort, Answer):
            tell(self.actor_ref, Taken(abort) if abort.word == "fenced" else Closed(effect.ticket, ""))
        elif abort.mode not in self._context.spec.hooks or grant is None:
            tell(self.actor_ref, Closed(effect.ticket, abort.mode))
        else:
            sent = self._link.sent if self._link is not None and self._link.ticket == effect.ticket else []
            aborted = Aborted(grant.message, effect.ticket, abort, sent, effect.code)
            watch = partial(self._after, self._context.spec.hook_timeout_s, partial(self._leave_hook, aborted))
            self._run = self._context.runner.start_hook(aborted, self._state, watch, self._report)

    def _leave_hook(self, aborted: Aborted) -> None:
        if self._run is not None:
            self._run.leave()
            log.warning("hook.too_slow", **self.names(aborted.abort.cid), hook=f"on_{aborted.abort.mode}")
            tell(self.actor_ref, Closed(aborted.ticket, aborted.abort.mode))

    def _commit(self, effect: Commit) -> None:
        self._end_cycle()
        self._state_next = effect.state
        context = self._context
        call = partial(context.store.commit, self.room, effect.ticket, take_next=effect.take_next)
        self._expect(call(state=effect.state, reply=effect.reply, terms=context.spec.terms))

    def _settle(self, effect: Settle) -> None:
        self._end_cycle()
        self._state_next = effect.state
        context = self._context
        if effect.how in ("consume", "release"):
            log.info("cycle.aborted", **self.names(), how=effect.how, code=effect.code)
        retry_ms = TOO_NEW_MS if effect.how == "too_new" else 0
        if effect.how == "fail":
            retry_ms = int(context.spec.retry.delay_s(effect.attempt) * 1000)
        call = partial(context.store.settle, self.room, effect.ticket, effect.how, take_next=effect.take_next)
        call = partial(call, terms=context.spec.terms, error=effect.error, retry_ms=retry_ms)
        self._expect(call(state=effect.state, closing=effect.closing, code=effect.code))

    def _wait(self, effect: Wait) -> None:
        self._has_slot = False
        self._context.slots.give()
        self._after(effect.delay_ms / 1000, self._ask_for_slot)

    def _after(self, delay_s: float, call: Callable[[], object]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.loop.call_later(delay_s, call)

    def _ask_for_slot(self) -> None:
        self._context.slots.ask(self._got_slot)

    def _got_slot(self) -> bool:
        if self._has_slot or self.actor_stopped.is_set():
            return False
        self._has_slot = True
        tell(self.actor_ref, BackoffOver())
        return True
