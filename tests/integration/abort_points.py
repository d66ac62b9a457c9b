"""Rooms that are aborted at one point each, what reaches Redis from them, and what must be true of them afterwards."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from greenroom import Client, Kind, Outcome, Output, Phase, RoomStatus
from greenroom.actors.threads import in_thread
from greenroom.protocol import codec
from greenroom.protocol.inspection import statuses
from greenroom.protocol.records import text
from greenroom.protocol.store import Answer, Grant
from greenroom.supervisors.system import ActorSystem
from integration.abort_agents import CHUNKS, SORRY, STEPS, note, read_journal, signal
from integration.agents import eventually

EFFECTS = ("emit", "step", "shield", "commit")
LOGGED = (*EFFECTS, "claim", "settle", "interruption", "release")
WINDING_UP = ("settle", "interruption")
REFUSALS = ("interrupt", "stop", "fenced")
ENDED_BY = {"CycleEnded", "CancelledError", "GeneratorExit"}  # what a handler may be ended by

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

    steps, state = client._run(ask())
    known = dict(zip(map(text, steps[::2]), map(text, steps[1::2]), strict=True))
    return Seen(client.status(room), list(client.outputs(room)), known, codec.decode(state)[1] if state else {})


def _wait_quiet(client: Client, trials: list[Trial]) -> None:
    """Wait until nothing goes on in the rooms any more: they are empty or held, and every signal has its receipt."""

    def quiet() -> bool:
        found = client._run(statuses(client._client._store, [trial.room for trial in trials]))
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


# What must be true of them. ------------------------------------------------------------------------------------------------


def place(entry: str) -> tuple[int, ...]:
    return tuple(map(int, entry.split("-")))


@dataclass
class Verdict:
    """From ``ns`` on nothing of these tickets is accepted, and no cycle is granted: of this message for ever, of any until play."""

    signal: dict[str, Any]
    ns: int
    tickets: set[int]


class Account:
    """What became of a trial; ``problems`` says what should not have."""

    def __init__(self, trial: Trial) -> None:
        assert trial.end is not None
        self.trial = trial
        self.outputs = trial.end.outputs
        self.granted = {call.answer.ticket: call for call in trial.calls if isinstance(call.answer, Grant)}
        self.lapsed = [line for line in trial.signals if line["outcome"] == Outcome.DEFERRED and self._shield_down(line) is None]
        self.verdicts = [verdict for line in trial.signals if (verdict := self._verdict(line))]

    def _tickets_of(self, message: int | None, before_ns: int) -> set[int]:
        """The tickets that were granted, to this message if one is named, by calls that had been sent by then."""
        return {
            ticket
            for ticket, call in self.granted.items()
            if call.sent_ns < before_ns and message in (None, call.answer.message.id)
        }

    def _shield_down(self, line: dict[str, Any]) -> Call | None:
        """The call that took the shield down, and by which the deferred signal acted."""
        for call in self.trial.calls:
            down = call.name == "shield" and not call.args[-1]["up"]
            if down and call.answered_ns > line["sent_ns"] and call.word == line["mode"]:
                return call
        return None

    def _verdict(self, line: dict[str, Any]) -> Verdict | None:
        interrupts = line["mode"] == "interrupt"
        if line["outcome"] == Outcome.APPLIED:
            ns = line["ns"]
        elif line["outcome"] == Outcome.DEFERRED and (down := self._shield_down(line)):
            ns = down.answered_ns
        else:
            return None
        return Verdict(line, ns, self._tickets_of(line["message"] if interrupts else None, ns))

    def of(self, message: int, *kinds: Kind) -> list[Output]:
        return [output for output in self.outputs if output.message == message and output.kind in kinds]

    @property
    def consumed(self) -> list[int]:
        return [m for m in self.trial.messages if any(o.mode == "interrupt" for o in self.of(m, Kind.ABORTED))]

    @property
    def replied(self) -> list[int]:
        return [m for m in self.trial.messages if self.of(m, Kind.REPLY)]

    def problems(self) -> Iterator[str]:
        yield from self._receipts()
        yield from self._effects_that_came_too_late()
        yield from self._ends()
        yield from self._runs()
        yield from self._chunks()
        yield from self._steps()
        yield from self._hooks()

    def _receipts(self) -> Iterator[str]:
        """What they claim is what happened."""
        for line in self.trial.signals:
            at_once = line is self.trial.signals[0]
            from_code = at_once and self.trial.body["kind"] in ("await", "call")
            if from_code and (line["outcome"] not in ("applied", "deferred") or line["message"] != self.trial.messages[0]):
                yield f"a signal to a live cycle was answered {line}"
            if at_once and line["outcome"] not in ("applied", "deferred", "idle"):
                yield f"the first signal was answered {line}"
        hit = {verdict.signal["message"] for verdict in self.verdicts if verdict.signal["mode"] == "interrupt"}
        if set(self.consumed) != hit:
            yield f"consumed {self.consumed}, receipts say {hit}"

    def _effects_that_came_too_late(self) -> Iterator[str]:
        for verdict in self.verdicts:
            stops = verdict.signal["mode"] == "stop"
            for call in self.trial.calls:
                late = call.sent_ns > verdict.ns
                if late and call.name in EFFECTS and call.args[0] in verdict.tickets and call.word not in REFUSALS:
                    yield f"{call} was accepted after {verdict}"
                if late and stops and call.sent_ns < self.trial.played_ns and call.word == "grant":
                    yield f"{call} was granted while stopped"
                if late and not stops and call.word == "grant" and call.answer.message.id == verdict.signal["message"]:
                    yield f"{call} brought back what was consumed"
            if verdict.signal["outcome"] == Outcome.APPLIED:
                yield from self._outputs_after(verdict)

    def _outputs_after(self, verdict: Verdict) -> Iterator[str]:
        for output in self.outputs:
            if place(output.id) <= place(verdict.signal["last"]) or output.ticket not in verdict.tickets:
                continue
            closing = output.kind is Kind.CHUNK and output.body == SORRY and output.message in self.consumed
            if output.kind is not Kind.ABORTED and not closing:
                yield f"{output} appeared after {verdict}"
        alone = len(self.trial.signals) == 1 and self.trial.held is not None
        if alone and self.trial.held and verdict.signal["steps"] != self.trial.held.steps:
            yield f"steps changed after the stop: {verdict.signal['steps']}, {self.trial.held.steps}"

    def _ends(self) -> Iterator[str]:
        """Each message ends once and in its order, and no attempt is charged."""
        ends = [o.message for o in self.outputs if o.kind is Kind.REPLY or o.mode == "interrupt"]
        if ends != self.trial.messages:
            yield f"ended: {ends}, sent: {self.trial.messages}"
        odd = [o for o in self.outputs if o.kind in (Kind.FAILED, Kind.DEAD) or o.mode not in (None, "interrupt", "stop")]
        if odd:
            yield f"no cycle failed, and none was given back: {odd}"
        for seen in filter(None, (self.trial.held, self.trial.end)):
            answered = [o.message for o in seen.outputs if o.kind is Kind.REPLY]
            interrupted = [o.message for o in seen.outputs if o.mode == "interrupt"]
            wanted = {name: ids for name, ids in (("answered", answered), ("interrupted", interrupted)) if ids}
            if seen.state != wanted:
                yield f"state {seen.state}, committed {wanted}"
            if seen.status.attempt:
                yield f"charged: {seen.status}"

    def _runs(self) -> Iterator[str]:
        runs = self.trial.lines("run")
        for run in runs:
            known = {key: [m for m in ids if m < run["message"]] for key, ids in self._final_state().items()}
            if run["state"] != {key: ids for key, ids in known.items() if ids}:
                yield f"a cycle began with the state {run['state']}, committed was {known}"
            if run["attempt"] != 1:
                yield f"charged: {run}"
        if max(Counter(run["ticket"] for run in runs).values()) > 1:
            yield f"a ticket ran twice: {runs}"
        aborted = set[int]().union(*(verdict.tickets for verdict in self.verdicts))
        for message in self.trial.messages[1:]:
            if sum(run["message"] == message and run["ticket"] not in aborted for run in runs) != (message in self.replied):
                yield f"message {message} after it did not run once: {runs}"
        for line in self.trial.lines("raised"):
            if not set(line["errors"]) <= ENDED_BY:
                yield f"the handler was ended by {line}"

    def _final_state(self) -> dict[str, list[int]]:
        assert self.trial.end is not None
        return self.trial.end.state

    def _chunks(self) -> Iterator[str]:
        """In their order, and none left out."""
        tickets = defaultdict(list)
        for output in self.outputs:
            tickets[output.ticket].append(output)
        for ticket, outputs in tickets.items():
            if [output.seq for output in outputs] != list(range(1, len(outputs) + 1)):
                yield f"ticket {ticket} is not numbered: {outputs}"
            bodies = [output.body for output in outputs if output.kind is Kind.CHUNK and output.body != SORRY]
            if outputs[0].message != self.trial.messages[0]:
                continue
            in_order = sorted(bodies[:3], key=CHUNKS.index) + bodies[3:]  # the two from the side come in any order
            whole = outputs[-1].kind is Kind.REPLY
            if in_order[: len(bodies)] != list(CHUNKS[: len(bodies)]) and in_order != ["one", "right"]:
                yield f"chunks out of order: {bodies}"
            if whole and len(bodies) != len(CHUNKS):
                yield f"chunks are missing: {bodies}"

    def _steps(self) -> Iterator[str]:
        """Each effect happened as its policy says."""
        first = self.trial.messages[0]
        calls = Counter((line["ticket"], line["step"]) for line in self.trial.lines("call"))
        begun = {(c.args[0], c.args[1]) for c in self.trial.calls if c.name == "step" and c.word == "run"}
        if set(calls) - begun or max(calls.values(), default=0) > 1:
            yield f"called {calls}, and had begun {begun}"
        effects = Counter(line["step"] for line in self.trial.lines("effect"))
        unknown = Counter(line["step"] for line in self.trial.lines("unknown"))
        held = self.trial.held.steps if self.trial.held and first in self.replied else {}
        steps = [call for call in self.trial.calls if call.name == "step" and call.sent_ns < self.trial.played_ns]
        recorded = {call.args[1] for call in steps if call.args[2] == "done" and call.word == "ok"}
        if held and {name for name, value in held.items() if value.startswith("!")} != recorded:
            yield f"done: {recorded}, but Redis has {held}"
        for step, policy in STEPS.items():
            left_open = held.get(step, "").startswith("?")
            fewest = 1 if first in self.replied else 0
            most = 2 if left_open and policy == "again" else 1
            if not fewest <= effects[step] <= most:
                yield f"{step} happened {effects[step]} times, and was {held.get(step)!r}"
            if unknown[step] != (left_open and policy == "raise"):
                yield f"{step} was {held.get(step)!r}, and the agent was told {unknown[step]} times that its outcome is unknown"

    def _hooks(self) -> Iterator[str]:
        """Each aborted cycle has its hook, which is told what had happened."""
        hooks = self.trial.lines("hook")
        aborted = [(o.message, o.mode) for o in self.outputs if o.kind is Kind.ABORTED]
        if [(hook["message"], hook["mode"]) for hook in hooks] != aborted:
            yield f"hooks {hooks}, aborted {aborted}"
            return
        for hook, end in zip(hooks, [o for o in self.outputs if o.kind is Kind.ABORTED], strict=True):
            sent = [o.body for o in self.outputs if o.ticket == end.ticket and o.kind is Kind.CHUNK and o.body != SORRY]
            if hook["sent"] != sent:
                yield f"{hook} but the readers have {sent}"
            steps = [*hook["done"], *hook["begun"], *hook["unknown"]]
            happened = {line["step"] for line in self.trial.lines("effect") if line["ticket"] == end.ticket}
            if len(set(steps)) != len(steps) or happened - set(steps):
                yield f"{hook} but there happened {happened}"
            if not set(hook["done"]) <= {line["step"] for line in self.trial.lines("effect") if line["ticket"] <= end.ticket}:
                yield f"{hook} says done of what did not happen"
            if hook["mode"] == "interrupt" and not self.of(end.message, Kind.CHUNK)[-1:][0].body == SORRY:
                yield f"the closing output of {end.message} is missing"
