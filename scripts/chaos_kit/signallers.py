"""Who signals: all modes, on rooms and everywhere, some of them twice, some by hand; nearly every hold is undone."""

from __future__ import annotations

import contextlib
import itertools
import random

from demo.record import place
from redis.asyncio import Redis
from redis.exceptions import RedisError

from greenroom import AsyncClient, Conflict, Mode, Receipt
from greenroom.protocol.keys import Keys
from greenroom.protocol.records import text

from .faults import Pause
from .fleet import AGENT
from .followers import until_answered
from .ledger import Ledger, Place
from .senders import repeat

MODES = {Mode.INTERRUPT: 5, Mode.STOP: 4, Mode.PAUSE: 2, Mode.PLAY: 1}
LONGEST_HOLD_S = 1.5
AT_ONCE = 20  # rooms that are played by one signal


class Signallers:
    """Signals ``rooms``, and records each receipt with where the outbox was."""

    def __init__(
        self, ledger: Ledger, hasty: AsyncClient, patient: AsyncClient, redis: Redis, rooms: list[str], pause: Pause
    ) -> None:
        self._ledger = ledger
        self._hasty = hasty
        self._patient = patient
        self._redis = redis
        self._rooms = rooms
        self._pause = pause
        self._keys = Keys(AGENT)
        self._cids = itertools.count(1)

    async def signal(self, name: str, dice: random.Random) -> None:
        """Signal until the run is over."""
        while await self._pause(dice.expovariate(2.0)):
            mode = dice.choices(list(MODES), list(MODES.values()))[0]
            rooms = self._targets(dice)
            if dice.random() < 0.1 and len(rooms) == 1:
                await self._by_hand(mode, rooms[0])
            else:
                await self._send(f"{name}-{next(self._cids)}", mode, rooms, dice)
            if mode in (Mode.STOP, Mode.PAUSE) and (not rooms or dice.random() < 0.9):
                await self._pause(dice.uniform(0.0, LONGEST_HOLD_S))
                await self._send(f"{name}-{next(self._cids)}", Mode.PLAY, rooms, dice)

    async def play_all(self) -> None:
        """Undo every hold."""
        await self._send(f"last-{next(self._cids)}", Mode.PLAY, [], random.Random(0))
        await self.play(self._rooms)

    async def play(self, rooms: list[str]) -> None:
        """Undo the holds of these rooms."""
        for first in range(0, len(rooms), AT_ONCE):
            await self._send(f"last-{next(self._cids)}", Mode.PLAY, rooms[first : first + AT_ONCE], random.Random(0))

    def _targets(self, dice: random.Random) -> list[str]:
        """A room, some rooms, or none: everywhere."""
        size = dice.choices([1, dice.randint(2, 6), 0], [14, 4, 1])[0]
        busy = sorted({self._ledger.room_of(message) for message in self._ledger.open})
        among = busy if len(busy) >= size and dice.random() < 0.7 else self._rooms
        return dice.sample(among, size)

    async def _send(self, cid: str, mode: Mode, rooms: list[str], dice: random.Random) -> None:
        message = None
        if mode is Mode.INTERRUPT and len(rooms) == 1 and dice.random() < 0.3:
            known = [sent for sent in sorted(self._ledger.open) if self._ledger.room_of(sent) == rooms[0]]
            message = known[0] if known else None
        receipts = await self._call(self._hasty, cid, mode, rooms, message)
        positions = await self._positions(rooms or self._rooms)
        self._ledger.add_signal(cid, mode, rooms, receipts, positions)
        self._ledger.did(f"{mode}s {'everywhere' if not rooms else 'of a room' if len(rooms) == 1 else 'of several rooms'}")
        if dice.random() < 0.2:
            again = await self._call(self._patient, cid, mode, rooms, message)
            self._ledger.did("signals repeated")
            if again != receipts:
                self._ledger.complain(f"signal {cid}, repeated, was answered {again} and not as before {receipts}")
        if dice.random() < 0.05:
            await self._contradict(cid, mode, rooms)

    async def _contradict(self, cid: str, mode: Mode, rooms: list[str]) -> None:
        other = Mode.PLAY if mode is not Mode.PLAY else Mode.STOP
        try:
            await self._call(self._patient, cid, other, rooms, None)
        except Conflict:
            self._ledger.did("signals contradicted")
        else:
            self._ledger.complain(f"signal {cid} was a {mode}, and as a {other} it was no conflict")

    async def _call(self, client: AsyncClient, cid: str, mode: Mode, rooms: list[str], message: int | None) -> list[Receipt]:
        everywhere = not rooms
        if mode is Mode.INTERRUPT:
            return await repeat(self._ledger, lambda: client.interrupt(*rooms, everywhere=everywhere, message=message, cid=cid))
        call = {Mode.STOP: client.stop, Mode.PAUSE: client.pause, Mode.PLAY: client.play}[mode]
        return await repeat(self._ledger, lambda: call(*rooms, everywhere=everywhere, cid=cid))

    async def _by_hand(self, mode: Mode, room: str) -> None:
        """As an operator does with redis-cli. Whether it arrived is seen in the stream."""
        with contextlib.suppress(RedisError, OSError):
            await self._redis.xadd(self._keys.control, {"mode": mode.value, "room": room, "by": "hand"})
            self._ledger.did("signals by hand")

    async def _positions(self, rooms: list[str]) -> dict[str, Place]:
        async def ask() -> list[list[tuple[bytes, dict[bytes, bytes]]]]:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for room in rooms:
                    pipeline.xrevrange(self._keys.outbox(room), count=1)
                return await pipeline.execute()

        lasts = await until_answered(ask)
        return {room: place(text(last[0][0])) if last else (0, 0) for room, last in zip(rooms, lasts, strict=True)}
