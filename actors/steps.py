"""Steps: parts of a cycle that are done once, also if the message is replayed."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar

from ..protocol.errors import InvalidRequest
from ..protocol.keys import check_name

IfUnknown = Literal["again", "raise"]
F = TypeVar("F", bound=Callable[..., Any])

_NAMESPACE = uuid.UUID("d7a6a3f2-4c0e-4a53-9a0e-3d2f7a1f5c11")
_MARK = "__greenroom_idempotent__"


def idempotent(function: F) -> F:
    """Mark a function that may safely be done twice: as a step whose outcome is unknown it is done again."""
    setattr(function, _MARK, True)
    return function


def idempotency_key(agent: str, message: int, step: str) -> str:
    """The same for every try of a message's step, and for no other: a UUID."""
    return str(uuid.uuid5(_NAMESPACE, f"{agent}\n{message}\n{step}"))


class Steps:
    """The steps of one cycle."""

    def __init__(self, agent: str, message: int) -> None:
        self._agent = agent
        self._message = message
        self._used: set[str] = set()

    def begin(self, name: str, function: Callable[..., Any], if_unknown: IfUnknown | None) -> str:
        """Take the name for a step that is to begin, and answer how: ``begin`` or ``again``.

        Raises:
            InvalidRequest: the name cannot be used, or has been; or ``if_unknown`` is none of its values.
        """
        check_name(name, "step")
        if if_unknown not in (None, "again", "raise"):
            raise InvalidRequest(f"if_unknown: want 'again' or 'raise', got {if_unknown!r}")
        if name in self._used:
            raise InvalidRequest(f"step {name!r} is there already: names are unique within a message")
        self._used.add(name)
        marked = getattr(getattr(function, "__func__", function), _MARK, False)
        return "again" if if_unknown == "again" or (if_unknown is None and marked) else "begin"

    def forget(self, name: str) -> None:
        """The step did not happen: its name may be used once more."""
        self._used.discard(name)

    def key(self, name: str) -> str:
        return idempotency_key(self._agent, self._message, name)

    def call(self, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
        """The function with its arguments; one with a parameter ``idempotency_key`` is handed the step's."""
        if _takes_key(function):
            return partial(function, *args, idempotency_key=self.key(name))
        return partial(function, *args)


def _takes_key(function: Callable[..., Any]) -> bool:
    try:
        return "idempotency_key" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a built-in without a signature
        return False
