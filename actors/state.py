"""A room's durable state: a dict or a model of the agent's, with a version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ValidationError

from ..protocol import codec
from ..protocol.errors import AgentError, InvalidBody
from ..protocol.store import DELETE_STATE, KEEP_STATE, set_state

Upgrade = Callable[[dict[str, Any], int], dict[str, Any]]


class StateKind:
    """How an agent's state is read and stored: as ``[version, fields]``.

    Raises:
        AgentError: ``model`` is no pydantic model whose fields all have defaults.
    """

    def __init__(self, model: type[BaseModel] | None, version: int, limit: int) -> None:
        self._model = model
        self._version = version
        self._limit = limit
        try:
            self._empty: dict[str, Any] = self._fields(self._new({}))
        except ValidationError as error:
            raise AgentError(f"State: every field wants a default, as a new room begins with State(): {error}") from None

    def _new(self, fields: dict[str, Any]) -> Any:
        return dict(fields) if self._model is None else self._model.model_validate(fields)

    def load(self, data: bytes | None, upgrade: Upgrade) -> Any:
        """The state as of the last commit, nobody else's to change; ``upgrade`` turns fields of an older version into today's.

        Raises:
            InvalidBody: it is of a newer version, or its fields do not fit.
        """
        if data is None:
            return self._new({})
        version, fields = codec.decode(data, limit=max(self._limit, codec.MAX_BYTES))
        if version > self._version:
            raise InvalidBody(f"the state is of version {version}, this agent knows {self._version}: upgrade this worker")
        if version < self._version:
            fields = upgrade(fields, version)
        try:
            return self._new(fields)
        except ValidationError as error:
            raise InvalidBody(f"the stored state of version {version} does not fit State: {error}") from None

    def argument(self, state: Any, stored: bytes | None) -> bytes:
        """What commit is to do with the state. One that says no more than a new room's is not kept.

        Raises:
            InvalidBody: it cannot be stored.
        """
        fields = self._fields(state)
        if fields == self._empty:
            return DELETE_STATE if stored else KEEP_STATE
        data = codec.encode([self._version, fields], limit=self._limit)
        return KEEP_STATE if data == stored else set_state(data)

    def _fields(self, state: Any) -> dict[str, Any]:
        if self._model is None:
            if isinstance(state, dict):
                return state
        elif isinstance(state, self._model):
            return state.model_dump(mode="json")
        want = "dict" if self._model is None else self._model.__qualname__
        raise InvalidBody(f"the state is to be a {want}, and is a {type(state).__qualname__}")
