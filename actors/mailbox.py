"""A mailbox with two lanes: control before messages, first in first out within each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from pykka._envelope import Envelope
from pykka.messages import _ActorStop

CONTROL_RUN = 16  # a flood of control lets one message through after so many


class Control:
    """Base of what travels in the control lane; Pykka's own stop does too."""

    __slots__ = ()


class Mailbox:
    """Pykka's inbox for an actor that is scheduled when something arrives.

    ``put`` may be called from any thread; ``take`` only by the actor.
    """

    __slots__ = ("_control", "_messages", "_run", "on_put")

    def __init__(self) -> None:
        self._control: deque[Envelope[Any]] = deque()
        self._messages: deque[Envelope[Any]] = deque()
        self._run = 0
        self.on_put: Callable[[Mailbox], object] = _nobody

    def put(self, envelope: Envelope[Any], /) -> None:
        urgent = isinstance(envelope.message, Control | _ActorStop)
        (self._control if urgent else self._messages).append(envelope)
        self.on_put(self)

    def take(self) -> Envelope[Any] | None:
        """The envelope that is due next, or None."""
        if self._control and (self._run < CONTROL_RUN or not self._messages):
            self._run += 1
            return self._control.popleft()
        self._run = 0
        return self._messages.popleft() if self._messages else None

    def get(self) -> Envelope[Any]:
        """As Pykka's inbox, but it never blocks.

        Raises:
            IndexError: nothing is there.
        """
        envelope = self.take()
        if envelope is None:
            raise IndexError("the mailbox is empty")
        return envelope

    def empty(self) -> bool:
        return not self._control and not self._messages

    def qsize(self) -> int:
        return len(self._control) + len(self._messages)


def _nobody(mailbox: Mailbox) -> None:
    """Before the actor is started nobody is to be woken."""
