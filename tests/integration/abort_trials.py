"""Rooms that are aborted at one point each, and what reaches Redis from them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from greenroom import Client, Output, Phase, RoomStatus
from greenroom.actors.threads import in_thread
from greenroom.protocol import codec
from greenroom.protocol.inspection import statuses
from greenroom.protocol.records import text
from greenroom.protocol.store import Answer, Grant
from greenroom.supervisors.system import ActorSystem
from integration.abort_signals import note, read_journal, signal
from integration.agents import eventually

EFFECTS = ("emit", "step", "shield", "commit")
WINDING_UP = ("settle", "interruption")
LOGGED = (*EFFECTS, *WINDING_UP, "claim", "release")

# What reaches Redis. -------------------------------------------------------------------------------------------------------


@dataclass
class Call:
    """One call of the store."""

    name: str
    args: tuple[Any, ...]
    sent_ns: int = 0
    answered_ns: int = 0
    answer: Any = None

    def note_answer(self, future: asyncio.Future[Any]) -> None:
        self.answered_ns = time.monotonic_ns()
        self.answer = None if future.cancelled() or future.exception() else future.result()

    @property
    def word(self) -> str:
        if isinstance(self.answer, Answer):
            return self.answer.word
        if isinstance(self.answer, tuple):
            return str(self.answer[0])
        return "grant" if isinstance(self.answer, Grant) else ""


class Lane:
    """The calls of a room one behind the other, each of them two points until its first message is committed."""

    def __init__(self, room: str, body: dict[str, Any]) -> None:
        self._room = room
        self._body = body
        self._count = self._winding_up = 0
        self._open = True
        self.turn = asyncio.Lock()

    async def reach(self, when: str, name: str) -> None:
        if not self._open:
            return
        self._count += 1
        then = self._body.get("then")
        if self._body["at"] == 0:
            note(self._body, self._room, "point", where=f"{when} {name}")
        elif self._count == self._body["at"]:
            await self._signal(self._body["mode"], "first")
        elif then and self._count > self._body["at"] and name in WINDING_UP:
            self._winding_up += 1
            if self._winding_up == then["at"]:
                await self._signal(then["mode"], "second")
        self._open = (when, name) != ("after", "commit")

    async def _signal(self, mode: str, name: str) -> None:
        await in_thread(f"signal-{self._room}", partial(signal, self._body, self._room, mode, name))


class Wire:
    """Stands in front of the store of a system's rooms, and writes down every call."""

    def __init__(self, system: ActorSystem) -> None:
        context = system._worker.context
        self._store = context.store
        self._lanes: dict[str, Lane] = {}
        self.calls: dict[str, list[Call]] = defaultdict(list)
        context.store = self  # type: ignore[assignment]  # it has all that a store has

    def arm(self, room: str, body: dict[str, Any]) -> None:
        """Before the room has work: its calls are points."""
        if body["kind"] == "command":
            self._lanes[room] = Lane(room, body)

    def disarm(self) -> None:
        self._lanes.clear()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return partial(self._call, name, method) if name in LOGGED else method

    def _call(self, name: str, method: Any, room: str, *args: Any, **options: Any) -> asyncio.Future[Any]:
        call = Call(name, (*args, options), time.monotonic_ns())
        self.calls[room].append(call)
        lane = self._lanes.get(room)
        sent = partial(method, room, *args, **options)
        future = sent() if lane is None else asyncio.get_running_loop().create_task(self._held(lane, call, sent))
        future.add_done_callback(call.note_answer)
        answered: asyncio.Future[Any] = future
        return answered

    @staticmethod
    async def _held(lane: Lane, call: Call, sent: Any) -> Any:
        async with lane.turn:
            await lane.reach("before", call.name)
            call.sent_ns = time.monotonic_ns()
            answer = await sent()
            await lane.reach("after", call.name)
            return answer


# What happens to the rooms. ------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """A room as it was at one moment."""

    status: RoomStatus
    outputs: list[Output]
    steps: dict[str, str]
    state: dict[str, Any]


@dataclass
class Trial:
    """One room: the message that is aborted at a point, one behind it, and one that is sent in the end."""

    room: str
    body: dict[str, Any]
    messages: list[int] = field(default_factory=list)
    held: Seen | None = None  # before play
    end: Seen | None = None
    played_ns: int = 0
    calls: list[Call] = field(default_factory=list)
    journal: list[dict[str, Any]] = field(default_factory=list)

    def __str__(self) -> str:
        then = self.body.get("then")
        also = f", then {then['mode']} at {then['at']}" if then else ""
        return f"{self.body['kind']} {self.body['at']}, {self.body['mode']}{also}"

    def lines(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self.journal if line["what"] == what]

    @property
    def signals(self) -> list[dict[str, Any]]:
        """The signals in their order; a replay that gets to the point sends its signal again, which does nothing."""
        return list({line["name"]: line for line in reversed(self.lines("signal"))}.values())[::-1]


def look(client: Client, room: str) -> Seen:
    async def ask() -> tuple[Any, Any]:
        store = client._client._store
        steps = store.pipeline.command("HGETALL", f"{store.keys.room(room)}:steps")
        return await steps, await store.pipeline.command("GET", store.keys.state(room))

    steps, state = client._run(ask)
    known = dict(zip(map(text, steps[::2]), map(text, steps[1::2]), strict=True))
    return Seen(client.status(room), list(client.outputs(room)), known, codec.decode(state)[1] if state else {})


def _wait_quiet(client: Client, trials: list[Trial]) -> None:
    """Wait until nothing goes on in the rooms any more: they are empty or held, and every signal has its receipt."""

    def quiet() -> bool:
        found = client._run(lambda: statuses(client._client._store, [trial.room for trial in trials]))
        return all(status.ticket is None and status.phase in (None, Phase.HELD) for status in found)

    def answered() -> bool:
        for trial in trials:
            kinds = Counter(line["what"] for line in read_journal(trial.body["journal"], trial.room))
            if kinds["sending"] != kinds["signal"]:
                return False
        return not any(thread.name.startswith("greenroom-step-") for thread in threading.enumerate())

    eventually(quiet, "the rooms are empty or held")
    eventually(answered, "every signal is answered and every step's function has returned")


def run_trials(client: Client, wire: Wire, trials: list[Trial]) -> None:
    """Send the messages, wait for what the signals leave, play the rooms that are held, and send one more message each."""
    echo = [{**trial.body, "kind": "echo"} for trial in trials]
    for trial, body in zip(trials, echo, strict=True):
        wire.arm(trial.room, trial.body)
        trial.messages = [client.send(trial.room, trial.body), client.send(trial.room, body)]
    _wait_quiet(client, trials)
    wire.disarm()
    held = [trial for trial in trials if client.status(trial.room).hold]
    for trial in held:
        trial.held = look(client, trial.room)
        trial.played_ns = time.monotonic_ns()
        client.play(trial.room)
    _wait_quiet(client, held)
    for trial, body in zip(trials, echo, strict=True):
        trial.messages.append(client.send(trial.room, body))
    _wait_quiet(client, trials)
    for trial in trials:
        trial.end = look(client, trial.room)
        trial.calls = wire.calls[trial.room]
        trial.journal = read_journal(trial.body["journal"], trial.room)
