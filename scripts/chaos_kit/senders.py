"""The load: who sends and asks, who discards what waits, and who puts dead letters back."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from greenroom import (
    AskTimeout,
    AsyncClient,
    GreenroomError,
    MessageProcessing,
    NoReply,
    NotFound,
    RedisUnavailable,
)

from .agent import Plan
from .faults import Faults
from .ledger import Ledger, Sent

MOST_OPEN = 400  # messages that wait before senders wait, too
BURST, BURSTS = 15, 0.03  # messages for one room at once, and how often
ASK_S = 5.0
AGAIN_S = 0.1

T = TypeVar("T")


async def repeat(ledger: Ledger, call: Callable[[], Awaitable[T]]) -> T:
    """Call until Redis answers: the call must carry a key or an id, so that a repetition is recognised."""
    while True:
        try:
            return await call()
        except RedisUnavailable:
            ledger.did("calls repeated after an outage")
            await asyncio.sleep(AGAIN_S)


def make_plan(n: int, dice: random.Random) -> Plan:
    """What a message is to do: 10 to 200 ms, and one in seven goes wrong."""
    chunks = dice.randint(1, 6)
    kind = dice.choices(["well", "fails", "dies", "collapses", "rejects", "exits"], [860, 80, 5, 25, 10, 3])[0]
    return Plan(
        n=n,
        chunks=chunks,
        pause_ms=dice.randint(10, 200) // chunks,
        hangs=0,
        fails={"fails": dice.randint(1, 2), "dies": 99}.get(kind, 0),
        collapses=int(kind == "collapses"),
        exits=int(kind == "exits"),
        rejects=kind == "rejects",
        shields=dice.random() < 0.15,
        hostile=dice.random() < 0.08,
    )


class Senders:
    """Sends to ``rooms`` through two clients: a patient one, and one whose calls fail soon in an outage."""

    def __init__(self, ledger: Ledger, hasty: AsyncClient, patient: AsyncClient, rooms: list[str], faults: Faults) -> None:
        self._ledger = ledger
        self._hasty = hasty
        self._patient = patient
        self._rooms = rooms
        self._pause = faults.pause
        self._hot = faults.hot
        self._numbers = itertools.count(1)

    async def send(self, name: str, dice: random.Random, rate: float) -> None:
        """Send ``rate`` messages a second until the run is over."""
        while await self._pause(dice.expovariate(rate)):
            if len(self._ledger.open) >= MOST_OPEN:
                continue
            room = dice.choice(sorted(self._hot) if self._hot and dice.random() < 0.5 else self._rooms)
            for _ in range(BURST if dice.random() < BURSTS else 1):
                await self._send(room, name, dice)

    async def _send(self, room: str, name: str, dice: random.Random) -> None:
        number = next(self._numbers)
        plan, key, client = make_plan(number, dice), f"{name}-{number}", dice.choice([self._hasty, self._patient])
        message = await repeat(self._ledger, partial(client.send, room, plan, key=key))
        self._ledger.add_sent(Sent(room, message, key, name, doomed=plan["rejects"]))

    async def ask(self, name: str, dice: random.Random) -> None:
        """Ask, and see that the reply is that of the message."""
        while await self._pause(dice.uniform(0.1, 1.0)):
            if len(self._ledger.open) >= MOST_OPEN:
                continue
            number = next(self._numbers)
            room, plan, key = dice.choice(self._rooms), make_plan(number, dice), f"{name}-{number}"
            how = await self._ask(room, plan, key)
            self._ledger.did("asks", how)
            # The same key again answers the id, or sends it now if the asking did not get that far.
            message = await repeat(self._ledger, partial(self._hasty.send, room, plan, key=key))
            self._ledger.add_sent(Sent(room, message, key, name, doomed=plan["rejects"]))

    async def _ask(self, room: str, plan: Plan, key: str) -> str:
        try:
            reply = await self._hasty.ask(room, plan, timeout=ASK_S, key=key)
        except (AskTimeout, RedisUnavailable, NoReply) as error:
            return type(error).__name__
        if reply["n"] != plan["n"]:
            self._ledger.complain(f"room {room}: asked {plan['n']} (key {key}), and was answered {reply}")
        return "answered"

    async def discard(self, dice: random.Random) -> None:
        """Drop messages on purpose."""
        while await self._pause(dice.uniform(0.2, 1.5)):
            if not self._ledger.open:
                continue
            message = dice.choice(sorted(self._ledger.open))
            try:
                await self._patient.discard(self._ledger.room_of(message), message)
            except (MessageProcessing, NotFound):
                continue
            self._ledger.discarded.add(message)
            self._ledger.did("discards", str(message))

    async def requeue(self, dice: random.Random) -> None:
        """Put half of the dead letters back."""
        looked_at = set[str]()
        while await self._pause(dice.uniform(0.5, 2.0)):
            letters = [letter async for letter in self._patient.dead_letters() if letter.id not in looked_at]
            for letter in letters:
                looked_at.add(letter.id)
                if dice.random() < 0.5:
                    room, message = await self._patient.requeue(letter.id)
                    self._ledger.requeued += 1
                    self._ledger.add_sent(Sent(room, message, "", "", doomed=letter.body["rejects"]))
                    self._ledger.did("requeues", f"{letter.message} as {message}")

    async def guard(self, work: Awaitable[None]) -> None:
        """Let an error that nobody expects be a violation instead of the end of the run."""
        try:
            await work
        except GreenroomError as error:
            self._ledger.complain(f"a call raised {type(error).__name__}: {error}")
