"""The actor system: one worker, embedded in any program or run by the supervisor process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pykka

from ..actors.agent import Agent, inspect_agent
from ..actors.counts import Counts
from ..actors.isolation import ChildPool
from ..actors.loop import LoopThread
from ..actors.loop_actor import monitor
from ..actors.room import RoomContext
from ..actors.room_events import Drain
from ..actors.runner import Runner, Starter
from ..actors.slots import Slots
from ..protocol.client import DEFAULT_REDIS
from ..protocol.connect import check_server, connect, translate, without_password
from ..protocol.errors import GreenroomError, InvalidRequest, NewerVersion
from ..protocol.keys import Keys, check_name
from ..protocol.log import log, told
from ..protocol.retention import Retention
from ..protocol.store import Store
from .control import ControlListener
from .dispatcher import Dispatcher
from .dump import describe
from .housekeeper import Housekeeper
from .listeners import Listener, ListenerFeed, Listeners
from .loop_watch import LoopWatch
from .measures import Measures, measure
from .probes import ProbeSocket
from .rooms import RoomSupervisor
from .supervisor import ChildSpec, Strategy, Supervisor
from .worker import Worker, WorkerLease, describe_process

DEFAULT_GRACE = timedelta(seconds=25)
DEFAULT_LEASE = timedelta(seconds=5)
START_PATIENCE_S = 10.0
LEAVE_S = 2.0
ON_END_S = 2.0

OnEnd = Callable[[BaseException | None], None]


def default_name() -> str:
    """The name of a worker that was given none."""
    return f"{socket.gethostname()}-{os.getpid()}"


class ActorSystem:
    """Runs the rooms of one agent in this process, on two threads of its own.

    It takes nothing over: no signal handlers, no logging configuration, no event-loop policy.

    Args:
        agent_class: a subclass of ``Agent``; one instance of it is made, on ``start``; with ``isolation = "process"`` one in
            each child process.
        agent: the agent's name, the namespace of all its rooms.
        redis: ``redis://``, ``rediss://``, ``unix://``, ``sentinel://`` or ``cluster://`` URL, as for ``Client``.
        name: this worker's name; with the same name as before, a restarted worker takes its rooms back at once. By default the
            host's name and the process id, which waits for the lease instead.
        max_rooms: how many rooms may be at work at once; with ``isolation = "process"`` no more than ``max_processes``.
        lease: how long a worker that is gone keeps its rooms, 1 s or more.
        recovery_rate: how many rooms a second are resumed after a restart or a take-over, beside new work.
        redis_patience: when Redis has been unreachable for longer than this, the system ends with RedisUnavailable. None: it
            waits for ever, and work resumes by itself.
        retention: what Redis keeps of the agent, and for how long: of all its workers, what the newest one says.
        probes: a directory for a Unix socket on which this worker answers ``greenroom check``.
        on_end: called once, on a thread of its own, when a system that had started has ended: with None by ``stop``, else with
            the error that ``wait`` raises; then ``stop`` is still to be called, and it may be from there. What it raises is
            logged. ``stop`` waits 2 s for it at the most.

    Raises:
        AgentError, InvalidRequest: an argument cannot be used.
    """

    def __init__(
        self,
        agent_class: type[Agent],
        *,
        agent: str,
        redis: str = DEFAULT_REDIS,
        name: str | None = None,
        max_rooms: int = 1000,
        lease: timedelta = DEFAULT_LEASE,
        recovery_rate: float = 100.0,
        redis_patience: timedelta | None = None,
        retention: Retention | None = None,
        probes: str | os.PathLike[str] | None = None,
        on_end: OnEnd | None = None,
    ) -> None:
        self._spec = inspect_agent(agent_class)
        self._keys = Keys(agent)
        self.name = check_name(default_name() if name is None else name, "worker name")
        if not isinstance(max_rooms, int) or isinstance(max_rooms, bool) or max_rooms < 1:
            raise InvalidRequest(f"max_rooms: want a whole number of 1 or more, got {max_rooms!r}")
        if not isinstance(lease, timedelta) or lease < timedelta(seconds=1):
            raise InvalidRequest(f"lease: want a timedelta of 1 s or more, got {lease!r}")
        if not isinstance(recovery_rate, int | float) or not recovery_rate > 0:
            raise InvalidRequest(f"recovery_rate: want rooms a second, more than 0, got {recovery_rate!r}")
        connect(redis, self._keys.root)  # a URL that is none is refused here and not on another thread
        self._url = redis
        if redis_patience is not None and not (isinstance(redis_patience, timedelta) and redis_patience > timedelta(0)):
            raise InvalidRequest(f"redis_patience: want a timedelta of more than 0, or None, got {redis_patience!r}")
        if retention is not None and not isinstance(retention, Retention):
            raise InvalidRequest(f"retention: want a Retention, got {retention!r}")
        if on_end is not None and not callable(on_end):
            raise InvalidRequest(f"on_end: want a function, got {on_end!r}")
        self._probes = None if probes is None else ProbeSocket(Path(probes), agent, self.name, lambda: self.ready)
        self._max_rooms = max_rooms
        self._lease = lease
        self._redis_patience_s = None if redis_patience is None else redis_patience.total_seconds()
        self._retention = Retention() if retention is None else retention
        self._on_end = on_end
        self._telling: threading.Thread | None = None
        self._recovery_rate = float(recovery_rate)
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._lock = threading.Lock()
        self._begun = threading.Event()  # start has ended, one way or the other
        self._stopped = threading.Event()
        self._closing: asyncio.Future[None] | None = None
        self._started = False
        self._pid = os.getpid()  # of the process that has its threads
        self._stopping = False
        fields = {"agent": self._keys.agent, "worker": self.name}
        self._log = log.bind(**fields)  # for the threads of the host
        self._control = LoopThread("greenroom-control", fields=fields)
        self._user = LoopThread("greenroom-user", fields=fields)
        self._counts = Counts()
        self._pool = ChildPool(self._spec, self._keys.agent, self._control) if self._spec.in_process else None
        self._listeners = Listeners(self.name, self._control)

    # Start. ---------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Connect, join, and begin to work.

        Raises:
            RedisUnavailable, RedisRefused: Redis cannot be used; nothing was started.
            AgentError: no child process can be started, or load the agent.
            GreenroomError: it was started before.
        """
        first = False
        try:
            with self._lock:  # within the try: Ctrl-C may come as soon as it is left
                if not self._started:
                    self._pid = os.getpid()
                    first = self._started = True
            if not first:
                raise GreenroomError("an ActorSystem is started once: make a new one")
            starter = self._pool or Runner(self._spec, self._keys.agent, self._spec.agent_class(), self._user)
            self._control.start()
            self._user.start()
            self._control.run(partial(self._begin, starter)).result()
            self._ended.add_done_callback(self._tell_host)
        except BaseException:
            if first:
                self._give_up()
            raise
        finally:
            if first:
                self._begun.set()
        return self

    def _give_up(self) -> None:
        self._stopping = True
        try:
            self._end_threads()
        finally:
            self._stopped.set()
            if not self._ended.done():
                self._ended.set_result(None)

    async def _begin(self, starter: Starter) -> None:
        self._redis = connect(self._url, self._keys.root)
        self._store = Store(self._redis, self._keys)
        try:
            if self._probes is not None:
                await self._probes.open()
            for warning in await check_server(self._redis):
                log.warning("redis.check", warning=warning)
            if self._pool is not None:
                await self._pool.open()
            await self._join(starter)
        except BaseException:
            if self._pool is not None:
                await self._pool.close()
            await self._close()
            raise

    async def _join(self, starter: Starter) -> None:
        context = RoomContext(
            control=self._control,
            store=self._store,
            runner=starter,
            spec=self._spec,
            slots=Slots(min(self._max_rooms, self._spec.agent_class.max_processes) if self._pool else self._max_rooms),
            worker=self.name,
            counts=self._counts,
        )
        self._worker = Worker(
            context,
            self._lease.total_seconds(),
            self._fatal,
            recovery_rate=self._recovery_rate,
            redis_patience_s=self._redis_patience_s,
            about=describe_process(),
            retention=self._retention,
        )
        try:
            async with asyncio.timeout(START_PATIENCE_S):
                await self._worker.beat()
                await self._worker.retain()
                await self._listeners.open(self._store)
        except TimeoutError as error:
            raise translate(self._store.pipeline.trouble or error) from None
        root = self._start_tree(self._worker)
        await root.wait_up()
        url = without_password(self._url)
        log.info("worker.started", incarnation=context.incarnation, redis=url)

    def _start_tree(self, worker: Worker) -> Supervisor:
        def start_rooms() -> pykka.ActorRef[RoomSupervisor]:
            worker.rooms = RoomSupervisor.start(worker.context)
            return worker.rooms

        specs = [
            ChildSpec("lease", lambda: WorkerLease.start(worker)),
            ChildSpec("rooms", start_rooms),
            ChildSpec("control", lambda: ControlListener.start(worker)),
            ChildSpec("dispatcher", lambda: Dispatcher.start(worker)),
            ChildSpec("listeners", lambda: ListenerFeed.start(worker, self._listeners)),
            ChildSpec("loop_watch", lambda: LoopWatch.start(worker, self._user)),
            ChildSpec("housekeeper", lambda: Housekeeper.start(worker)),
        ]
        self._root: pykka.ActorRef[Supervisor] = Supervisor.start(specs, loop=self._control, strategy=Strategy.REST_FOR_ONE)
        monitor(self._root, self._root_ended)
        root = self._root._actor_weakref()
        assert root is not None  # its loop holds it
        return root

    def _root_ended(self, failure: BaseException | None) -> None:
        if failure is not None:
            log.error("worker.failed", error=failure)
            self._fail(failure)

    def _fatal(self, error: GreenroomError) -> None:
        """The worker must not go on: it lets go of everything at once. What it had in processing is fenced or replayed. One
        that is only too old gives it back, with the attempt refunded.
        """
        log.error("worker.ended", error=error)
        root = self._root._actor_weakref()
        if root is not None:
            self._closing = asyncio.ensure_future(
                self._give_back(root) if isinstance(error, NewerVersion) else root.shut_down()
            )
        self._fail(error)

    async def _give_back(self, root: Supervisor, grace_s: float = 0.0) -> None:
        await root.stop_child("dispatcher")
        await self._drain(grace_s)
        if self._store.pipeline.connected:
            await self._listeners.catch_up()
        await root.shut_down()

    def _fail(self, error: BaseException) -> None:
        """On the control loop: whoever waits is told."""
        if not self._ended.done():
            self._ended.set_exception(error)

    # End. -----------------------------------------------------------------------------------------

    def stop(self, grace: timedelta = DEFAULT_GRACE) -> None:
        """Take no new work, let cycles finish within ``grace``, give the rest back with their attempt refunded, and leave.

        May be called from any thread but the agent's own, and more than once; a later call waits for the first.

        Raises:
            GreenroomError: it was started by another process, which has forked this one.
        """
        with self._lock:
            if not self._started:
                return
            if self._pid != os.getpid():  # its threads are not there
                raise GreenroomError("this ActorSystem was started before this process was forked: start one in each process")
        self._begun.wait()
        first = False
        try:
            with self._lock:  # within the try, as in start
                first, self._stopping = not self._stopping, True
            if first:
                grace_s = 0.0 if self._ended.done() else grace.total_seconds()
                self._control.run(partial(self._finish, grace_s)).result()
        finally:
            if first:
                self._give_up()
        if not first:
            self._stopped.wait()
            return
        self._log.info("worker.stopped")
        if self._telling is not None and self._telling is not threading.current_thread():
            self._telling.join(ON_END_S)

    async def _finish(self, grace_s: float) -> None:
        root = self._root._actor_weakref()
        if self._closing is not None:
            await self._closing  # it lets go already: there is nothing to drain
        elif root is not None and self._root.is_alive():
            await self._give_back(root, grace_s)
        if self._pool is not None:
            await self._pool.close()
        if self._store.pipeline.connected:
            try:
                async with asyncio.timeout(LEAVE_S):
                    await self._store.leave(self.name, self._worker.context.incarnation)
            except (TimeoutError, GreenroomError) as error:
                log.warning("worker.left_badly", error=error)
        await self._close()

    async def _close(self) -> None:
        await self._store.close()
        await self._redis.aclose()
        if self._probes is not None:
            self._probes.close()

    async def _drain(self, grace_s: float) -> None:
        rooms = self._worker.rooms._actor_weakref() if self._worker.rooms is not None else None
        if rooms is None:
            return
        abort_s = self._spec.abort_timeout_s + (self._spec.hook_timeout_s if self._spec.hooks else 0.0)
        # After the grace every cycle is aborted; one that does not end is detached, so a bound exists for all of them.
        for drain, limit_s in ((Drain(now=False), grace_s), (Drain(now=True), abort_s + LEAVE_S)):
            self._worker.tell_rooms(drain)
            try:
                async with asyncio.timeout(limit_s):
                    await rooms.wait_empty()
                return
            except TimeoutError:
                continue
        log.warning("worker.rooms_left", rooms=len(rooms))

    def _end_threads(self) -> None:
        self._listeners.close()
        self._user.stop()
        self._control.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the system has ended; answer whether it has within ``timeout`` seconds.

        Raises:
            Superseded, BudgetSpent, …: why it ended by itself. ``stop`` is still to be called.
        """
        try:
            self._ended.result(timeout)
        except concurrent.futures.TimeoutError:
            return False
        return True

    def _tell_host(self, ended: concurrent.futures.Future[None]) -> None:
        if self._on_end is not None:
            args = (self._on_end, ended.exception())
            self._telling = threading.Thread(target=self._tell, args=args, name="greenroom-on-end", daemon=True)
            self._telling.start()

    def _tell(self, on_end: OnEnd, error: BaseException | None) -> None:
        try:
            on_end(error)
        except BaseException as raised:  # the host's own trouble: it ends nothing here
            self._log.error("on_end.failed", **told(raised))

    # What it is doing. ----------------------------------------------------------------------------

    def on(self, kind: str, listener: Listener) -> Callable[[], None]:
        """Have ``listener(event)`` called for each event of that ``EventKind`` that was this worker's, in their order: from now
        on, or when it has not started yet, from its start. Answers a function that ends it. From any thread.

        Listeners run on a thread of their own, one after the other. What they raise is logged. One that is slow holds up the
        other listeners and nothing else; when it is about 10,000 events behind, events are lost, with a warning. ``stop`` waits
        2 s for them at the most. While Redis is away this waits 5 s for it, and then listens from when it is back.

        Raises:
            InvalidRequest: the kind is none of a worker's events, or the listener is no plain function.
        """
        return self._listeners.add(kind, listener)

    @property
    def ready(self) -> bool:
        """Whether it works: started, connected to Redis, its lease held, and not ended. For readiness probes, from any thread.

        False during an outage, at the latest when the lease has run out; true again by itself.
        """
        if not self._begun.is_set() or self._stopping or self._ended.done() or self._pid != os.getpid():
            return False
        return self._store.pipeline.connected and time.monotonic() < self._worker.held_until_s

    def measures(self) -> Measures:
        """This worker's numbers, and how much work its agent has: what ``greenroom.metrics`` exports. It takes a second at the
        most, whatever hangs. From any thread but the library's and the agent's loop.
        """
        started = hasattr(self, "_worker")
        root = self._root._actor_weakref() if hasattr(self, "_root") else None
        return measure(
            self._keys.agent,
            self.name,
            self._counts,
            ready=self.ready,
            detached=self._worker.context.detached if started else 0,
            parts=root.children() if root is not None else (),
            control=self._control,
            store=self._store if started else None,
        )

    def report_every(self, period_s: float, report: Callable[[str], object]) -> None:
        """Have ``report`` called with how it is, in a few words, at once and every ``period_s`` seconds until it has ended: on
        the control loop, so only while that turns. It must not wait.
        """
        self._control.every(period_s, lambda: report(self._in_words()))

    def _in_words(self) -> str:
        what = f"rooms at work: {self._worker.context.slots.used}"
        if self._stopping or self._ended.done():
            return f"ends, {what}"
        return what if self.ready else f"waits for Redis, {what}"

    def dump(self) -> str:
        """What this process is doing, for its operator: the rooms at work with state, ticket and age, the child processes, the
        tasks of both loops, and all threads with their stacks. From any thread but the library's, whatever hangs.
        """
        rooms = self._worker.rooms if hasattr(self, "_worker") else None
        children = self._pool.describe() if self._pool is not None else []
        return describe(self.name, self._control, self._user, rooms, self._keys.agent, children)

    # Context managers. ----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            return await asyncio.to_thread(self.start)
        except asyncio.CancelledError:  # the thread goes on, and nobody will leave what was not entered
            await asyncio.to_thread(self.stop, timedelta(0))
            raise

    async def __aexit__(self, *_: Any) -> None:
        await asyncio.to_thread(self.stop)
