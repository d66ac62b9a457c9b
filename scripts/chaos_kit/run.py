"""One run: start everything, let it go wrong, put it right, wait until the queues are empty, and settle."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from demo.record import place
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from greenroom import AsyncClient
from greenroom.protocol.keys import Keys
from greenroom.protocol.records import text
from greenroom.protocol.server import RedisServer

from . import staged
from .account import Account, settle
from .faults import Faults
from .fleet import AGENT, Fleet
from .followers import follow_control, follow_events, follow_room, until_answered
from .ledger import Ledger, Place
from .recovery import unrecovered
from .senders import Senders
from .signallers import Signallers
from .snapshot import take_snapshot
from .staged import Staged

ROOMS, WORKERS = 40, 3
SENDERS, RATE, ASKERS, SIGNALLERS = 6, 8.0, 2, 4  # RATE: messages a second, each sender
HASTY_S, PATIENT_S = 1.0, 600.0
PROGRESS_S = 10.0
START_S, DRAIN_S, CATCH_UP_S = 60.0, 120.0, 30.0  # for the workers; for the queues to run empty; for followers at the end
LOOK_S = 1.0  # between two looks at what keeps the queues from running empty


class Run:
    """One run in ``folder``, for ``seconds``."""

    fleet: Fleet
    redis: Redis
    staged: Staged

    def __init__(self, folder: Path, seed: int, seconds: float) -> None:
        self.folder = folder
        self.ledger = Ledger(folder / "ledger.jsonl")
        # `always`: what Redis has confirmed is in its file, so that the account may demand all of it after a kill -9.
        self.server = RedisServer(folder / "redis", extra=["--appendfsync", "always"])
        self.rooms = [f"r{number:02}" for number in range(1, ROOMS + 1)]
        self._seed = seed
        self._seconds = seconds
        self._keys = Keys(AGENT)
        self._over = asyncio.Event()
        self._began = time.monotonic()

    def say(self, words: str) -> None:
        print(f"[{time.monotonic() - self._began:6.1f} s] {words}", flush=True)

    async def run(self) -> Account:
        """Do all of it. However it ends, no process of it is left."""
        async with AsyncExitStack() as stack:
            stack.callback(self.ledger.close)
            stack.callback(self.server.stop)
            await asyncio.to_thread(self.server.start)
            url = self.server.url
            hasty, patient, reader = [
                await stack.enter_async_context(AsyncClient(AGENT, redis=url, timeout=timeout, by="chaos"))
                for timeout in (HASTY_S, PATIENT_S, PATIENT_S)
            ]
            # No socket_timeout: redis-py keeps it by asyncio.wait_for, which loses a cancellation now and then on Python 3.11.
            retry = Retry(NoBackoff(), 0)
            plain = Redis.from_url(url, protocol=2, retry=retry, socket_connect_timeout=1.0, socket_timeout=None)
            self.redis = await stack.enter_async_context(plain)
            self.fleet = Fleet(self.ledger, url, self.folder, WORKERS)
            stack.callback(self.fleet.kill_now)
            await self._start_background(stack, reader)
            self.say(f"Redis (process {self.server.pid}) is at {url}; files are in {self.folder}")
            for worker in self.fleet.places:
                async with worker.lock:
                    await worker.start()
            faults = Faults(self.ledger, self.fleet, self.server, self.redis, self._seed, self._over)
            signallers = Signallers(self.ledger, hasty, patient, self.redis, self.rooms, faults.pause)
            await self._torment(faults, Senders(self.ledger, hasty, patient, self.rooms, faults), signallers)
            await self._put_right(signallers)
            await self._drain(signallers)
            self.say(f"{staged.ROOMS:,} rooms of another agent hang; their worker is killed and started again.")
            self.staged = await staged.resume_in_stages(url, self.folder / "staged", self.redis)
            await self.fleet.stop()
            return await self._settle()
        raise AssertionError("not reached: nothing on the stack swallows an exception")

    async def _start_background(self, stack: AsyncExitStack, reader: AsyncClient) -> None:
        """What goes on until the end: the followers and the progress."""
        work: list[Coroutine[Any, Any, None]] = [follow_room(self.ledger, reader, room) for room in self.rooms]
        work += [follow_control(self.ledger, self.redis, self._keys), follow_events(self.ledger, self.redis, self._keys)]
        tasks = [asyncio.create_task(one) for one in (*work, self._show_progress())]

        async def end() -> None:
            for task in tasks:
                task.cancel()
            for error in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(error, Exception):
                    raise error

        stack.push_async_callback(end)

    # The steps. -----------------------------------------------------------------------------------

    async def _torment(self, faults: Faults, senders: Senders, signallers: Signallers) -> None:
        def dice(who: str) -> random.Random:
            return random.Random(f"{self._seed} {who}")

        async with asyncio.TaskGroup() as group:
            group.create_task(self._end_after_a_while())
            group.create_task(faults.run())
            work = [senders.send(f"sender-{n}", dice(f"sender {n}"), RATE) for n in range(SENDERS)]
            work += [senders.ask(f"asker-{n}", dice(f"asker {n}")) for n in range(ASKERS)]
            work += [signallers.signal(f"signal-{n}", dice(f"signaller {n}")) for n in range(SIGNALLERS)]
            work += [senders.discard(dice("discard")), senders.requeue(dice("requeue"))]
            for one in work:
                group.create_task(senders.guard(one))

    async def _end_after_a_while(self) -> None:
        await asyncio.sleep(self._seconds)
        self._over.set()

    async def _put_right(self, signallers: Signallers) -> None:
        self.say("The chaos is over: three workers run on, and everything plays.")
        for worker in self.fleet.places:
            async with worker.lock:
                worker.resume()
                if worker.process is None or not worker.process.runs:
                    await worker.start()
        await self.ledger.wait_for(self._all_started, START_S)
        await self.ledger.wait_for(lambda: not self._unapplied(), CATCH_UP_S)  # a stop by hand must not come after the play
        await signallers.play_all()

    def _all_started(self) -> bool:
        running = [worker.process for worker in self.fleet.places if worker.process is not None]
        return all(process.started and process.runs for process in running)

    def _unapplied(self) -> set[str]:
        return self.ledger.by_hand - {entry.cid for entry in self.ledger.control}

    async def _drain(self, signallers: Signallers) -> None:
        self.say(f"{len(self.ledger.open)} messages are open; they have {DRAIN_S:.0f} s.")
        end = time.monotonic() + DRAIN_S
        while not await self.ledger.wait_for(lambda: not self.ledger.open, LOOK_S):
            rooms = sorted({self.ledger.room_of(message) for message in self.ledger.open})
            rows = [await until_answered(partial(self.redis.hgetall, self._keys.room(room))) for room in rooms]
            if time.monotonic() >= end:
                self._complain_of(dict(zip(rooms, rows, strict=True)))
                return
            # A busy room may fail so often that its supervisor stops it; what then is to be done, is to play it.
            stopped = [room for room, row in zip(rooms, rows, strict=True) if row.get(b"mode_by") == b"supervisor"]
            await signallers.play(stopped)
            for _ in stopped:
                self.ledger.did("plays of what its supervisor stopped")

    def _complain_of(self, rows: dict[str, dict[bytes, bytes]]) -> None:
        for room, row in rows.items():
            words = " ".join(f"{text(name)}={text(value)}" for name, value in row.items())
            self.ledger.complain(f"room {room} did not run empty within {DRAIN_S:.0f} s: {words}")

    async def _settle(self) -> Account:
        snapshot = await take_snapshot(self.redis, self._keys, self.rooms, self._catch_up)
        await self._catch_up_with_control()
        account = settle(self.ledger, snapshot)
        account.wrong += unrecovered(self.ledger.deaths, self.ledger)
        account.wrong += self.staged.wrong
        return account

    # Looking. -------------------------------------------------------------------------------------

    async def _catch_up(self, room: str, last: Place) -> None:
        await self.ledger.wait_for(lambda: self.ledger.last(room) >= last, CATCH_UP_S)

    async def _catch_up_with_control(self) -> None:
        last_control: Any = await self.redis.xrevrange(self._keys.control, count=1)
        if last_control:
            end = place(text(last_control[0][0]))
            await self.ledger.wait_for(lambda: bool(self.ledger.control) and self.ledger.control[-1].place >= end, CATCH_UP_S)

    async def _show_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            self.ledger.flush()
            ledger, done = self.ledger, self.ledger.done
            workers = " ".join(self._worker_words())
            faults = ", ".join(
                f"{done[what]} {what}" for what in ("kills", "suspensions", "drains", "Redis kills", "connection cuts")
            )
            self.say(
                f"sent {len(ledger.sent)}, ended {len(ledger.ended)}, open {len(ledger.open)}; {len(ledger.signals)} signals; "
                f"{faults}; workers {workers}"
            )

    def _worker_words(self) -> list[str]:
        words = []
        for worker in self.fleet.places:
            process = worker.process
            down = process is None or not process.runs
            words.append(f"{worker.name}{'(down)' if down else '(suspended)' if process and process.suspended else ''}")
        return words

    def end_children(self) -> None:
        """End every process of this run at once."""
        if hasattr(self, "fleet"):
            self.fleet.kill_now()
        with contextlib.suppress(Exception):
            self.server.stop()
