"""Random interleavings of workers, clients, signals, crashes, zombies and repeated requests on a real redis-server.

A run is a list of actions, each a kind and a seed of its own, so that any part of the list can be run again: an action picks
among what is possible at that moment, and does nothing when nothing is. That is what makes shrinking a failed run simple.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from greenroom.protocol.scripts import Script, scripts

from .actions import ACTIONS
from .checks import Violation, check_end
from .drain import drain
from .model import Terms
from .wire import Wire
from .world import World

CHECK_EVERY = 6
SHRINK_REPLAYS = 400

Action = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed stands for."""

    terms: Terms
    actions: list[Action]


def plan(seed: int) -> Plan:
    """The run of this seed: each kind of action is common, usual, rare or absent in it."""
    rng = random.Random(seed)
    terms = Terms(max_attempts=rng.randint(1, 3), shielded=rng.random() < 0.15)
    weights = [weight * rng.choice((0.0, 0.4, 1.0, 1.0, 2.5) if optional else (0.6, 1.0)) for _, weight, optional in ACTIONS]
    kinds = rng.choices([action.__name__ for action, _, _ in ACTIONS], weights, k=rng.randint(60, 150))
    return Plan(terms, [("join", rng.getrandbits(32)), *((kind, rng.getrandbits(32)) for kind in kinds)])


_BY_NAME: dict[str, Callable[[World], None]] = {action.__name__: action for action, _, _ in ACTIONS}


class Explorer:
    """Runs seeds against these scripts; the first violation of a run is raised with the shortest trace that was found."""

    def __init__(self, url: str, changed: Mapping[str, Script] | None = None, *, shrink: bool = True) -> None:
        self._wire = Wire(url, {**scripts(), **(changed or {})})
        self._shrink = shrink

    def close(self) -> None:
        self._wire.close()

    def run(self, seed: int) -> None:
        """One run.

        Raises:
            Violation: with the seed, what was violated and the calls that led to it.
        """
        whole = plan(seed)
        try:
            self._play(whole, CHECK_EVERY)
        except Violation as violation:
            raise self._explain(seed, whole, violation) from None

    def _play(self, part: Plan, check_every: int, trace: list[str] | None = None) -> None:
        world = World(self._wire, part.terms)
        if trace is not None:
            world.tracing, world.trace = True, trace
        try:
            for place, (kind, seed) in enumerate(part.actions):
                world.rng = random.Random(seed)
                _BY_NAME[kind](world)
                if place % check_every == 0:
                    world.check()
            world.check()
            drain(world)
            world.check()
            check_end(world.account, self._wire)
        finally:
            self._wire.erase()

    def _explain(self, seed: int, whole: Plan, violation: Violation) -> Violation:
        actions = self._shrunk(whole) if self._shrink else whole.actions
        trace: list[str] = []
        try:
            self._play(Plan(whole.terms, actions), 1, trace)
        except Violation as found:
            violation = found
        lines = "\n  ".join(trace)
        return Violation(f"seed {seed}, {whole.terms}: {violation}\n{len(actions)} of {len(whole.actions)} actions:\n  {lines}")

    def _fails(self, part: Plan) -> bool:
        try:
            self._play(part, 1)
        except Violation:
            return True
        return False

    def _shrunk(self, whole: Plan) -> list[Action]:
        """Fewer actions that still violate: chunks are left out, from halves down to single actions."""
        actions, replays = whole.actions, 0
        size = len(actions) // 2
        while size:
            start = 0
            while start < len(actions) and replays < SHRINK_REPLAYS:
                fewer = actions[:start] + actions[start + size :]
                replays += 1
                if self._fails(Plan(whole.terms, fewer)):
                    actions = fewer
                else:
                    start += size
            size //= 2
        return actions
