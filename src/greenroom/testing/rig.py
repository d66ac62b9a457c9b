"""What a stage stands on: the system under test, which can be ended and started again, and what it was heard to do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ..actors.agent import Agent
from .story import LoggedTrouble
from .system import AT_ONCE, HELD, Begun, StagedSystem, abandon


class Rig:
    """All of it may be called from any thread, one call at a time; ``start``, ``restart``, ``crash`` and ``stop`` block."""

    def __init__(
        self, agent_class: type[Agent], agent: str, url: str, *, hold_retries: bool, timeout_s: float, options: dict[str, Any]
    ) -> None:
        self.agent = agent
        self.url = url
        self.timeout_s = timeout_s
        self.holds_retries = hold_retries
        self.begun = Begun()
        self.trouble = LoggedTrouble(agent)
        self.system: StagedSystem | None = None
        self._agent_class = agent_class
        self._options = {"name": "worker", **options, "agent": agent, "redis": url}

    def start(self) -> None:
        retry = HELD if self.holds_retries else AT_ONCE
        self.system = StagedSystem(self._agent_class, self.begun.note, retry, **self._options)
        self.system.start()  # it is known already: a test that is cancelled meanwhile ends it

    def stop(self) -> None:
        system, self.system = self.system, None
        if system is not None:
            system.stop(timedelta(0))

    def crash(self) -> None:
        system, self.system = self.system, None
        if system is not None:
            abandon(system)
        self.begun.forget()

    def restart(self) -> None:
        self.stop()
        self.begun.forget()
        self.start()

    def check(self) -> None:
        """Raise what the system has ended with, if it has by itself."""
        if (system := self.system) is not None:
            system.wait(0)

    def wake(self, room: str) -> None:
        """A retry of the room is due."""
        if (system := self.system) is not None:
            system.wake(room)
