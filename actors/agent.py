"""What users write: an ``Agent`` with a ``respond`` method."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from ..protocol.errors import AgentError
from ..protocol.records import Message
from ..protocol.store import Terms
from .backoff import Backoff


class Agent:
    """One deployed behaviour. A worker makes one instance and gives it every room's messages: what is a room's own belongs in
    ``cycle.state``.

    Attributes:
        max_attempts: how often a message may fail or crash before it is a dead letter, 1 or more.
        interruptible: False shields every cycle for its whole life: interrupt and stop wait for it.
        retry: how long a message waits after a failure.
        abort_timeout: how long an aborted cycle's code may take to end before the room goes on without it.
    """

    max_attempts: int = 3
    interruptible: bool = True
    retry: Backoff = Backoff()
    abort_timeout: timedelta = timedelta(seconds=5)

    def respond(self, message: Message, cycle: Any) -> Any:
        """Answer one message. Override it, as one of four:

        - a coroutine (``async def``): what it returns is the reply;
        - an async generator: what it yields is sent at once, chunk by chunk;
        - a function: runs in a thread of its own; what it returns is the reply;
        - a generator: runs in a thread, what it yields is sent at once.

        ``cycle`` is a ``Cycle`` for the first two, a ``ThreadCycle`` for the others.
        """
        raise NotImplementedError


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
    """What an agent's class says, checked once."""

    agent_class: type[Agent]
    runs: Runs
    terms: Terms
    retry: Backoff
    abort_timeout_s: float


def inspect_agent(agent_class: object) -> AgentSpec:
    """Check an agent's class.

    Raises:
        AgentError: it is no Agent subclass, lacks ``respond``, or has an option that makes no sense.
    """
    if not (isinstance(agent_class, type) and issubclass(agent_class, Agent)):
        raise AgentError(f"{agent_class!r} is no subclass of greenroom.Agent")
    name = agent_class.__qualname__
    if agent_class.respond is Agent.respond:
        raise AgentError(f"{name} has no respond method")
    attempts = agent_class.max_attempts
    if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
        raise AgentError(f"{name}.max_attempts: want a whole number of 1 or more, got {attempts!r}")
    if not isinstance(agent_class.interruptible, bool):
        raise AgentError(f"{name}.interruptible: want True or False, got {agent_class.interruptible!r}")
    if not isinstance(agent_class.retry, Backoff):
        raise AgentError(f"{name}.retry: want a Backoff, got {agent_class.retry!r}")
    timeout = agent_class.abort_timeout
    if not isinstance(timeout, timedelta) or timeout < timedelta(0):
        raise AgentError(f"{name}.abort_timeout: want a timedelta of 0 or more, got {timeout!r}")
    terms = Terms(attempts, shielded=not agent_class.interruptible)
    return AgentSpec(agent_class, _how(agent_class.respond), terms, agent_class.retry, timeout.total_seconds())


def _how(respond: Any) -> Runs:
    if inspect.iscoroutinefunction(respond):
        return Runs.COROUTINE
    if inspect.isasyncgenfunction(respond):
        return Runs.ASYNC_GENERATOR
    if inspect.isgeneratorfunction(respond):
        return Runs.GENERATOR
    return Runs.FUNCTION
