"""Rooms, clients and signals end to end: whatever is done in whatever order, at the end every message has ended once.

Nothing is simulated here: a real Redis, a real system with its threads. A seed decides the actions and how often the event loop
turns between them; what they meet depends on the machine, too. ``test_contract.py`` explores the contract over the scripts
alone, and far deeper.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import redis as redis_py

from greenroom import ActorSystem, Agent, AsyncClient, Backoff, Cycle, Kind, Message, Mode, Outcome, Output, Receipt
from greenroom.protocol.server import RedisServer

from helpers import unique

ROOMS = ["a", "b", "c"]
LIMIT_S = 60.0
EXAMPLES = 40


class Counting(Agent):
    """Says what it does in two chunks, counts its commits, and fails now and then."""

    max_attempts = 2
    retry = Backoff(first=timedelta(0), most=timedelta(0))
    abort_timeout = timedelta(seconds=1)

    async def respond(self, message: Message, cycle: Cycle) -> Any:
        cycle.state["commits"] = cycle.state.get("commits", 0) + 1
        await cycle.send("first")
        for _ in range(message.body["turns"]):
            await asyncio.sleep(0)
        if message.body["fails"] >= message.attempt:
            raise RuntimeError("told to fail")
        await cycle.send("second")
        return cycle.state["commits"]


@dataclass
class Aborted:
    """A cycle that a signal has aborted, and what its room had sent when the signal's call had returned."""

    room: str
    message: int
    upto: list[Output]

    @property
    def tickets(self) -> set[int]:
        """The tickets of the message that had sent something: all of them have ended."""
        return {output.ticket for output in self.upto if output.message == self.message}


@dataclass
class World:
    """One example: a system and a client on an agent of their own."""

    url: str
    redis: redis_py.Redis
    agent: str = field(default_factory=lambda: unique("end-to-end"))
    sent: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    aborted: list[Aborted] = field(default_factory=list)
    interrupted: set[int] = field(default_factory=set)

    async def start(self) -> None:
        self.client = AsyncClient(self.agent, redis=self.url)
        await self.start_system()

    async def start_system(self) -> None:
        self.system = ActorSystem(Counting, agent=self.agent, redis=self.url, name="worker", lease=timedelta(seconds=30))
        await asyncio.to_thread(self.system.start)

    async def end(self) -> None:
        await asyncio.to_thread(self.system.stop, timedelta(0))
        await self.client.close()

    async def outputs(self, room: str) -> list[Output]:
        return [output async for output in self.client.outputs(room)]

    # Actions. -----------------------------------------------------------------------------------------

    async def send(self, room: str, turns: int, fails: int) -> None:
        self.sent[room].append(await self.client.send(room, {"turns": turns, "fails": fails}))

    async def signal(self, verb: str, room: str) -> None:
        (receipt,) = receipts = await getattr(self.client, verb)(room)
        self.note(verb, receipts)
        if verb in ("stop", "interrupt") and receipt.outcome is Outcome.APPLIED and receipt.message is not None:
            self.aborted.append(Aborted(room, receipt.message, await self.outputs(room)))

    async def everywhere(self, verb: str) -> None:
        self.note(verb, await getattr(self.client, verb)(everywhere=True))

    def note(self, verb: str, receipts: list[Receipt]) -> None:
        if verb == "interrupt":
            hit = [receipt.message for receipt in receipts if receipt.outcome is Outcome.APPLIED]
            self.interrupted.update(message for message in hit if message is not None)

    async def turn(self, times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(0)

    async def kill_connections(self) -> None:
        for kind in ("normal", "pubsub"):
            await asyncio.to_thread(self.redis.client_kill_filter, _type=kind, skipme=True)

    async def restart(self, grace_s: float) -> None:
        await asyncio.to_thread(self.system.stop, timedelta(seconds=grace_s))
        await self.start_system()

    # The end. -----------------------------------------------------------------------------------------

    async def drain(self) -> None:
        await self.client.play(everywhere=True)
        await self.client.play(*ROOMS)
        for room in ROOMS:
            if self.sent[room]:
                await self.wait_ended(room)

    async def wait_ended(self, room: str) -> None:
        missing = set(self.sent[room])
        async for output in self.client.outputs(room, follow=True):
            if is_end(output):
                missing.discard(output.message)
                if not missing:
                    return

    async def check(self) -> None:
        for room in ROOMS:
            outputs = await self.outputs(room)
            ends = [output.message for output in outputs if is_end(output)]
            assert ends == self.sent[room], "each message ended once, in order"
            consumed = {output.message for output in outputs if output.mode == Mode.INTERRUPT}
            assert consumed == self.interrupted & set(self.sent[room]), "interrupted messages are consumed, and no others"
            tickets = [output.ticket for output in outputs if output.kind is not Kind.DEAD]
            assert tickets == sorted(tickets), "cycles of one room do not overlap"
            replies = [output.body for output in outputs if output.kind is Kind.REPLY]
            assert replies == list(range(1, len(replies) + 1)), "the state counts the commits"
            for ticket, seqs in numbers(outputs).items():
                assert seqs == list(range(1, len(seqs) + 1)), f"the outputs of ticket {ticket} are numbered from 1"
            status = await self.client.status(room)
            assert (status.phase, status.waiting, status.hold) == (None, 0, None)
        for aborted in self.aborted:
            await self.check_aborted(aborted)

    async def check_aborted(self, aborted: Aborted) -> None:
        """After the abort had answered, its cycle sent nothing but the entry that says how it ended."""
        outputs = await self.outputs(aborted.room)
        later = [output for output in outputs[len(aborted.upto) :] if output.seq]  # 0: about the message, not of a cycle
        late = [output for output in later if output.ticket in aborted.tickets]
        assert [output.kind for output in late] in ([], [Kind.ABORTED]), f"of cycles that had been aborted: {late}"


def is_end(output: Output) -> bool:
    interrupted = output.kind is Kind.ABORTED and output.mode == Mode.INTERRUPT
    return interrupted or output.kind in (Kind.REPLY, Kind.DEAD, Kind.DISCARDED)


def numbers(outputs: list[Output]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for output in outputs:
        if output.kind is not Kind.DEAD and output.seq:
            found[output.ticket].append(output.seq)
    return found


Action = tuple[Any, ...]


def script(seed: int) -> list[Action]:
    """What is done in one example: some seconds of a busy afternoon."""
    rolls = random.Random(seed)
    signals = rolls.choice([("interrupt",), ("stop", "play"), ("interrupt", "stop", "pause", "play", "play")])

    def one() -> Action:
        room = rolls.choice(ROOMS)
        acts: dict[str, Callable[[], Action]] = {
            "send": lambda: ("send", room, rolls.choice([0, 20, 500, 3000]), rolls.choice([0, 0, 0, 1, 2])),
            "signal": lambda: ("signal", rolls.choice(signals), room),
            "turn": lambda: ("turn", rolls.choice([0, 1, 5, 20, 500])),
            "everywhere": lambda: ("everywhere", rolls.choice(["interrupt", "stop", "pause", "play", "play", "play"])),
            "kill_connections": lambda: ("kill_connections",),
            "restart": lambda: ("restart", rolls.choice([0.0, 10.0])),
        }
        return acts[rolls.choices(list(acts), [30, 30, 30, 4, 2, 2])[0]]()

    return [one() for _ in range(rolls.randrange(20, 70))]


async def example(actions: list[Action], url: str, done: Counter[str]) -> None:
    with redis_py.Redis.from_url(url, decode_responses=True) as redis:
        world = World(url, redis)
        await world.start()
        try:
            async with asyncio.timeout(LIMIT_S):
                for name, *arguments in actions:
                    await getattr(world, name)(*arguments)
                    done[name] += 1
                await world.drain()
                await world.check()
                done["aborted after an output"] += sum(1 for aborted in world.aborted if aborted.tickets)
        finally:
            await world.end()


def test_whatever_is_done_every_message_ends_once_and_in_order(redis_server: RedisServer) -> None:
    """row 1, row 2, row 4, row 6, row 9, row 20, row 24, row 40"""
    done = Counter[str]()
    for seed in range(EXAMPLES):
        try:
            asyncio.run(example(script(seed), redis_server.url, done))
        except BaseException as error:
            error.add_note(f"seed {seed}: {script(seed)}")
            raise
    assert min(done.values()) >= 20, f"too little of something was done: {done}"
    assert set(done) == {"send", "signal", "turn", "everywhere", "kill_connections", "restart", "aborted after an output"}
