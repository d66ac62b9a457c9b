"""Steps: parts of a cycle that are done once, also if the message is replayed."""

from __future__ import annotations

import inspect
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeVar

from ..protocol.errors import InvalidRequest, OutcomeUnknown
from ..protocol.keys import check_name

IfUnknown = Literal["again", "raise"]
F = TypeVar("F", bound=Callable[..., Any])

_NAMESPACE = uuid.UUID("d7a6a3f2-4c0e-4a53-9a0e-3d2f7a1f5c11")
_MARK = "__greenroom_idempotent__"


def idempotent(function: F) -> F:
    """Mark a function that may safely be done twice: as a step whose outcome is unknown it is done again."""
    setattr(getattr(function, "__func__", function), _MARK, True)  # of a method, the function that it is made of
    return function


def _is_marked(function: Callable[..., Any]) -> bool:
    while isinstance(function, partial):
        function = function.func
    return bool(getattr(function, _MARK, False))


def idempotency_key(agent: str, message: int, step: str) -> str:
    """The same for every try of a message's step, and for no other: a UUID."""
    return str(uuid.uuid5(_NAMESPACE, f"{agent}\n{message}\n{step}"))


class Steps:
    """The steps of one cycle. Several threads may use it."""

    def __init__(self, agent: str, message: int) -> None:
        self._agent = agent
        self._message = message
        self._lock = threading.Lock()
        self._known: dict[str, bool] = {}  # the names that were taken; False: it is not known whether that step happened

    def begin(self, name: str, function: Callable[..., Any], if_unknown: IfUnknown | None) -> str:
        """Take the name for a step that is to begin, and answer how: ``begin`` or ``again``.

        Raises:
            InvalidRequest: the name cannot be used, or has been; or ``if_unknown`` is none of its values.
            OutcomeUnknown: this cycle has begun it before and does not know how that ended.
        """
        check_name(name, "step")
        if if_unknown not in (None, "again", "raise"):
            raise InvalidRequest(f"if_unknown: want 'again' or 'raise', got {if_unknown!r}")
        again = if_unknown == "again" or (if_unknown is None and _is_marked(function))
        with self._lock:
            if self._known.get(name):
                raise InvalidRequest(f"step {name!r} is there already: names are unique within a message")
            if name in self._known and not again:
                raise self.unknown(name)
            self._known[name] = True
        return "again" if again else "begin"

    @contextmanager
    def beginning(self, name: str) -> Iterator[None]:
        """Whatever is raised in here, the function was not called: the name may be used once more."""
        try:
            yield
        except BaseException:
            self.forget(name)
            raise

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Whatever is raised in here, and not followed by ``forget``, leaves it unknown whether the step happened."""
        try:
            yield
        except BaseException as error:
            with self._lock:
                if name in self._known:
                    self._known[name] = False
            if isinstance(error, OutcomeUnknown):  # the function's own: it need not know which step it is
                error.step, error.idempotency_key = name, self.key(name)
            raise

    def forget(self, name: str) -> None:
        """The step did not happen."""
        with self._lock:
            self._known.pop(name, None)

    def key(self, name: str) -> str:
        return idempotency_key(self._agent, self._message, name)

    def unknown(self, name: str) -> OutcomeUnknown:
        return OutcomeUnknown(name, self.key(name))

    def bind(self, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
        """The function with its arguments; one with a parameter ``idempotency_key`` is handed the step's."""
        if _takes_key(function):
            return partial(function, *args, idempotency_key=self.key(name))
        return partial(function, *args)


def _takes_key(function: Callable[..., Any]) -> bool:
    try:
        return "idempotency_key" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a built-in without a signature
        return False
