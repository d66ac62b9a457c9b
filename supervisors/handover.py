"""What a relay does: it stands by for its lease, and while it has that, hands over what is due, room by room."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial

from redis.exceptions import RedisError as RedisPyError

from ..actors.backoff import Backoff
from ..actors.calls import Calls
from ..protocol.connect import back_off, open_connection
from ..protocol.errors import RedisError, Reject, words_of
from ..protocol.log import log, told
from ..protocol.records import read_output, text
from ..protocol.store import Answer, Due, Store
from ..protocol.wakeups import published
from .service import Service

STANDBY_S = 0.5  # how often who stands by asks for the lease
RENEWALS_A_LEASE = 3
LOOK_S = 1.0  # a relay looks by itself this often, should every hint be lost
PAGE = 1000  # rooms that are looked at at once
TURN = 10  # outputs in a row before other rooms get their turn
MAX_ERROR_CHARS = 500


class LeaseTaken(Exception):
    """Another process of this relay's name has the lease."""


@dataclass(slots=True)
class Duty:
    """What a relay has to do, and with what. Control loop only."""

    store: Store
    name: str
    token: str
    calls: Calls
    lease_s: float
    max_rooms: int
    retry: Backoff
    registered: str = ""  # since when, as Redis says
    held_until_s: float = 0.0  # until when the lease is certainly held, by the monotonic clock
    at_work: int = 0  # rooms
    draining: bool = False
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    async def renew(self) -> None:
        """Take the lease, or renew it.

        Raises:
            LeaseTaken: another process has it.
            RedisError: Redis refuses.
        """
        asked_s = time.monotonic()
        answer = await self.store.relay(self.name, self.token, lease_ms=int(self.lease_s * 1000))
        if answer.word == "taken":
            raise LeaseTaken(answer.detail)
        if self.registered not in ("", answer.detail):
            log.warning("relay.registered_anew", was=self.registered, since=answer.detail)
        self.registered = answer.detail
        self.held_until_s = asked_s + self.lease_s

    async def drain(self) -> None:
        """Hand over nothing more; return once what the function has been given is acknowledged."""
        self.draining = True
        while self.at_work:
            self.idle.clear()
            await self.idle.wait()


class Handover(Service):
    """One relay's process: it hands over while it has the lease, and stands by while another one has it."""

    def __init__(self, duty: Duty) -> None:
        super().__init__(duty.calls.control)
        self._duty = duty

    async def run(self) -> None:
        while True:
            await self._stand_by()
            log.info("relay.joined")
            try:
                await _Term(self._duty).run()
            except* LeaseTaken as taken:
                log.warning("relay.lost", to=str(taken.exceptions[0]))

    async def _stand_by(self) -> None:
        while True:
            try:
                return await self._duty.renew()
            except LeaseTaken:
                await asyncio.sleep(min(STANDBY_S, self._duty.lease_s / RENEWALS_A_LEASE))
            except RedisError as error:
                log.warning("relay.refused", error=error)
                await asyncio.sleep(STANDBY_S)


@dataclass(slots=True)
class _Room:
    """A room that has, or may have, something to hand over: it waits for its turn, is at work, or waits for its next try."""

    again: bool = False  # there may be more since it was asked for
    failing: str = ""  # the output that the function did not take
    tries: int = 0  # of that
    error: type[BaseException] | None = None  # what the last of them raised


class _Term:
    """One time of having the lease."""

    def __init__(self, duty: Duty) -> None:
        self._duty = duty
        self._undelivered = duty.store.keys.undelivered(duty.name)
        self._rooms: dict[str, _Room] = {}
        self._waiting: deque[str] = deque()
        self._at_work: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over = False
        self._look_now = asyncio.Event()

    async def run(self) -> None:
        """Hand over until another process has the lease.

        Raises:
            ExceptionGroup: of LeaseTaken.
        """
        try:
            async with asyncio.TaskGroup() as parts:
                for part in (self._renew, self._look, self._listen, self._fail):
                    parts.create_task(part(), name=f"greenroom-relay{part.__name__}")
        finally:
            self._over = True
            for task in self._at_work:
                task.cancel()

    async def _fail(self) -> None:
        await self._failed

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._duty.lease_s / RENEWALS_A_LEASE)
            try:
                await self._duty.renew()
            except RedisError as error:
                log.warning("relay.refused", error=error)

    # Which rooms. -----------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Find rooms that were undelivered before, and those whose hint was lost."""
        while True:
            self._look_now.clear()
            try:
                async for room in self._found():
                    self._offer(room)
            except RedisError as error:
                log.warning("relay.refused", error=error)
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._look_now.wait()
            except TimeoutError:
                pass

    async def _found(self) -> AsyncIterator[str]:
        cursor = b"0"
        while True:
            cursor, flat = await self._duty.store.pipeline.command("HSCAN", self._undelivered, cursor, "COUNT", PAGE)
            for room in flat[::2]:
                yield text(room)
            if cursor == b"0":
                return

    async def _listen(self) -> None:
        """Hear of each room that had nothing undelivered and now has."""
        failures = 0
        while True:
            try:
                async with open_connection(self._duty.store.redis) as connection:
                    await connection.send_command("SUBSCRIBE", self._undelivered, check_health=False)
                    async for reply in published(connection):
                        failures = 0
                        if reply[0] == b"message":
                            self._offer(text(reply[2]))
                        elif reply[0] == b"subscribe":
                            self._look_now.set()  # what came before this connection heard anything
            except (RedisPyError, OSError, TimeoutError) as error:
                log.debug("relay.deaf", error=str(error))
            await back_off(failures)
            failures += 1

    def _offer(self, room: str) -> None:
        known = self._rooms.get(room)
        if known is not None:
            known.again = True
        else:
            self._rooms[room] = _Room()
            self._enqueue(room)

    def _enqueue(self, room: str) -> None:
        self._waiting.append(room)
        self._go_on()

    def _go_on(self) -> None:
        """Begin with rooms that wait, as long as there are slots: so when one waits, there are none."""
        duty = self._duty
        while self._waiting and duty.at_work < duty.max_rooms and not (duty.draining or self._over):
            duty.at_work += 1
            room = self._waiting.popleft()
            task = asyncio.create_task(self._hand_over(room, self._rooms[room]), name=f"greenroom-relay-{room}")
            self._at_work.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._at_work.discard(task)
        self._duty.at_work -= 1
        self._duty.idle.set()
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)
        self._go_on()

    # One room. --------------------------------------------------------------------------------------

    async def _hand_over(self, name: str, room: _Room) -> None:
        """Hand over what is due, one after the other. Each try is preceded by the question what is due now: by then the output
        may be withheld, or this may have lost its lease.
        """
        done = rejected = ""
        turn = 0
        while True:
            room.again = False
            answer = await self._ask(name, done, rejected)
            done = rejected = ""
            if isinstance(answer, Answer):
                if answer.word == "empty" and not room.again:
                    del self._rooms[name]
                    return
                continue
            if self._duty.draining:
                return
            if turn >= TURN and self._waiting:
                self._enqueue(name)
                return
            turn += 1
            error = await self._call(name, answer)
            if error is None or isinstance(error, Reject):
                done, rejected = answer.id, self._reason(name, answer.id, error)
            else:
                self._try_later(name, room, answer.id, error)
                return

    async def _ask(self, room: str, done: str, rejected: str) -> Due | Answer:
        """What is due now. An answer that a suspended process finds when it wakes is of a time when it had the lease."""
        duty, failures = self._duty, 0
        while True:
            try:
                answer = await duty.store.deliver(duty.name, duty.token, room, done=done, rejected=rejected)
                if time.monotonic() < duty.held_until_s and not (isinstance(answer, Answer) and answer.word == "lost"):
                    return answer
                await duty.renew()  # if it has run out, and nobody has it: else this term is over
            except RedisError as error:
                log.warning("relay.refused", room=room, error=error)
                await back_off(failures)
                failures += 1

    async def _call(self, room: str, due: Due) -> BaseException | None:
        """What the user's function raised, given this output."""
        try:
            output = read_output(due.id.encode(), dict(zip(due.entry[::2], due.entry[1::2], strict=True)))
        except Exception as error:  # no script wrote it, or a newer one did: nothing here will ever read it
            return Reject(f"not an output: {error}")
        return await self._duty.calls(room, output)

    def _try_later(self, name: str, room: _Room, output: str, error: BaseException) -> None:
        room.tries = room.tries + 1 if room.failing == output else 1
        known = room.tries > 1 and room.error is type(error)
        room.failing, room.error = output, type(error)
        delay_s = self._duty.retry.delay_s(room.tries)
        about = {"room": name, "output": output, "tries": room.tries}
        log.warning("relay.failed", **about, retry_in_s=round(delay_s, 3), **told(error, known=known))
        asyncio.get_running_loop().call_later(delay_s, partial(self._enqueue, name))

    def _reason(self, room: str, output: str, error: Reject | None) -> str:
        """Why this output is passed over; nothing if it is not."""
        if error is None:
            return ""
        reason = (words_of(error) or "rejected")[:MAX_ERROR_CHARS]
        log.warning("relay.rejected", room=room, output=output)  # the event in Redis says why
        return reason
