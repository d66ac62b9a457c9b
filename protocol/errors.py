"""Every error that greenroom raises, grouped by who must act."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class GreenroomError(Exception):
    """Base of every error of this library."""


# The caller must change the call. --------------------------------------------------------------------


class InvalidRequest(GreenroomError, ValueError):
    """The call cannot succeed as it is; nothing was changed."""


class InvalidName(InvalidRequest):
    """A room, agent or worker name is empty, too long, or has characters that are not allowed."""


class InvalidBody(InvalidRequest):
    """A body or state that cannot be stored: a type msgpack does not carry, too large, or too deep."""


class UnknownMode(InvalidRequest):
    """A signal that is none of interrupt, stop, pause, play."""


class Conflict(InvalidRequest):
    """A signal id or message key that was used before, for something else."""


# The caller may try again later, or must do without. ------------------------------------------------


class QueueFull(GreenroomError):
    """The room's queue is at its limit; the message was not accepted."""


class MessageProcessing(GreenroomError):
    """A cycle runs on the message: interrupt it instead of discarding it. After a stop: try again when its code has ended."""


class RelayRuns(GreenroomError):
    """A process of that relay runs, or has just ended without a word: end it, and wait for its lease to run out."""


class NotFound(GreenroomError, LookupError):
    """There is no such message, dead letter or relay (any more)."""


class NoReply(GreenroomError):
    """The message asked about will not be answered, or not in time."""


class Interrupted(NoReply):
    """The message was interrupted: it is consumed and never replayed."""


class DeadLettered(NoReply):
    """The message failed for good and is a dead letter."""


class Discarded(NoReply):
    """The message was dropped by an operator."""


class ReplyLost(NoReply):
    """The message has ended, and its reply, or part of it, was gone before it was read.

    The outbox keeps about 1,000 outputs of a room; and a Redis that is not durable may lose them.
    """


class AskTimeout(NoReply, TimeoutError):
    """No reply in time. The message is still in the queue and will be handled."""


# The operator must act: Redis. -----------------------------------------------------------------------


class RedisError(GreenroomError):
    """Redis cannot do what greenroom needs."""


class RedisUnavailable(RedisError, ConnectionError):
    """Redis cannot be reached. A request in flight may or may not have been applied; all are safe to repeat."""


class NotReplicated(RedisError):
    """Applied by the primary, but confirmed by fewer replicas than ``durability`` asks for: a fail-over now may lose it.

    ``confirmed`` is by how many, ``answer`` is what the call would have answered. The same call with the same ``key`` or
    ``cid`` is not applied again, and asks for the confirmation again.
    """

    def __init__(self, confirmed: int, wanted: int, answer: Any) -> None:
        super().__init__(f"applied, but confirmed by {confirmed} of {wanted} replicas in time: a fail-over now may lose it")
        self.confirmed = confirmed
        self.answer = answer


class RedisRefused(RedisError):
    """Redis answers, but refuses: password, permissions, version, memory, or data of another version."""


class NewerVersion(RedisRefused):
    """What Redis has was written by a newer greenroom, or a newer version of the agent: nothing of it was changed. Upgrade."""


class Superseded(RedisError):
    """A newer worker of the same name has taken over; this one has ended."""


class RedisEmptied(RedisError):
    """Redis has lost the agent's data while the worker ran; it must not be taken for "everything plays"."""


# The author of the agent must act. -------------------------------------------------------------------


class AgentError(GreenroomError, TypeError):
    """The agent class, or an option of it, cannot be used."""


class CycleEnded(GreenroomError):
    """Raised in a handler whose cycle may not send any more: aborted, or no longer the live one.

    ``why`` is ``interrupt``, ``stop``, ``overdue`` (it ran longer than ``max_cycle``), ``drain`` (given back at shutdown) or
    ``fenced``. There is nothing to repair: let it pass.
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"this cycle has ended ({why}): nothing of it is accepted any more")
        self.why = why


class OutcomeUnknown(GreenroomError):
    """A step began before and did not say how it ended: it may have happened or not.

    Find out, for instance by its ``idempotency_key``, and take the step once more by its name, with ``if_unknown="again"``.
    Raised by a step's own function it says the same of this try, and is passed on with the step's name and key.
    """

    def __init__(self, step: str, idempotency_key: str = "") -> None:
        super().__init__(f"step {step!r} began before and did not say how it ended: it may have happened or not")
        self.step = step
        self.idempotency_key = idempotency_key


class Reject(GreenroomError):
    """Raise it in a handler when a message can never succeed: it goes to the dead letters at once."""


def words_of(error: BaseException, show: Callable[[BaseException], str] = str) -> str:
    """What an error says, as text that can be stored: it may be of any class of the user's, and even saying it may fail."""
    try:
        words = show(error)
    except BaseException as trouble:  # it must not take the place of what is to be told
        return f"(says nothing: {type(trouble).__name__})"
    return words.encode("utf-8", "backslashreplace").decode()  # a file's name, say, may have lone surrogates
