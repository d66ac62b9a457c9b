"""Scripts on one connection: those of one tick leave in one write, and a lost connection repeats them in order.

Every script is safe to send twice, which is what makes repeating right. Two batches may be under way, so that Redis works on
one while the replies of the other are handled; a batch is small, so that a signal of another client never waits long behind
it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError, ResponseError

from .connect import DENIED, LOST, back_off, open_connection, translate
from .errors import GreenroomError, RedisUnavailable
from .log import log
from .scripts import scripts

T = TypeVar("T")
Word = str | bytes | int

BATCH = 16
WINDOW = 2 * BATCH
REPLY_TIMEOUT_S = 15.0  # a server that owes a reply for longer is taken for lost; a blocked script reports BUSY after 5 s


@dataclass(slots=True, eq=False)
class _Request:
    packed: bytes
    decode: Callable[[Any], Any] | None
    reply: asyncio.Future[Any]


def _pack(*words: Word) -> bytes:
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # its stub knows tuples of one word only
    return packed


class Pipeline:
    """A connection that runs scripts and plain commands for one event loop.

    Args:
        redis: where to connect; it is not closed by this class.
        root: the namespace that every script gets as its key.
        patience_s: a request fails with RedisUnavailable after this long without a connection; None waits for ever.
    """

    def __init__(self, redis: Redis, root: str, *, patience_s: float | None = None) -> None:
        self._redis = redis
        self._root = root.encode()
        self._patience_s = patience_s
        self._waiting: deque[_Request] = deque()
        self._sent: deque[_Request] = deque()
        self._wake = asyncio.Event()
        self._owed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.connected = False
        self.reconnects = 0
        self._shas = {name: script.sha.encode() for name, script in scripts().items()}

    def run(self, script: str, *args: Word, decode: Callable[[Any], T]) -> asyncio.Future[T]:
        """Run a script; the future holds its answer, decoded, or a RedisError."""
        return self.command("EVALSHA", self._shas[script], 1, self._root, *args, decode=decode)

    @overload
    def command(self, *words: Word) -> asyncio.Future[Any]: ...
    @overload
    def command(self, *words: Word, decode: Callable[[Any], T]) -> asyncio.Future[T]: ...
    def command(self, *words: Word, decode: Callable[[Any], Any] | None = None) -> asyncio.Future[Any]:
        """Send a plain command, which must be safe to repeat."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()
        if self._closed:
            reply.set_exception(RedisUnavailable("this connection is closed"))
            return reply
        self._waiting.append(_Request(_pack(*words), decode, reply))
        if self._task is None:
            self._task = loop.create_task(self._keep_connected(), name="greenroom-pipeline")
        self._wake.set()
        return reply

    async def close(self) -> None:
        """Close the connection; what still waits fails with RedisUnavailable."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._fail(RedisUnavailable("closed before Redis answered"))

    def _fail(self, error: GreenroomError) -> None:
        for request in (*self._sent, *self._waiting):
            if not request.reply.done():
                request.reply.set_exception(error)
        self._sent.clear()
        self._waiting.clear()

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        failures, lost_at = 0, loop.time()
        while True:
            connected = False
            try:
                async with open_connection(self._redis) as connection:
                    await self._load(connection)
                    self.connected = connected = True
                    if failures:
                        self.reconnects += 1
                        log.info("redis.reconnected", after_s=round(loop.time() - lost_at, 3))
                    failures = 0
                    self._waiting.extendleft(reversed(self._sent))
                    self._sent.clear()
                    await self._serve(connection)
            except DENIED as error:
                self._fail(translate(error))
            except LOST as error:
                if connected or not failures:
                    lost_at = loop.time()
                    log.warning("redis.lost", error=str(error))
                if self._patience_s is not None and loop.time() - lost_at >= self._patience_s:
                    self._fail(translate(error))
            except ResponseError as error:
                self._fail(translate(error))
            except Exception:  # a reply that is no Redis protocol, say: nothing may end this loop
                log.exception("redis.confused")
            self.connected = False
            if not (self._waiting or self._sent) and self._patience_s is not None:
                self._wake.clear()
                await self._wake.wait()  # nobody waits: connect again when somebody does
                failures, lost_at = 0, loop.time()
                continue
            await back_off(failures)
            failures += 1

    async def _load(self, connection: AbstractConnection) -> None:
        packed = b"".join(_pack("SCRIPT", "LOAD", script.text) for script in scripts().values())
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            await connection.send_packed_command([packed], check_health=False)
            for _ in scripts():
                await connection.read_response()

    async def _serve(self, connection: AbstractConnection) -> None:
        """Write and read until one of them fails, and raise what it failed of."""
        tasks = [asyncio.create_task(self._write(connection)), asyncio.create_task(self._read(connection))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        failed = [task.exception() for task in tasks if not task.cancelled() and task.exception() is not None]
        raise failed[0] or ConnectionError("closed")

    async def _write(self, connection: AbstractConnection) -> None:
        while True:
            while not self._waiting or len(self._sent) > WINDOW - BATCH:
                self._wake.clear()
                await self._wake.wait()
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            batch = [request for request in batch if not request.reply.cancelled()]
            self._sent.extend(batch)
            self._owed.set()
            await connection.send_packed_command([b"".join([request.packed for request in batch])], check_health=False)

    async def _read(self, connection: AbstractConnection) -> None:
        while True:
            while not self._sent:
                self._owed.clear()
                await self._owed.wait()
            owed = len(self._sent)
            unknown: list[_Request] = []
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                for _ in range(owed):
                    await self._settle(connection, unknown)
            if unknown:  # the server forgot its scripts: load them, and send those again in their order
                self._sent.extendleft(reversed(unknown))
                raise ConnectionError("the server has forgotten its scripts")
            self._wake.set()

    async def _settle(self, connection: AbstractConnection, unknown: list[_Request]) -> None:
        """Read the reply that is due next, and answer its request."""
        reply: Any = None
        failure: GreenroomError | None = None
        try:
            reply = await connection.read_response()
        except LOST:
            raise
        except NoScriptError:
            unknown.append(self._sent.popleft())
            return
        except ResponseError as error:
            failure = translate(error)
        request = self._sent.popleft()
        if request.reply.done():
            return
        if failure is not None:
            request.reply.set_exception(failure)
            return
        try:
            request.reply.set_result(reply if request.decode is None else request.decode(reply))
        except Exception as error:  # a record that cannot be read is its caller's trouble, not this connection's
            request.reply.set_exception(error)
