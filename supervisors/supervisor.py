"""A supervisor of any Pykka actors: starts them in order, starts again what fails, stops them in reverse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar

import pykka
from pykka._envelope import Envelope
from pykka.messages import _ActorStop

from ..actors.loop import LoopThread
from ..actors.loop_actor import Monitor, _turn_away
from ..protocol.errors import GreenroomError, InvalidRequest, NotFound, words_of
from ..protocol.log import failed, log
from .answering import Answering
from .child import Child, ChildInfo, ChildSpec, Run
from .restart import Restart, RestartHistory, RestartPolicy
from .watched import leave_behind, prepare

__all__ = ["BudgetSpent", "ChildInfo", "ChildSpec", "Strategy", "Supervisor"]


class BudgetSpent(GreenroomError):
    """A supervisor's children have failed more often than its policy allows; its own supervisor decides."""


class Strategy(StrEnum):
    """Who is started again with a failed child: it alone, all children, or it and those that were started after it."""

    ONE_FOR_ONE = "one_for_one"
    ONE_FOR_ALL = "one_for_all"
    REST_FOR_ONE = "rest_for_one"


class Supervisor(Answering):
    """Supervises the children of ``specs``; each is started when ``on_start`` of the one before it is done.

    It is an actor like any other: ``Supervisor.start(specs)`` answers its reference, from whose ``proxy()`` all methods here
    can be called; ``stop()`` stops the children in reverse order, each within its deadline, and then the supervisor. When they
    fail more often than ``policy`` allows it does the same and then fails with BudgetSpent.

    Args:
        specs: the children to start with.
        loop: where it lives. By default on a thread of its own, or as a child of another supervisor on that one's.
        strategy: who is started again with a failed child.
        policy: how many restarts are too many, and how long each waits.

    Raises:
        InvalidRequest: two children of one name.
    """

    use_daemon_thread: ClassVar[bool] = False  # of the thread of its own: as Pykka's, it keeps the program alive until stopped

    def __init__(
        self,
        specs: Sequence[ChildSpec] = (),
        *,
        loop: LoopThread | None = None,
        strategy: Strategy = Strategy.ONE_FOR_ONE,
        policy: RestartPolicy | None = None,
    ) -> None:
        super().__init__(loop or LoopThread("greenroom-supervisor", daemon=self.use_daemon_thread))
        self._owns_loop = loop is None
        self._strategy = Strategy(strategy)
        self._policy = policy or RestartPolicy()
        self._history = RestartHistory(self._policy)
        self._children: dict[str, Child] = {}  # in the order of their starts
        for spec in specs:
            self._enlist(spec)
        self._starting: set[asyncio.Task[None]] = set()  # what brings children up, after their back-off
        self._up = asyncio.Event()  # all children have been started
        self._on_up: list[Callable[[], object]] = []
        self._closing: asyncio.Task[None] | None = None
        self._stop_replies: list[pykka.Future[Any]] = []

    def _enlist(self, spec: ChildSpec) -> Child:
        if spec.name in self._children:
            raise InvalidRequest(f"there is a child {spec.name!r} already")
        child = self._children[spec.name] = Child(spec, RestartHistory(self._policy))
        return child

    # What is asked of it. ---------------------------------------------------------------------------

    def children(self) -> tuple[ChildInfo, ...]:
        """What it supervises, in order. Temporary children that have ended are forgotten."""
        return tuple(child.info() for child in tuple(self._children.values()))  # a thread may ask while one comes or goes

    def whereis(self, name: str) -> pykka.ActorRef[Any] | None:
        """The actor that has this name now; None while there is none. From any thread."""
        child = self._children.get(name)
        return child.ref if child is not None else None

    async def wait_up(self) -> None:
        """Return once the children of the beginning have been started, or the supervisor has ended."""
        await self._up.wait()

    async def add(self, spec: ChildSpec) -> pykka.ActorRef[Any]:
        """Start one more child, as the last, after those of the beginning; answer its reference once its ``on_start`` is done.

        Raises:
            InvalidRequest: there is a child of that name.
            ActorDeadError: the supervisor is stopping, or the child stopped before it was up.
            Exception: what the start failed of; then the child is not kept.
        """
        await self._up.wait()
        if self._closing is not None or self.actor_stopped.is_set():
            raise pykka.ActorDeadError(f"{self} is stopping")
        child = self._enlist(spec)
        child.joining = True
        run = await self._begin(child)
        child.joining = False
        if run.ref is None or (run.gone.is_set() and not run.stopping):
            self._forget(child)
            if run.failure is not None:
                raise run.failure
            raise pykka.ActorDeadError(f"{spec.name} stopped while it was started")
        return run.ref

    async def remove(self, name: str) -> None:
        """Stop a child, with its deadline, and forget it.

        Raises:
            NotFound: there is none of that name.
        """
        await self.stop_child(name)
        self._children.pop(name, None)

    async def stop_child(self, name: str) -> None:
        """Stop one child for good, with its deadline; it stays in ``children``.

        Raises:
            NotFound: there is none of that name.
        """
        child = self._children.get(name)
        if child is None:
            raise NotFound(f"there is no child {name!r}")
        child.over = True
        await self._stop_children([child])

    async def shut_down(self) -> None:
        """Stop the children in reverse order, each with its deadline, then this supervisor. Call it on the loop; from anywhere
        else ``stop`` of the reference does the same.
        """
        if not self.actor_stopped.is_set():
            await asyncio.shield(self._close(None))

    # Up. ----------------------------------------------------------------------------------------------

    def _start_actor_loop(self) -> None:
        if self._owns_loop:
            self.loop.start()
        super()._start_actor_loop()

    def _move_to(self, loop: LoopThread) -> None:
        """Live on the loop of the supervisor above, if it was given none. Before it is started."""
        if self._owns_loop:
            self.loop, self._owns_loop = loop, False

    def on_start(self) -> None:
        self._bring_up(list(self._children.values()), 0.0, first=True)

    def _bring_up(self, children: list[Child], delay_s: float, *, first: bool) -> None:
        """Start children, in a task; with ``first`` this supervisor is up when that is done."""
        task = asyncio.create_task(self._start_again(children, delay_s, first))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start_again(self, children: list[Child], delay_s: float, first: bool) -> None:
        """Stop who is to be started with a failed child, wait, and start them all."""
        await self._stop_children(children)
        if delay_s:
            await asyncio.sleep(delay_s)
        for child in children:
            if child.waits:
                await self._begin(child)
        if first:
            self._up.set()
            on_up, self._on_up = self._on_up, []
            for tell in on_up:
                tell()

    async def _begin(self, child: Child) -> Run:
        """Start a child and wait until it is up, or has failed: that is told to ``_ended`` as any other end."""
        run = child.run = Run(datetime.now(UTC))
        child.starts += 1
        try:
            started = child.spec.start()
            if isinstance(started, Supervisor):
                started._move_to(self.loop)
            on_up, on_exit = partial(self.loop.post, run.settled.set), partial(self.loop.post, self._ended, child, run)
            run.ref, begin = prepare(started, on_up, on_exit)
            begin()
        except BaseException as error:
            run.ref = None
            self.loop.post(self._ended, child, run, error)
        await run.settled.wait()
        return run

    # Down. --------------------------------------------------------------------------------------------

    def _ended(self, child: Child, run: Run, failure: BaseException | None) -> None:
        run.failure = failure
        run.gone.set()
        run.settled.set()
        if failure is not None:
            child.last_failure = failure
        if child.run is not run or run.stopping or child.joining or self._closing is not None or self.actor_stopped.is_set():
            return
        child.run = None
        if child.spec.restart.after(failure):
            self._failed(child, failure)
        else:
            if failure is not None:
                log.warning("child.failed", child=child.spec.name, **failed(failure))
            self._over(child)

    def _failed(self, child: Child, failure: BaseException | None) -> None:
        """Plan the restart of a child, and of those that go with it, or give up."""
        name, now_s = child.spec.name, self.loop.loop.time()
        spent = self._history.next_delay_s(now_s) is None
        delay_s = child.history.next_delay_s(now_s)
        if spent or delay_s is None:
            log.error("child.failed_too_often", child=name, **failed(failure))
            error = BudgetSpent(
                f"{name} was stopped too often from outside"
                if failure is None
                else f"{name} failed too often: {words_of(failure, repr)}"
            )
            error.__cause__ = failure
            self._close(error)
            return
        log.warning("child.failed", child=name, restart_in_s=round(delay_s, 3), **failed(failure))
        if self._strategy is Strategy.ONE_FOR_ONE:
            self._bring_up([child], delay_s, first=False)
        else:  # one restart at a time, of all who wait for one
            self._cancel_starts()
            self._bring_up(self._group(), delay_s, first=not self._up.is_set())

    def _group(self) -> list[Child]:
        """Who is started again together: with rest_for_one, the first who waits for it and all after it."""
        children = list(self._children.values())
        first = 0 if self._strategy is Strategy.ONE_FOR_ALL else next(i for i, each in enumerate(children) if each.waits)
        return children[first:]

    def _over(self, child: Child) -> None:
        """A child has ended by itself and is not started again."""
        child.over = True
        if child.spec.restart is Restart.TEMPORARY:
            self._forget(child)
        if child.spec.significant:
            self._close(None)

    def _forget(self, child: Child) -> None:
        if self._children.get(child.spec.name) is child:
            del self._children[child.spec.name]

    def _cancel_starts(self) -> None:
        for task in self._starting:
            task.cancel()

    async def _stop_children(self, children: Sequence[Child]) -> None:
        for child in reversed(children):
            run = child.run
            if run is None:
                continue
            run.stopping = True
            await self._stop_run(child, run)
            if child.run is run:
                child.run = None
            if child.spec.restart is Restart.TEMPORARY:  # it is nobody's to start it again
                child.over = True
                self._forget(child)

    async def _stop_run(self, child: Child, run: Run) -> None:
        if run.ref is None:
            return
        limit = child.spec.shutdown
        run.ref.stop(block=False)
        try:
            async with asyncio.timeout(None if limit is None else limit.total_seconds()):
                await run.gone.wait()
        except TimeoutError:
            log.warning("child.stop_timeout", child=child.spec.name)
            leave_behind(run.ref)

    # The end. -----------------------------------------------------------------------------------------

    def _close(self, cause: BaseException | None) -> asyncio.Task[None]:
        """Begin to stop all children and then this supervisor, which fails of ``cause`` if there is one."""
        if self._closing is None:
            self._cancel_starts()
            self._closing = asyncio.create_task(self._shut(cause))
        return self._closing

    async def _shut(self, cause: BaseException | None) -> None:
        await self._stop_children(list(self._children.values()))
        if self.actor_stopped.is_set():
            return
        if cause is None:
            self._stop()
        else:
            self._guard(_raise, cause)
        self._schedule()

    def _handle(self, envelope: Envelope[Any]) -> None:
        reply = envelope.reply_to
        if isinstance(envelope.message, Monitor):
            self._monitored(envelope.message)
        elif isinstance(envelope.message, _ActorStop):
            if reply is not None:
                self._stop_replies.append(reply)
            self._close(None)
        else:
            try:
                self._answer(envelope)
            except BaseException as error:  # as any actor, but its children are stopped first
                self._close(error)

    def _monitored(self, message: Monitor) -> None:
        self._monitors.append(message.on_exit)
        if message.on_up is not None and self._up.is_set():
            message.on_up()
        elif message.on_up is not None:  # a supervisor above waits until the children here are up
            self._on_up.append(message.on_up)

    def _end(self) -> None:
        """Nobody is left behind unasked, also when it was itself not given the time."""
        self._cancel_starts()
        for child in reversed(self._children.values()):
            run = child.run
            if run is not None and run.ref is not None and not run.gone.is_set():
                run.stopping = True
                run.ref.stop(block=False)
        self._up.set()
        super()._end()
        replies, self._stop_replies = self._stop_replies, []
        for reply in replies:
            reply.set(None)
        if self._owns_loop:
            self._owns_loop = False
            self.actor_inbox.on_put = partial(_turn_away, str(self), self._failure)  # nobody else is there to do it
            self.loop.end()


def _raise(error: BaseException) -> None:
    raise error
