"""Scripts on one connection: those of one tick leave in one write, and a lost connection repeats them in order.

Every script is safe to send twice, which is what makes repeating right. Two batches may be under way, so that Redis works on
one while the replies of the other are handled; a batch is small, so that a signal of another client never waits long behind
it.

A durable request is answered when replicas have confirmed it: one WAIT follows the batch that it is in. WAIT speaks of what its
own connection has done, so a connection that is lost before its answer repeats the requests too, answered or not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, overload

import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

from .connect import DENIED, answering, back_off, is_full, is_lost, open_connection, translate
from .errors import GreenroomError, InvalidRequest, NewerVersion, NotReplicated, RedisRefused, RedisUnavailable
from .log import log
from .records import LAYOUT, check_version
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
    durable: bool = False
    confirms: bool = False  # this is the WAIT for those before it


@dataclass(frozen=True, slots=True)
class Durability:
    """Sends and signals count as done once ``replicas`` have confirmed them within ``timeout`` (1 ms to 5 s).

    Raises:
        InvalidRequest: a value cannot be used.
    """

    replicas: int = 1
    timeout: timedelta = timedelta(milliseconds=500)

    def __post_init__(self) -> None:
        if not isinstance(self.replicas, int) or isinstance(self.replicas, bool) or self.replicas < 1:
            raise InvalidRequest(f"replicas: want a whole number of 1 or more, got {self.replicas!r}")
        # Two batches may be under way: both of their waits must fit into REPLY_TIMEOUT_S.
        if not isinstance(self.timeout, timedelta) or not timedelta(milliseconds=1) <= self.timeout <= timedelta(seconds=5):
            raise InvalidRequest(f"timeout: want a timedelta of 1 ms to 5 s, got {self.timeout!r}")


def _pack(*words: Word) -> bytes:
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # its stub knows tuples of one word only
    return packed


def _tell_of(error: Exception) -> None:
    if is_lost(error) or is_full(error):
        log.warning("redis.lost", error=str(error))
    else:  # a reply that is no Redis protocol, say
        log.error("redis.confused", exc_info=error)


class Pipeline:
    """A connection that runs scripts and plain commands for one event loop.

    Args:
        redis: where to connect; it is not closed by this class.
        root: the namespace that every script gets as its key.
        patience_s: a request fails with RedisUnavailable after this long without a connection; None waits for ever.
        durability: what requests that are ``durable`` wait for; None: nothing.
    """

    def __init__(
        self, redis: Redis, root: str, *, patience_s: float | None = None, durability: Durability | None = None
    ) -> None:
        self._redis = redis
        self._root = root.encode()
        # No such key exists. A node of a cluster that is just handing over the agent's slot, key by key, refuses a script that
        # names it; otherwise a script would begin there, and break off at the first key that has gone.
        self._none = self._root + b":none"
        self._patience_s = patience_s
        self._durability = durability
        self._waiting: deque[_Request] = deque()
        self._sent: deque[_Request] = deque()
        self._unconfirmed: list[tuple[_Request, Any]] = []  # durable ones with their answers; they came before all in _sent
        self._wake = asyncio.Event()
        self._owed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.connected = False
        self.reconnects = 0
        self.trouble: Exception | None = None  # why there is no server that does what it is asked
        self._failures, self._lost_at = 0, 0.0
        # What a server that answers would not do: one that is no primary any more, or has lost its replicas. Until it does
        # this, to be connected means nothing, and the patience runs on.
        self._refused: _Request | None = None
        self._shas = {name: script.sha.encode() for name, script in scripts().items()}
        self._unloaded: GreenroomError | None = None  # why this user may load no scripts

    def run(self, script: str, *args: Word, decode: Callable[[Any], T], durable: bool = False) -> asyncio.Future[T]:
        """Run a script; the future holds its answer, decoded, or a RedisError: NotReplicated only if it is ``durable``."""
        return self._send(("EVALSHA", self._shas[script], 2, self._root, self._none, *args), decode, durable=durable)

    @overload
    def command(self, *words: Word) -> asyncio.Future[Any]: ...
    @overload
    def command(self, *words: Word, decode: Callable[[Any], T]) -> asyncio.Future[T]: ...
    def command(self, *words: Word, decode: Callable[[Any], Any] | None = None) -> asyncio.Future[Any]:
        """Send a plain command, which must be safe to repeat."""
        return self._send(words, decode)

    def _send(
        self, words: tuple[Word, ...], decode: Callable[[Any], Any] | None, *, durable: bool = False
    ) -> asyncio.Future[Any]:
        self.check_loop()
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()
        if self._closed:
            reply.set_exception(RedisUnavailable("this connection is closed"))
            return reply
        self._waiting.append(_Request(_pack(*words), decode, reply, durable and self._durability is not None))
        if self._task is None:
            self._task = loop.create_task(self._keep_connected(), name="greenroom-pipeline")
        self._wake.set()
        return reply

    def check_loop(self) -> None:
        """Raises GreenroomError on another event loop than that of the first request, where nothing would ever be answered."""
        if self._task is not None and self._task.get_loop() is not asyncio.get_running_loop():
            raise GreenroomError("this client is in use on another event loop: make one for each loop")

    async def close(self) -> None:
        """Close the connection; what still waits fails with RedisUnavailable."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._fail(RedisUnavailable("closed before Redis answered"))

    def _fail(self, error: GreenroomError) -> None:
        self._repeat_sent()
        for request in self._waiting:
            if not request.reply.done():
                request.reply.set_exception(error)
        self._waiting.clear()
        self._refused = None

    def _repeat_sent(self) -> None:
        """What was sent, and is not answered in full, is to be sent again, before what waits."""
        again = [request for request, _ in self._unconfirmed] + [request for request in self._sent if not request.confirms]
        self._waiting.extendleft(reversed(again))
        self._unconfirmed.clear()
        self._sent.clear()

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        self._failures, self._lost_at = 0, loop.time()
        while True:
            try:
                async with open_connection(self._redis) as connection:
                    await self._load(connection)
                    await self._check_data(connection)
                    if self._refused is None:
                        self._well()
                    await self._serve(connection)
            except DENIED as error:
                self._fail(translate(error))
            except NewerVersion as error:
                self._fail(error)
            except Exception as error:  # nothing may end this loop
                if isinstance(error, ResponseError) and not self._is_lost(error):
                    self._fail(translate(error))
                else:
                    self._lose(error)
            self.connected = False
            self._repeat_sent()
            if not self._waiting and self._patience_s is not None:
                self._wake.clear()
                await self._wake.wait()  # nobody waits: connect again when somebody does
                self._failures, self._lost_at = 0, loop.time()
                continue
            await back_off(self._failures)
            self._failures += 1

    def _is_lost(self, error: Exception) -> bool:
        """Whether to connect again and repeat. Who has no patience is told at once that Redis is full; a worker waits."""
        return is_lost(error) or (self._patience_s is None and is_full(error))

    def _well(self) -> None:
        """There is a server that does what it is asked."""
        self.connected, self._refused, self.trouble = True, None, None
        if self._failures:
            self.reconnects += 1
            log.info("redis.reconnected", after_s=round(asyncio.get_running_loop().time() - self._lost_at, 3))
        self._failures = 0

    def _lose(self, error: Exception) -> None:
        """There is none any more, or still none: who waits learns it when the patience is over."""
        now_s, self.trouble = asyncio.get_running_loop().time(), error
        if self.connected or not self._failures:
            silent_s = REPLY_TIMEOUT_S if self.connected and isinstance(error, TimeoutError) else 0.0
            self._lost_at = now_s - silent_s
            _tell_of(error)
        if self._patience_s is not None:
            why = translate(error)
            if (is_lost(error) and isinstance(why, RedisRefused)) or now_s - self._lost_at >= self._patience_s:
                self._fail(why)

    async def _load(self, connection: AbstractConnection) -> None:
        """Load the scripts. A user who may only read goes without."""
        packed = b"".join(_pack("SCRIPT", "LOAD", script.text) for script in scripts().values())
        self._unloaded = None
        async with answering(REPLY_TIMEOUT_S):
            await connection.send_packed_command([packed], check_health=False)
            for _ in scripts():
                try:
                    await connection.read_response()
                except NoPermissionError as error:
                    self._unloaded = translate(error)

    async def _check_data(self, connection: AbstractConnection) -> None:
        """Refuse data of a newer version; find out here, where it is backed off from, that a slot is being handed over."""
        packed = _pack("HGET", self._root, "version") + _pack("EXISTS", self._root, self._none)
        async with answering(REPLY_TIMEOUT_S):
            await connection.send_packed_command([packed], check_health=False)
            version = await connection.read_response()
            await connection.read_response()
        check_version(version or b"1", LAYOUT, "what this agent has in Redis")

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
            if any(request.durable for request in batch):
                batch.append(self._wait())
            self._sent.extend(batch)
            self._owed.set()
            await connection.send_packed_command([b"".join([request.packed for request in batch])], check_health=False)

    def _wait(self) -> _Request:
        assert self._durability is not None
        timeout_ms = int(self._durability.timeout / timedelta(milliseconds=1))
        packed = _pack("WAIT", self._durability.replicas, timeout_ms)
        return _Request(packed, None, asyncio.get_running_loop().create_future(), confirms=True)

    async def _read(self, connection: AbstractConnection) -> None:
        while True:
            while not self._sent:
                self._owed.clear()
                await self._owed.wait()
            owed = len(self._sent)
            unknown: list[_Request] = []
            async with answering(REPLY_TIMEOUT_S):
                for _ in range(owed):
                    await self._settle(connection, unknown)
                    if self._refused is not None and self._refused.reply.done():
                        self._well()
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
        except NoScriptError:
            if self._unloaded is None:
                unknown.append(self._sent.popleft())
                return
            failure = self._unloaded
        except ResponseError as error:
            if self._is_lost(error):
                confirms = self._sent[0].confirms
                self._refused = next((request for request, _ in self._unconfirmed), None) if confirms else self._sent[0]
                raise
            failure = translate(error)
        request = self._sent.popleft()
        if request.confirms:
            self._confirm(reply, failure)
        elif request.reply.done():
            return
        elif failure is not None:
            request.reply.set_exception(failure)
        else:
            try:
                answer = reply if request.decode is None else request.decode(reply)
            except Exception as error:  # a record that cannot be read is its caller's trouble, not this connection's
                request.reply.set_exception(error)
                return
            if request.durable:
                self._unconfirmed.append((request, answer))
            else:
                request.reply.set_result(answer)

    def _confirm(self, replicas: Any, failure: GreenroomError | None) -> None:
        """Answer the durable requests of the batch that this WAIT ended."""
        assert self._durability is not None
        for request, answer in self._unconfirmed:
            if request.reply.done():
                continue
            if failure is not None:
                request.reply.set_exception(failure)
            elif replicas < self._durability.replicas:
                request.reply.set_exception(NotReplicated(replicas, self._durability.replicas, answer))
            else:
                request.reply.set_result(answer)
        self._unconfirmed.clear()
