"""Relays: each output of an agent's rooms, handed to a function of the user's that gets it out to the world."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self

import pykka

from ..actors.backoff import Backoff
from ..actors.calls import Calls
from ..actors.loop import LoopThread
from ..actors.loop_actor import monitor
from ..protocol.client import DEFAULT_REDIS
from ..protocol.connect import check_server, connect, translate, without_password
from ..protocol.errors import GreenroomError, InvalidRequest
from ..protocol.keys import Keys, check_name
from ..protocol.log import log
from ..protocol.records import Output
from ..protocol.store import Store
from .child import ChildSpec
from .dump import describe_relay
from .handover import Duty, Handover, LeaseTaken
from .supervisor import Supervisor
from .system import DEFAULT_GRACE, DEFAULT_LEASE, LEAVE_S, START_PATIENCE_S, default_name

DEFAULT_RETRY = Backoff()

Deliver = Callable[[str, Output], Any]


class Relay:
    """Hands each output of an agent's rooms to ``deliver(room, output)``: at least once, and in order in each room.

    An output is done with when ``deliver`` returns. What it raises is logged, and the output tried again with back-off, for
    ever; its room waits, others go on. Only ``Reject`` passes over an output. The same output is handed over again when the
    process ends, or loses its lease, before Redis knows that it is done with: ``room`` and ``output.id`` together are the key
    by which a receiver recognises it.

    Chunks of a cycle that an interrupt or a stop has aborted, and that were not handed over before the signal answered, are
    passed over; the ``aborted`` that ends them is handed over, as is what an interrupted cycle says at its end.

    It hands over what is sent from the first start of a relay of this name on; Redis keeps that until it is handed over, or the
    relay is forgotten. Of several processes with one name one hands over, and the others stand by.

    It runs on two threads of its own and takes nothing over: no signal handlers, no logging configuration.

    Args:
        agent: the agent's name.
        deliver: a coroutine function, run on an event loop of its own, not yours; or a function, run in a thread.
        redis: ``redis://``, ``rediss://``, ``unix://``, ``sentinel://`` or ``cluster://`` URL, as for ``Client``.
        name: the relay's name, which is what Redis keeps its place by.
        max_rooms: of how many rooms outputs may be handed over at once.
        retry: how long an output waits after ``deliver`` has raised.
        lease: how long a relay that is gone keeps others of its name waiting, 1 s or more.

    Raises:
        InvalidRequest: an argument cannot be used.
    """

    def __init__(
        self,
        agent: str,
        deliver: Deliver,
        *,
        redis: str = DEFAULT_REDIS,
        name: str = "relay",
        max_rooms: int = 100,
        retry: Backoff = DEFAULT_RETRY,
        lease: timedelta = DEFAULT_LEASE,
    ) -> None:
        self._keys = Keys(agent)
        self.name = check_name(name, "relay name")
        _check_deliver(deliver)
        if not isinstance(max_rooms, int) or isinstance(max_rooms, bool) or max_rooms < 1:
            raise InvalidRequest(f"max_rooms: want a whole number of 1 or more, got {max_rooms!r}")
        if not isinstance(retry, Backoff):
            raise InvalidRequest(f"retry: want a Backoff, got {retry!r}")
        if not isinstance(lease, timedelta) or lease < timedelta(seconds=1):
            raise InvalidRequest(f"lease: want a timedelta of 1 s or more, got {lease!r}")
        connect(redis, self._keys.root)  # a URL that is none is refused here and not on another thread
        self._url = redis
        self._max_rooms = max_rooms
        self._retry = retry
        self._lease = lease
        fields = {"agent": self._keys.agent, "relay": self.name}
        self._control = LoopThread("greenroom-relay", fields=fields)
        self._user = LoopThread("greenroom-relay-user", fields=fields)
        self._calls = Calls(deliver, self._control, self._user)
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._lock = threading.Lock()
        self._begun = threading.Event()  # start has ended, one way or the other
        self._stopped = threading.Event()
        self._started = False
        self._stopping = False

    # Start. ---------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Connect and register: what is sent from here on is handed over, by this process or by the one that has the lease.

        Raises:
            RedisUnavailable, RedisRefused: Redis cannot be used; nothing was started.
            GreenroomError: it was started before.
        """
        first = False
        try:
            with self._lock:  # within the try: Ctrl-C may come as soon as it is left
                if not self._started:
                    first = self._started = True
            if not first:
                raise GreenroomError("a Relay is started once: make a new one")
            self._control.start()
            self._user.start()
            self._control.run(self._begin).result()
        except BaseException:
            if first:
                self._stopping = True
                self._end()
            raise
        finally:
            if first:
                self._begun.set()
        return self

    async def _begin(self) -> None:
        self._redis = connect(self._url, self._keys.root)
        store = Store(self._redis, self._keys)
        token = f"{default_name()}-{uuid.uuid4().hex}"
        self._duty = Duty(store, self.name, token, self._calls, self._lease.total_seconds(), self._max_rooms, self._retry)
        try:
            for warning in await check_server(self._redis):
                log.warning("redis.check", warning=warning)
            await self._register()
        except BaseException:
            await store.close()
            await self._redis.aclose()
            raise
        spec = ChildSpec("handover", lambda: Handover.start(self._duty))
        self._root: pykka.ActorRef[Supervisor] = Supervisor.start([spec], loop=self._control)
        monitor(self._root, self._root_ended)
        log.info("relay.started", redis=without_password(self._url))

    async def _register(self) -> None:
        try:
            async with asyncio.timeout(START_PATIENCE_S):
                await self._duty.renew()
        except LeaseTaken as taken:
            log.info("relay.stands_by", active=str(taken))
        except TimeoutError as error:
            raise translate(self._duty.store.pipeline.trouble or error) from None

    def _root_ended(self, failure: BaseException | None) -> None:
        if failure is not None:
            log.error("relay.ended", error=failure)
            self._ended.set_exception(failure)

    # End. -----------------------------------------------------------------------------------------

    def stop(self, grace: timedelta = DEFAULT_GRACE) -> None:
        """Hand over nothing more, let ``deliver`` finish with what it has within ``grace``, cancel the rest, and leave the
        lease to who stands by. A function in a thread cannot be cancelled: it is left behind. What was not finished is handed
        over again by the next one.

        May be called from any thread but those of ``deliver``, and more than once; a later call waits for the first.
        """
        with self._lock:
            if not self._started:
                return
        self._begun.wait()
        first = False
        try:
            with self._lock:  # within the try, as in start
                first, self._stopping = not self._stopping, True
            if first:
                self._control.run(partial(self._finish, grace.total_seconds())).result()
        finally:
            if first:
                self._end()
        if not first:
            self._stopped.wait()
            return
        log.info("relay.stopped", **self._control.fields)

    async def _finish(self, grace_s: float) -> None:
        duty, root = self._duty, self._root._actor_weakref()
        if root is not None and self._root.is_alive():
            try:
                async with asyncio.timeout(grace_s):
                    await duty.drain()
            except TimeoutError:
                log.warning("relay.cut_short", rooms=duty.at_work)
            await root.shut_down()
        if duty.store.pipeline.connected:
            try:
                async with asyncio.timeout(LEAVE_S):
                    await duty.store.relay(self.name, duty.token, lease_ms=None)
            except (TimeoutError, GreenroomError) as error:
                log.warning("relay.left_badly", error=error)
        await duty.store.close()
        await self._redis.aclose()

    def _end(self) -> None:
        try:
            self._user.stop()
            self._control.stop()
        finally:
            self._stopped.set()
            if not self._ended.done():
                self._ended.set_result(None)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the relay has ended; answer whether it has within ``timeout`` seconds.

        Raises:
            BudgetSpent: it kept failing. ``stop`` is still to be called.
        """
        try:
            self._ended.result(timeout)
        except concurrent.futures.TimeoutError:
            return False
        return True

    def report_every(self, period_s: float, report: Callable[[str], object]) -> None:
        """As of an ActorSystem."""
        self._control.every(period_s, lambda: report(self._in_words()))

    def _in_words(self) -> str:
        duty = self._duty
        if duty.held_until_s <= time.monotonic():
            return "stands by" if duty.store.pipeline.connected else "waits for Redis"
        return f"hands over, rooms at work: {duty.at_work}"

    def dump(self) -> str:
        """What this process is doing, for its operator: the tasks of both loops and all threads with their stacks. From any
        thread but the library's, whatever hangs.
        """
        return describe_relay(self.name, self._control, self._user, self._keys.agent)

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


def _check_deliver(deliver: object) -> None:
    if not callable(deliver):
        raise InvalidRequest(f"deliver: want a function of room and output, got {deliver!r}")
    try:
        inspect.signature(deliver).bind("room", "output")
    except TypeError as error:
        raise InvalidRequest(f"deliver: it is called with room and output: {error}") from None
    except ValueError:  # a function without a signature, in C
        pass
