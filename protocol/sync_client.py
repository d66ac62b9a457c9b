"""The client for programs without an event loop: an ``AsyncClient`` on a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from functools import partial
from types import FunctionType
from typing import Any, Literal, ParamSpec, Self, TypeVar, overload

from . import keyspace
from .audit import SignalEntry
from .client import DEFAULT_REDIS, AsyncClient
from .crossing import hand_over
from .errors import GreenroomError
from .fleet import WorkerStatus
from .keys import check_room
from .pipeline import Durability
from .records import AgentStatus, DeadLetter, Event, Output, Receipt, RoomStatus
from .relays import RelayStatus
from .room_handles import AsyncRoomHandle, RoomHandle

T = TypeVar("T")
P = ParamSpec("P")

_Serving = Future[asyncio.AbstractEventLoop]  # the loop of a client's thread, once it is made


def _each(pages: Iterator[list[T]]) -> Iterator[T]:
    """The items of pages: to and from the client's thread once a page, not once an item."""
    for page in pages:
        yield from page


def _end(serving: _Serving, pid: int) -> None:
    if pid == os.getpid():  # else the thread is another process'
        serving.add_done_callback(lambda _: serving.result().call_soon_threadsafe(serving.result().stop))


def _serve(serving: _Serving, _: AsyncClient) -> None:
    try:
        loop = asyncio.new_event_loop()  # here: Ctrl-C would break it where it is half made, on the main thread
    except BaseException as error:
        serving.set_exception(error)
        return
    asyncio.set_event_loop(loop)
    serving.set_result(loop)
    try:
        loop.run_forever()
    finally:
        # A call that Ctrl-C has left may still be ending, and what it iterates can only be closed after it.
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class Client:
    """Talks to the rooms of one agent. Safe to use from several threads; its arguments, and what each verb does, stand at
    ``AsyncClient``. It connects, and starts a thread of its own, at its first call.
    """

    def __init__(
        self,
        agent: str,
        *,
        redis: str = DEFAULT_REDIS,
        timeout: float = 10.0,
        queue_limit: int = 10_000,
        by: str | None = None,
        durability: Durability | None = None,
    ) -> None:
        self._client = AsyncClient(agent, redis=redis, timeout=timeout, queue_limit=queue_limit, by=by, durability=durability)
        self._lock = threading.Lock()
        self._serving: _Serving | None = None
        self._thread: threading.Thread | None = None
        self._forgotten: weakref.finalize[..., Client] | None = None
        self._pid = os.getpid()  # of the process that has the thread
        self._closed = False

    @property
    def agent(self) -> str:
        return self._client.agent

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread; calls that wait in other threads fail with RedisUnavailable."""
        with self._lock:
            self._closed = True
            if self._forgotten is not None:
                self._forgotten.detach()
            serving, self._serving = self._serving, None
            if serving is None or self._thread is None or self._pid != os.getpid():
                return
            loop, closed = serving.result(), Future[None]()
            try:
                hand_over(loop, self._close, closed)
                closed.result()
            finally:
                loop.call_soon_threadsafe(loop.stop)  # also if Ctrl-C cuts this short
            self._thread.join()

    async def _close(self) -> None:
        await self._client.close()
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        if calls:  # they end by themselves now; whoever waits for one is to have its error before the loop ends
            await asyncio.wait(calls)

    def _run(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        answer = Future[T]()
        try:
            self._begin(answer, partial(call, *args, **kwargs))
            return answer.result()
        except BaseException:
            answer.cancel()  # a KeyboardInterrupt here must not leave the call running there
            raise

    def _begin(self, answer: Future[T], call: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Have it begin on the thread of the client, behind all that was begun before."""
        with self._lock:
            if self._closed:
                raise GreenroomError("this client is closed")
            serving = self._serving or self._start()
            if self._pid != os.getpid():  # its thread is not there, and nothing would ever be answered
                raise GreenroomError("this client was in use before this process was forked: make one in each process")
            hand_over(serving.result(), call, answer)

    def _start(self) -> _Serving:
        self._pid, serving = os.getpid(), _Serving()
        # The thread keeps alive what runs on it; of one that is forgotten, and not closed, it ends when nobody has it.
        args = (serving, self._client)
        thread = threading.Thread(target=_serve, args=args, name="greenroom-client", daemon=True)
        try:
            thread.start()
            self._forgotten = weakref.finalize(self, _end, serving, self._pid)
            self._forgotten.atexit = False
            self._thread, self._serving = thread, serving
        except BaseException:  # Ctrl-C may come when it runs already; the next call has another
            self._serving = None
            _end(serving, self._pid)
            raise
        return serving

    def _iterate(self, items: AsyncIterator[T]) -> Generator[T, None, None]:
        async def following() -> T | None:
            return await anext(items, None)

        while (item := self._run(following)) is not None:
            yield item

    def room(self, room: str) -> RoomHandle:
        return RoomHandle(self, check_room(room))

    def send(self, room: str, body: Any, *, key: str | None = None) -> int:
        return self._run(self._client.send, room, body, key=key)

    @overload
    def ask(
        self, room: str, body: Any, *, stream: Literal[False] = False, timeout: float | None = 30.0, key: str | None = None
    ) -> Any: ...
    @overload
    def ask(
        self, room: str, body: Any, *, stream: Literal[True], timeout: float | None = 30.0, key: str | None = None
    ) -> Generator[Output, None, None]: ...
    def ask(self, room: str, body: Any, *, stream: bool = False, timeout: float | None = 30.0, key: str | None = None) -> Any:
        if stream:
            return self._iterate(self._client.ask(room, body, stream=True, timeout=timeout, key=key))
        return self._run(self._client.ask, room, body, timeout=timeout, key=key)

    def outputs(self, room: str, *, after: str | None = None, follow: bool = False) -> Iterator[Output]:
        return self._iterate(self._client.outputs(room, after=after, follow=follow))

    def interrupt(
        self,
        *rooms: str,
        everywhere: bool = False,
        message: int | None = None,
        reason: str = "",
        by: str | None = None,
        cid: str | None = None,
    ) -> list[Receipt]:
        return self._run(self._client.interrupt, *rooms, everywhere=everywhere, message=message, reason=reason, by=by, cid=cid)

    def stop(
        self, *rooms: str, everywhere: bool = False, reason: str = "", by: str | None = None, cid: str | None = None
    ) -> list[Receipt]:
        return self._run(self._client.stop, *rooms, everywhere=everywhere, reason=reason, by=by, cid=cid)

    def pause(
        self, *rooms: str, everywhere: bool = False, reason: str = "", by: str | None = None, cid: str | None = None
    ) -> list[Receipt]:
        return self._run(self._client.pause, *rooms, everywhere=everywhere, reason=reason, by=by, cid=cid)

    def play(
        self, *rooms: str, everywhere: bool = False, reason: str = "", by: str | None = None, cid: str | None = None
    ) -> list[Receipt]:
        return self._run(self._client.play, *rooms, everywhere=everywhere, reason=reason, by=by, cid=cid)

    def discard(self, room: str, message: int) -> None:
        self._run(self._client.discard, room, message)

    def forget_relay(self, name: str) -> None:
        self._run(self._client.forget_relay, name)

    def requeue(self, letter_id: str) -> tuple[str, int]:
        return self._run(self._client.requeue, letter_id)

    def drop(self, letter_id: str) -> None:
        self._run(self._client.drop, letter_id)

    def dead_letters(self) -> Iterator[DeadLetter]:
        return _each(self._iterate(self._client._letter_pages()))

    def dead_letter(self, letter_id: str) -> DeadLetter:
        return self._run(self._client.dead_letter, letter_id)

    def events(self, *, after: str | None = None, follow: bool = False) -> Iterator[Event]:
        return _each(self._iterate(self._client._event_pages(after, follow)))

    def signals(self, *, after: str | None = None, follow: bool = False) -> Iterator[SignalEntry]:
        return _each(self._iterate(self._client._signal_pages(after, follow)))

    def status(self, room: str) -> RoomStatus:
        return self._run(self._client.status, room)

    def last_output(self, room: str) -> Output | None:
        return self._run(self._client.last_output, room)

    def rooms(
        self,
        *,
        phase: str | None = None,
        mode: str | None = None,
        worker: str | None = None,
        sort: str | None = None,
        limit: int | None = None,
    ) -> Iterator[RoomStatus]:
        return _each(self._iterate(self._client._room_pages(phase, mode, worker, sort, limit)))

    def workers(self) -> list[WorkerStatus]:
        return self._run(self._client.workers)

    def relays(self) -> list[RelayStatus]:
        return self._run(self._client.relays)

    def overview(self) -> AgentStatus:
        return self._run(self._client.overview)


def share_docs(original: type, *copies: type) -> None:
    """Have each verb of the copies say what the original's does: for ``help``, and editors that ask Python."""
    for copy in copies:
        for name, verb in vars(copy).items():
            if isinstance(verb, FunctionType) and not name.startswith("_") and not verb.__doc__:
                verb.__doc__ = getattr(original, name).__doc__


share_docs(AsyncClient, Client, AsyncRoomHandle, RoomHandle)


def agents_instead(client: Client) -> list[str] | None:
    """None if Redis has anything of the client's agent, else the agents that it has, as far as a short look finds them."""
    return client._run(_agents_instead, client._client)


async def _agents_instead(client: AsyncClient) -> list[str] | None:
    return await keyspace.agents_instead(client._store)


def begin_send(client: Client, room: str, body: Any, key: str | None) -> Future[int]:
    """Send without waiting for the answer; what is begun in an order is enqueued in it."""
    answer = Future[int]()
    client._begin(answer, partial(client._client.send, room, body, key=key))
    return answer
