"""A room's durable state: a dict or a model of the agent's, with a version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from ..protocol import codec
from ..protocol.errors import AgentError, InvalidBody, NewerVersion
from ..protocol.store import DELETE_STATE, KEEP_STATE, set_state

Upgrade = Callable[[dict[str, Any], int], dict[str, Any]]


class StateTooNew(NewerVersion):
    """A room's state was stored by a newer version of its agent."""


class StateKind:
    """How an agent's state is read and stored: as ``[version, fields]``.

    Raises:
        AgentError: ``model`` is no pydantic model whose fields all have defaults, and are read by the names they are stored by.
    """

    def __init__(self, model: type[BaseModel] | None, version: int, limit: int) -> None:
        self._model = model
        self._version = version
        self._limit = limit
        for name, field in model.model_fields.items() if model is not None else ():
            if (field.serialization_alias or name) != (field.validation_alias or name):
                raise AgentError(f"State.{name} is stored under one name and read by another: {field!r}")
        try:
            self._empty: dict[str, Any] = self._fields(self._new({}))
        except ValidationError as error:
            raise AgentError(f"State: every field wants a default, as a new room begins with State(): {_what(error)}") from None
        except InvalidBody as error:
            raise AgentError(f"State: {error}") from None

    def _new(self, fields: dict[str, Any]) -> Any:
        """As JSON: it is stored as JSON knows it, and a model that is strict is less so with JSON's types."""
        return dict(fields) if self._model is None else self._model.model_validate_json(to_json(fields))

    def load(self, data: bytes | None, upgrade: Upgrade) -> Any:
        """The state as of the last commit, nobody else's to change; ``upgrade`` turns fields of an older version into today's.

        Raises:
            StateTooNew: it is of a newer version.
            InvalidBody: it is not what greenroom writes, or its fields do not fit.
        """
        if data is None:
            return self._new({})
        try:
            version, fields = codec.decode(data, limit=max(self._limit, codec.MAX_BYTES))
            newer = version > self._version
        except (InvalidBody, ValueError, TypeError) as error:
            raise InvalidBody(f"the stored state is not what greenroom writes: {error}") from None
        if newer:
            raise StateTooNew(f"the state is of version {version}, this agent knows {self._version}: upgrade this worker")
        if version < self._version:
            fields = upgrade(fields, version)
        try:
            return self._new(fields)
        except ValidationError as error:
            raise InvalidBody(f"the stored state of version {version} does not fit State: {_what(error)}") from None

    def argument(self, state: Any, stored: bytes | None) -> bytes:
        """What commit is to do with the state. One that says no more than a new room's is not kept.

        Raises:
            InvalidBody: it cannot be stored, or could not be read again.
        """
        fields = self._fields(state)
        if fields == self._empty:
            return DELETE_STATE if stored else KEEP_STATE
        data = codec.encode([self._version, fields], limit=self._limit, what="the state")
        if data == stored:
            return KEEP_STATE
        try:
            self._new(fields)  # nothing may be committed that fails every message after it
        except ValidationError as error:
            raise InvalidBody(f"the state does not fit State: {_what(error)}") from None
        return set_state(data)

    def _fields(self, state: Any) -> dict[str, Any]:
        if self._model is None:
            if isinstance(state, dict):
                return state
        elif isinstance(state, self._model):
            try:
                return state.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)
            except PydanticSerializationError as error:
                raise InvalidBody(f"the state cannot be stored: {error}") from None
        want = "dict" if self._model is None else self._model.__qualname__
        raise InvalidBody(f"the state is to be a {want}, and is a {type(state).__qualname__}")


def _what(error: ValidationError) -> str:
    """In one line, and without the values."""
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'as a whole'}: {one['msg']}" for one in error.errors())
