"""What a worker and its child processes say to each other: msgpack, each frame with its length in front, over a socket pair.

A worker believes nothing that a child says: what is none of the frames below is the end of that child. Bodies, replies, states
and results pass as the bytes that they are stored as.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgpack

from ..protocol import codec
from ..protocol.errors import CycleEnded, GreenroomError, RedisRefused, RedisUnavailable
from ..protocol.log import is_record
from ..protocol.records import Message

MOST_BYTES = 4 * codec.MAX_BYTES  # of a child's frame: a reply and a state are half of that at the most
FROM_WORKER = (1 << 32) - 1
_HEAD = struct.Struct(">I")

# What a child may say, and what comes with it. All but the first three begin with the ticket.
_FROM_CHILD: dict[str, tuple[type, ...]] = {
    "ready": (),
    "unfit": (str,),  # it could not load the agent, and why
    "log": (int, str, dict),  # a record of greenroom's: its level, event and fields
    "push": (int, bytes),
    "ask": (int, int, str, list),  # a number that the answer has, too; what, and with which arguments
    "finished": (int, bytes, bytes),
    "failed": (int, str, bool, bool),
    "cancelled": (int, str),
    "closed": (int, str, bytes, bytes),
}
_ASKS: dict[str, tuple[type, ...]] = {"flush": (), "shield": (bool,), "step": (str, str, bytes)}

# The errors that a cycle's code may want to tell apart.
_ERRORS: dict[str, type[GreenroomError]] = {kind.__name__: kind for kind in (CycleEnded, RedisRefused, RedisUnavailable)}


class BadFrame(Exception):
    """It is none of the frames that are expected."""


def pack(*frame: Any) -> bytes:
    data: bytes = msgpack.packb(frame)
    return _HEAD.pack(len(data)) + data


class Frames:
    """Takes the bytes as they come, and gives the frames that are complete, of at most ``most`` bytes each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[list[Any]]:
        """Raises BadFrame."""
        self._data += data
        while len(self._data) >= _HEAD.size:
            (size,) = _HEAD.unpack_from(self._data)
            if size > self._most:
                raise BadFrame(f"{size} bytes")
            end = _HEAD.size + size
            if len(self._data) < end:
                return
            packed = bytes(self._data[_HEAD.size : end])
            del self._data[:end]
            try:
                frame = msgpack.unpackb(packed, strict_map_key=False)
            except Exception as error:  # half a dozen unrelated types
                raise BadFrame(f"no msgpack: {error}") from None
            yield frame


def check_from_child(frame: Any) -> None:
    """Raise BadFrame unless a child may say this."""
    shape = _FROM_CHILD.get(frame[0]) if isinstance(frame, list) and frame and isinstance(frame[0], str) else None
    if shape is None or not _fits(frame[1:], shape):
        raise BadFrame("of an unknown form")
    if frame[0] == "ask":
        asked = _ASKS.get(frame[3])
        if asked is None or not _fits(frame[4], asked):
            raise BadFrame("an unknown question")
    if frame[0] == "log" and not is_record(*frame[1:]):
        raise BadFrame("no record of a log")


def _fits(values: list[Any], shape: tuple[type, ...]) -> bool:
    return tuple(map(type, values)) == shape


# What is not bytes, text or numbers already. ---------------------------------------------------------


def pack_message(message: Message) -> list[bytes]:
    fields = dict(message)
    body = fields.pop("body")
    return [codec.encode(fields), codec.encode(body, limit=FROM_WORKER)]  # it was in Redis: whatever its size, it is handled


def unpack_message(packed: list[bytes]) -> Message:
    fields, body = map(codec.decode, packed)
    return Message.model_construct(**fields, body=body)


def pack_error(error: BaseException | None) -> list[str] | None:
    if error is None:
        return None
    return [type(error).__name__, error.why if isinstance(error, CycleEnded) else str(error)]


def unpack_error(fields: list[str] | None) -> GreenroomError | None:
    if fields is None:
        return None
    kind, words = fields
    return _ERRORS.get(kind, GreenroomError)(words)
