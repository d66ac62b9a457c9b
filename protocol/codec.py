"""Bodies, replies, state and step results as msgpack: nothing stored is ever evaluated.

Beyond msgpack's own types it carries ``datetime`` (aware, as msgpack's timestamp, read back in UTC) and ``UUID`` (extension
type 1). Tuples come back as lists.
"""

from __future__ import annotations

import datetime as dt
import inspect
import uuid
from typing import Any

import msgpack

from .errors import InvalidBody

TYPES = "None, bool, int, float, str, bytes, list, dict, aware datetime and UUID"
MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
_UUID = 1


def _default(value: Any) -> msgpack.ExtType:
    if isinstance(value, uuid.UUID):
        return msgpack.ExtType(_UUID, value.bytes)
    if isinstance(value, dt.datetime):
        raise InvalidBody("a datetime without a time zone cannot be stored: add one, such as datetime.UTC")
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    hint = " (is an await missing?)" if inspect.isawaitable(value) else ""
    raise InvalidBody(f"what is of type {name} cannot be stored: only {TYPES} can{hint}")


def _ext(code: int, data: bytes) -> Any:
    return uuid.UUID(bytes=data) if code == _UUID and len(data) == 16 else msgpack.ExtType(code, data)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for box in level
            if isinstance(box, dict | list | tuple)
            for item in (box.values() if isinstance(box, dict) else box)
        ]
        if not level:
            return
    raise InvalidBody(f"nested deeper than {MAX_DEPTH} levels")


def encode(value: Any, *, limit: int = MAX_BYTES, what: str = "") -> bytes:
    """Pack ``value``, at most ``limit`` bytes and 32 levels. ``what`` it is goes before the error.

    Raises:
        InvalidBody: a type that cannot be stored, or too large or deep.
    """
    try:
        return _pack(value, limit)
    except InvalidBody as error:
        if what:
            raise InvalidBody(f"{what}: {error}") from None
        raise


def _pack(value: Any, limit: int) -> bytes:
    if isinstance(value, dict | list | tuple):
        _check_depth(value)
    try:
        data = msgpack.packb(value, default=_default, datetime=True)
    except InvalidBody as error:
        raise InvalidBody(str(error)) from None  # without msgpack's way to it
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidBody(f"cannot be stored: {error}") from None
    if len(data) > limit:
        raise InvalidBody(f"{len(data)} bytes are more than the limit of {limit}")
    return bytes(data)


def decode(data: bytes, *, limit: int = MAX_BYTES) -> Any:
    """Unpack what ``encode`` packed.

    Raises:
        InvalidBody: bytes that are no msgpack, too many or too deep.
    """
    if len(data) > limit:
        raise InvalidBody(f"{len(data)} bytes are more than the limit of {limit}")
    try:
        value = msgpack.unpackb(data, ext_hook=_ext, timestamp=3, strict_map_key=False)
    except Exception as error:  # msgpack raises half a dozen unrelated types for bytes that are not its own
        raise InvalidBody(f"not msgpack: {error}") from None
    if isinstance(value, dict | list):
        _check_depth(value)
    return value
