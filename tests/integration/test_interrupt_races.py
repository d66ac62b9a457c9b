"""Interrupts at the moment when what the handler awaits completes, and what an interrupt leaves behind for the next message."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from greenroom import Agent, AsyncClient, Client, Cycle, Kind, Message, Mode, Outcome, Output, Receipt
from integration.agents import WAIT_S, Director, wait_for
from integration.conftest import Running

RACES, ROOMS, SEED = 1000, 8, 4
LIMIT_S = 240
SHORT = timedelta(milliseconds=50)

# The ways to await something, each of which meets a cancellation that comes with its result in its own manner. ---------------


async def plainly(awaited: asyncio.Future[str], cycle: Cycle) -> str:
    return await awaited


async def with_wait_for(awaited: asyncio.Future[str], cycle: Cycle) -> str:
    return await asyncio.wait_for(awaited, WAIT_S)  # on Python 3.11 it may lose the cancellation: Redis does not


async def with_a_timeout(awaited: asyncio.Future[str], cycle: Cycle) -> str:
    async with asyncio.timeout(WAIT_S):
        return await awaited


async def in_a_task(awaited: asyncio.Future[str], cycle: Cycle) -> str:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(plainly(awaited, cycle))
    return task.result()


async def shielded(awaited: asyncio.Future[str], cycle: Cycle) -> str:
    return await asyncio.shield(awaited)


async def in_a_step(awaited: asyncio.Future[str], cycle: Cycle) -> str:
    reply: str = await cycle.step("wait", plainly, awaited, cycle)
    return reply


async def stubbornly(awaited: asyncio.Future[str], cycle: Cycle) -> str:
    while not awaited.done():
        try:
            await asyncio.wait([awaited])
        except asyncio.CancelledError:
            continue
    return awaited.result()


WAYS: list[Callable[[asyncio.Future[str], Cycle], Awaitable[str]]] = [
    plainly,
    with_wait_for,
    with_a_timeout,
    in_a_task,
    shielded,
    in_a_step,
    stubbornly,
]


@dataclass
class Race:
    """One message that is interrupted as it completes, and the next one of its room."""

    room: str
    number: int
    jitter: random.Random
    message: int = 0
    next: int = 0
    receipt: Receipt | None = None

    @property
    def in_time(self) -> bool:
        """Whether the receipt says that the interrupt ended this message's cycle."""
        receipt = self.receipt
        return receipt is not None and (receipt.outcome, receipt.message) == (Outcome.APPLIED, self.message)

    @property
    def by_message(self) -> bool:
        """The interrupt names its message: if it comes late it is to act on nothing."""
        return self.number % 3 == 0

    @property
    def next_waits(self) -> bool:
        """The next message is in the queue when the interrupt comes: if that comes late it may act on it, and say so."""
        return self.number % 3 != 2


@dataclass
class Track:
    """Where handlers and the test meet. ``lead_s`` is how long before the interrupt what is awaited completes: it follows the
    outcomes, so that on any machine about half of the interrupts come in time.
    """

    loop: asyncio.AbstractEventLoop
    begun: dict[str, asyncio.Future[tuple[asyncio.AbstractEventLoop, asyncio.Future[str]]]] = field(default_factory=dict)
    runs: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # by message: the attempt of each run
    cancelled: set[int] = field(default_factory=set)
    lead_s: float = 0.0

    def follow(self, *, in_time: bool) -> None:
        self.lead_s += 0.00005 if in_time else -0.00005


def racing_agent(track: Track) -> type[Agent]:
    class Racing(Agent):
        abort_timeout = SHORT

        async def respond(self, message: Message, cycle: Cycle) -> Any:
            track.runs[message.id].append(message.attempt)
            try:
                return await (self._race if message.body["race"] else self._next)(message, cycle)
            except asyncio.CancelledError:
                track.cancelled.add(message.id)
                raise

        async def _race(self, message: Message, cycle: Cycle) -> str:
            loop = asyncio.get_running_loop()
            awaited: asyncio.Future[str] = loop.create_future()
            begun = track.begun.pop(message.room)
            track.loop.call_soon_threadsafe(begun.set_result, (loop, awaited))
            way = WAYS[int(message.body["number"]) % len(WAYS)]
            return await way(awaited, cycle)

        async def _next(self, message: Message, cycle: Cycle) -> str:
            for _ in range(3):
                await asyncio.sleep(0)
            await cycle.send("untouched")
            return "next"

    return Racing


async def run_race(race: Race, track: Track, client: AsyncClient) -> None:
    begun = track.begun[race.room] = track.loop.create_future()
    race.message = await client.send(race.room, {"race": True, "number": race.number})
    if race.next_waits:
        race.next = await client.send(race.room, {"race": False})
    loop, awaited = await begun
    ahead_s = track.lead_s + race.jitter.uniform(-0.0005, 0.0005)

    def complete() -> None:
        if not awaited.done():
            awaited.set_result("completed")

    def complete_soon() -> None:
        loop.call_soon_threadsafe(complete)

    if ahead_s <= 0:
        track.loop.call_later(-ahead_s, complete_soon)
    else:
        complete_soon()
        passed = track.loop.create_future()
        track.loop.call_later(ahead_s, passed.set_result, None)
        await passed
    [race.receipt] = await client.interrupt(race.room, message=race.message if race.by_message else None)
    track.follow(in_time=race.in_time)
    if not race.next_waits:
        race.next = await client.send(race.room, {"race": False})
    assert await client.ask(race.room, {"race": False}) == "next"


def story(outputs: list[Output], message: int) -> list[tuple[Kind, Any]]:
    return [(output.kind, output.mode or output.body) for output in outputs if output.message == message]


def check(race: Race, track: Track, outputs: list[Output]) -> None:
    """What the receipt says is what has happened, and nothing else has."""
    assert race.receipt is not None
    outcome, hit = race.receipt.outcome, race.receipt.message
    first, then = story(outputs, race.message), story(outputs, race.next)
    replied, untouched = [(Kind.REPLY, "completed")], [(Kind.CHUNK, "untouched"), (Kind.REPLY, "next")]
    interrupted = (Kind.ABORTED, Mode.INTERRUPT)
    if race.in_time:
        assert first == [interrupted]
    else:
        assert first == replied
        assert race.message not in track.cancelled
    if (outcome, hit) == (Outcome.APPLIED, race.next):
        assert race.next_waits
        assert not race.by_message
        assert then[-1] == interrupted
        assert then[:-1] in ([], untouched[:1])
    else:
        assert then == untouched
        assert track.runs[race.next] == [1]
        assert race.next not in track.cancelled
    assert outcome in (Outcome.APPLIED, Outcome.IDLE)
    assert track.runs[race.message] == [1], "interrupted or answered, it is not run again"
    assert len(track.runs[race.next]) <= 1


@pytest.mark.timeout(LIMIT_S)
def test_of_1000_interrupts_at_the_moment_of_completion_none_is_lost_and_none_hits_the_next_message(
    running: Running, redis_url: str, agent: str
) -> None:
    """rows 1, 6 and 8: each receipt says what has happened, to its message and to the next one"""
    jitter = random.Random(SEED)
    races = [Race(f"room-{number % ROOMS}", number, random.Random(jitter.random())) for number in range(RACES)]

    async def test() -> Track:
        track = Track(asyncio.get_running_loop())
        running(racing_agent(track))

        async def run_room(room: str) -> None:
            for race in races:
                if race.room == room:
                    await run_race(race, track, client)

        async with AsyncClient(agent, redis=redis_url) as client, asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            for number in range(ROOMS):
                group.create_task(run_room(f"room-{number}"))
        return track

    track = asyncio.run(test())
    with Client(agent, redis=redis_url) as client:
        outputs = {f"room-{number}": list(client.outputs(f"room-{number}")) for number in range(ROOMS)}
    for race in races:
        check(race, track, outputs[race.room])
    assert len(track.runs) == 3 * RACES - sum(race.next not in track.runs for race in races)
    in_time = sum(race.in_time for race in races)
    assert RACES // 20 <= in_time <= RACES - RACES // 20, f"no race: {in_time} of {RACES} came in time"


# What an abort leaves behind. ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threaded", [False, True], ids=["coroutine", "function"])
@pytest.mark.parametrize("hook", [False, True], ids=["no hook", "hook"])
def test_the_time_that_an_aborted_cycle_has_to_end_is_none_of_the_next_messages_concern(
    threaded: bool, hook: bool, running: Running, director: Director, client: Client
) -> None:
    """rows 1 and 27: the next message runs for longer than abort_timeout and hook_timeout"""
    options: dict[str, Any] = {"on_interrupt": lambda *_: None} if hook else {}
    system = running(director.agent(threaded=threaded, abort_timeout=SHORT, hook_timeout=SHORT, max_attempts=1, **options))
    client.send("1", "wait")
    run = director.run("1")
    client.send("1", "wait as well")
    client.interrupt("1")
    run.wait_ended()
    following = director.run("1")
    passed = threading.Event()
    system._control.post(system._control.loop.call_later, 2 * SHORT.total_seconds(), passed.set)
    wait_for(passed, "the timers of the interrupted cycle are over")
    following.send("untouched")
    assert not following.cycle.cancelled
    following.finish("answered")
    assert client.ask("1", "last") == "last"
    assert [(output.kind, output.body) for output in client.outputs("1") if output.message == following.message.id] == [
        (Kind.CHUNK, "untouched"),
        (Kind.REPLY, "answered"),
    ]
