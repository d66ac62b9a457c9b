"""What must be true of a room that was aborted at one point, whichever it was."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from greenroom import Kind, Outcome, Output
from greenroom.protocol.store import Grant
from integration.abort_agents import CHUNKS, SORRY, STEPS
from integration.abort_trials import EFFECTS, Call, Trial

REFUSALS = ("interrupt", "stop", "fenced")
ENDED_BY = {"CycleEnded", "CancelledError", "GeneratorExit"}  # what a handler may be ended by


def place(entry: str) -> tuple[int, ...]:
    return tuple(map(int, entry.split("-")))


@dataclass
class Verdict:
    """From ``ns`` on nothing of these tickets is accepted, and no cycle is granted to an interrupted message, or until play."""

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
        self.lapsed = [
            line for line in trial.signals if line["outcome"] == Outcome.DEFERRED and self._shield_down(line) is None
        ]
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
            if hook["mode"] == "interrupt" and self.of(end.message, Kind.CHUNK)[-1].body != SORRY:
                yield f"the closing output of {end.message} is missing"
