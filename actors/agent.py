"""What users write: an ``Agent`` with a ``respond`` method."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, ClassVar, Literal

from pydantic import BaseModel

from ..protocol.codec import MAX_BYTES
from ..protocol.errors import AgentError
from ..protocol.records import Message
from ..protocol.store import Terms
from .backoff import Backoff
from .interruption import Interruption
from .state import StateKind


class Agent:
    """One deployed behaviour. A worker makes one instance (with ``isolation = "process"``: each child process one) and gives it
    every room's messages: what is a room's own belongs in ``cycle.state``.

    Attributes:
        max_attempts: how often a message may fail or crash before it is a dead letter, 1 or more.
        retry: how long a message waits after a failure.
        interruptible: False shields every cycle for its whole life: interrupt and stop wait for it.
        abort_timeout: how long an aborted cycle's code may take to end before the room goes on without it; with
            ``isolation = "process"``: before its process is killed.
        max_cycle: a cycle that runs for longer is ended as a failed attempt, shielded or not. None: no limit.
        shield_warning: a shield that is up for longer is named in the log.
        hook_timeout: how long ``on_interrupt`` and ``on_stop`` may take.
        chunk_interval: chunks that are yielded faster than this leave together; 0: each leaves as soon as the one before has.
        State: a pydantic model of a room's durable state, each field with a default; without it the state is a dict.
        state_version: the version of what is stored; an older one goes through ``upgrade_state``.
        state_limit: how large a room's state may be, in bytes as stored.
        isolation: ``process`` runs each cycle in a child process of its own, which an abort ends.
        max_processes: with ``isolation = "process"``, how many there may be; no more rooms are at work at once.
    """

    max_attempts: int = 3
    retry: Backoff = Backoff()
    interruptible: bool = True
    abort_timeout: timedelta = timedelta(seconds=5)
    max_cycle: timedelta | None = None
    shield_warning: timedelta = timedelta(seconds=30)
    hook_timeout: timedelta = timedelta(seconds=5)
    chunk_interval: timedelta = timedelta(milliseconds=20)
    State: ClassVar[type[BaseModel] | None] = None
    state_version: int = 1
    state_limit: int = MAX_BYTES
    isolation: Literal["none", "process"] = "none"
    max_processes: int = 8

    def respond(self, message: Message, cycle: Any) -> Any:
        """Answer one message. Override it, as one of four:

        - a coroutine (``async def``): what it returns is the reply;
        - an async generator: what it yields is sent at once, chunk by chunk;
        - a function: runs in a thread of its own; what it returns is the reply;
        - a generator: runs in a thread, what it yields is sent at once.

        ``cycle`` is a ``Cycle`` for the first two, a ``ThreadCycle`` for the others.
        """
        raise NotImplementedError

    def on_interrupt(self, interruption: Interruption, state: Any) -> Any:
        """A cycle in flight was interrupted, and its code has ended or been left behind. A coroutine function or a plain one.

        ``state`` is the room's as of the last commit; what is changed in it is committed as the message is consumed. What this
        returns, unless that is None, is sent as the cycle's last chunk. If it raises or takes longer than ``hook_timeout``, or
        the worker dies, the message is consumed all the same, without either.
        """

    def on_stop(self, interruption: Interruption, state: Any) -> Any:
        """As ``on_interrupt``, for a cycle that was stopped. Its message is kept and replayed after play, so ``state`` is to be
        read only, and what this returns is not sent. A replay waits for its end.
        """

    def upgrade_state(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        """Turn a state of an older ``version`` into one of ``state_version``. It is stored with the next commit."""
        raise AgentError(f"{type(self).__qualname__} has a stored state of version {version} and no upgrade_state method")


class Runs(Enum):
    """How ``respond`` is to be run."""

    COROUTINE = "coroutine"
    ASYNC_GENERATOR = "async generator"
    FUNCTION = "function"
    GENERATOR = "generator"

    @property
    def on_loop(self) -> bool:
        return self in (Runs.COROUTINE, Runs.ASYNC_GENERATOR)


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """What an agent's class says, checked once. ``hooks`` are the modes that it has a hook for."""

    agent_class: type[Agent]
    runs: Runs
    terms: Terms
    state: StateKind
    hooks: frozenset[str]
    retry: Backoff
    abort_timeout_s: float
    max_cycle_s: float | None
    shield_warning_s: float
    hook_timeout_s: float
    chunk_interval_s: float

    @property
    def in_process(self) -> bool:
        return self.agent_class.isolation == "process"


def inspect_agent(agent_class: object) -> AgentSpec:
    """Check an agent's class.

    Raises:
        AgentError: it is no Agent subclass, lacks ``respond``, has a method that cannot be called as it will be, or an option
            that makes no sense.
    """
    if not (isinstance(agent_class, type) and issubclass(agent_class, Agent)):
        raise AgentError(f"{agent_class!r} is no subclass of greenroom.Agent")
    name = agent_class.__qualname__
    if agent_class.respond is Agent.respond:
        raise AgentError(f"{name} has no respond method")
    _check_calls(agent_class)
    for option, (check, wants) in _OPTIONS.items():
        value = getattr(agent_class, option)
        if not check(value):
            raise AgentError(f"{name}.{option}: want {wants}, got {value!r}")
    hooks = {"interrupt": agent_class.on_interrupt is not Agent.on_interrupt, "stop": agent_class.on_stop is not Agent.on_stop}
    return AgentSpec(
        agent_class,
        _how(agent_class.respond),
        Terms(agent_class.max_attempts, shielded=not agent_class.interruptible),
        StateKind(agent_class.State, agent_class.state_version, agent_class.state_limit),
        frozenset(mode for mode, there in hooks.items() if there),
        agent_class.retry,
        abort_timeout_s=agent_class.abort_timeout.total_seconds(),
        max_cycle_s=None if agent_class.max_cycle is None else agent_class.max_cycle.total_seconds(),
        shield_warning_s=agent_class.shield_warning.total_seconds(),
        hook_timeout_s=agent_class.hook_timeout.total_seconds(),
        chunk_interval_s=agent_class.chunk_interval.total_seconds(),
    )


_CALLS = {
    "respond": ("self", "message", "cycle"),
    "on_interrupt": ("self", "interruption", "state"),
    "on_stop": ("self", "interruption", "state"),
    "upgrade_state": ("self", "state", "version"),
}


def _check_calls(agent_class: type[Agent]) -> None:
    """What cannot be called would fail each message, and an agent that cannot be made each start."""
    name = agent_class.__qualname__
    for method, wants in _CALLS.items():
        written = inspect.getattr_static(agent_class, method)
        if inspect.isfunction(written) and (wrong := _misfit(written, wants)):
            raise AgentError(f"{name}.{method}: want {method}({', '.join(wants)}): {wrong}")
    if wrong := _misfit(agent_class, ()):
        raise AgentError(f"{name}(): a worker makes its agent without arguments: {wrong}")


def _misfit(called: Callable[..., Any], arguments: tuple[str, ...]) -> str:
    """Why it cannot be called with so many arguments, if so."""
    try:
        signature = inspect.signature(called, follow_wrapped=False)  # what a decorator wraps is not what is called
    except (TypeError, ValueError):  # it does not tell
        return ""
    try:
        signature.bind(*arguments)
    except TypeError as error:
        return str(error)
    return ""


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _duration(value: object) -> bool:
    return isinstance(value, timedelta) and value >= timedelta(0)


def _positive(value: object) -> bool:
    return isinstance(value, timedelta) and value > timedelta(0)


_ONE, _LONG = (_whole, "a whole number of 1 or more"), (_positive, "a timedelta of more than 0")
_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_attempts": _ONE,
    "retry": (lambda value: isinstance(value, Backoff), "a Backoff"),
    "interruptible": (lambda value: isinstance(value, bool), "True or False"),
    "abort_timeout": (_duration, "a timedelta of 0 or more"),
    "max_cycle": (lambda value: value is None or _positive(value), "a timedelta of more than 0, or None"),
    "shield_warning": _LONG,
    "hook_timeout": _LONG,
    "chunk_interval": (_duration, "a timedelta of 0 or more"),
    "State": (lambda value: value is None or (isinstance(value, type) and issubclass(value, BaseModel)), "a pydantic model"),
    "state_version": _ONE,
    "state_limit": (lambda value: _whole(value) and value <= MAX_BYTES, f"a whole number of 1 to {MAX_BYTES}"),
    "isolation": (lambda value: value in ("none", "process"), "'none' or 'process'"),
    "max_processes": _ONE,
}


def _how(respond: Any) -> Runs:
    if inspect.iscoroutinefunction(respond):
        return Runs.COROUTINE
    if inspect.isasyncgenfunction(respond):
        return Runs.ASYNC_GENERATOR
    if inspect.isgeneratorfunction(respond):
        return Runs.GENERATOR
    return Runs.FUNCTION
