"""A reference to a supervised actor that survives its restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pykka

if TYPE_CHECKING:
    from .supervisor import Supervisor


class NamedRef:
    """The child of a supervisor by its name: each call goes to the actor that has the name then.

    While the child is down, calls raise ``pykka.ActorDeadError``. ``supervisor`` may be a NamedRef too, of a nested supervisor.
    May be used from any thread, and costs a look-up.
    """

    def __init__(self, supervisor: pykka.ActorRef[Supervisor] | NamedRef, name: str) -> None:
        self._supervisor = supervisor
        self.name = name

    def __repr__(self) -> str:
        return f"<NamedRef {self.name!r} of {self._supervisor}>"

    def whereis(self) -> pykka.ActorRef[Any] | None:
        """The actor that has the name now; None while there is none."""
        above = self._supervisor.whereis() if isinstance(self._supervisor, NamedRef) else self._supervisor
        supervisor = above._actor_weakref() if above is not None and above.is_alive() else None
        return supervisor.whereis(self.name) if supervisor is not None else None

    def is_alive(self) -> bool:
        return self.whereis() is not None

    def tell(self, message: Any) -> None:
        """As ``ActorRef.tell``. A message that the actor has not handled when it fails is lost, as always in Pykka."""
        self._require().tell(message)

    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any:
        """As ``ActorRef.ask``."""
        return self._require().ask(message, block=block, timeout=timeout)

    def proxy(self) -> pykka.ActorProxy[Any]:
        """A proxy of the present actor: it does not survive a restart, ask for a new one."""
        return self._require().proxy()

    def _require(self) -> pykka.ActorRef[Any]:
        ref = self.whereis()
        if ref is None:
            raise pykka.ActorDeadError(f"{self!r} is not running")
        return ref
