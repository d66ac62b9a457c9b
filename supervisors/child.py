"""A supervisor's child: what is said about it beforehand, what is known of it while it runs, and what is told to others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pykka

from ..protocol.errors import InvalidRequest
from .restart import Restart, RestartHistory


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One child of a supervisor.

    Args:
        name: unique among the children of its supervisor.
        start: called for each start, on the supervisor's thread, so it must not take long; answers a new actor that has not
            been started: ``Database``, ``lambda: Database(dsn)``, ``partial(Database, dsn)``. The supervisor starts it and sees
            how it ends, whatever kind of actor it is. Of an actor on a greenroom loop the answer may be its reference, as
            ``start`` of its class gives it.
        restart: when it is started again after it has ended.
        shutdown: how long it may take to stop; then it is left behind. None: as long as it needs, as a supervisor should have.
        significant: when it ends and is not started again, its supervisor stops its other children and itself, normally. Not
            for permanent children, which are always started again.

    Raises:
        InvalidRequest: an argument cannot be used.
    """

    name: str
    start: Callable[[], pykka.Actor | pykka.ActorRef[Any]]
    restart: Restart = Restart.PERMANENT
    shutdown: timedelta | None = timedelta(seconds=5)
    significant: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidRequest(f"ChildSpec: name: want a text that is not empty, got {self.name!r}")
        if not callable(self.start):
            raise InvalidRequest(f"ChildSpec {self.name}: start: want an actor class or a function, got {self.start!r}")
        if not isinstance(self.restart, Restart):
            raise InvalidRequest(f"ChildSpec {self.name}: restart: want a Restart, got {self.restart!r}")
        if self.shutdown is not None and not (isinstance(self.shutdown, timedelta) and self.shutdown >= timedelta(0)):
            raise InvalidRequest(f"ChildSpec {self.name}: shutdown: want a timedelta >= 0 or None, got {self.shutdown!r}")
        if self.significant and self.restart is Restart.PERMANENT:
            raise InvalidRequest(f"ChildSpec {self.name}: a permanent child cannot be significant: it is always started again")


@dataclass(frozen=True, slots=True)
class ChildInfo:
    """What a supervisor knows of a child: whether it runs, since when (UTC; None when it does not), how often it was started
    again, alone or with others, and what it failed of the last time.
    """

    name: str
    running: bool
    since: datetime | None
    restarts: int
    last_failure: BaseException | None


@dataclass(slots=True, eq=False)
class Run:
    """From one start of a child to its end. The events are for the supervisor's loop."""

    since: datetime
    ref: pykka.ActorRef[Any] | None = None  # None when it could not be made
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # on_start is done, or all is over
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: bool = False  # by the supervisor: its end is no event
    failure: BaseException | None = None


@dataclass(slots=True, eq=False)
class Child:
    """A child as its supervisor keeps it."""

    spec: ChildSpec
    history: RestartHistory  # for its back-off; the budget is all children's
    run: Run | None = None
    joining: bool = False  # added, and not yet up: who adds it decides
    over: bool = False  # never to be started again
    starts: int = 0
    last_failure: BaseException | None = None

    @property
    def waits(self) -> bool:
        """Whether it is down and to be started again."""
        return self.run is None and not self.over

    @property
    def ref(self) -> pykka.ActorRef[Any] | None:
        """Its actor, when it lives. From any thread."""
        run = self.run
        return run.ref if run is not None and run.ref is not None and run.ref.is_alive() else None

    def info(self) -> ChildInfo:
        run = self.run
        running = run is not None and self.ref is not None
        since = run.since if running and run is not None else None
        return ChildInfo(self.spec.name, running, since, max(self.starts - 1, 0), self.last_failure)
