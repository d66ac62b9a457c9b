"""One connection to a real redis-server, and everything of one agent read in one round trip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import hiredis
from redis import Redis
from redis.exceptions import ResponseError

from greenroom.protocol.keys import Keys
from greenroom.protocol.scripts import Script

Word = str | bytes | int

# The rooms' names are the arguments. A hash comes as a flat list; a missing group as an error table, which has no rows.
DUMP = """
local G = KEYS[1]
local function rows(...) local got = redis.pcall(...) return got.err and {} or got end
local rooms = {}
for i, room in ipairs(ARGV) do
  local key = G .. ':room:' .. room
  local ids = {}
  for j, entry in ipairs(redis.call('XRANGE', key .. ':messages', '-', '+')) do ids[j] = entry[1] end
  rooms[i] = { redis.call('HGETALL', key), ids, redis.call('GET', key .. ':state'), redis.call('HGETALL', key .. ':steps'),
    redis.call('TTL', key) }
end
return { redis.call('HGET', G, 'mode'), redis.call('XRANGE', G .. ':ready', '-', '+'),
  rows('XPENDING', G .. ':ready', 'supervisors', '-', '+', 1000), redis.call('SMEMBERS', G .. ':held'),
  redis.call('ZRANGE', G .. ':processing', 0, -1, 'WITHSCORES'), redis.call('ZRANGE', G .. ':rooms', 0, -1), rooms }
"""

# Every key of the agent with its type and life in seconds, for the end of a run.
LEFTOVERS = """
local found = {}
for _, key in ipairs(redis.call('KEYS', KEYS[1] .. ':*')) do
  found[#found + 1] = { key, redis.call('TTL', key) }
end
return found
"""

ERASE = "for _, key in ipairs(redis.call('KEYS', KEYS[1] .. '*')) do redis.call('DEL', key) end"


def as_text(data: Any) -> str:
    return data.decode() if isinstance(data, bytes) else str(data)


def pairs(flat: list[bytes]) -> dict[str, str]:
    return {as_text(name): value.decode(errors="replace") for name, value in zip(flat[::2], flat[1::2], strict=True)}


@dataclass(frozen=True, slots=True)
class RoomDump:
    """One room as Redis has it."""

    hash: dict[str, str]
    messages: list[str]
    state: bytes | None
    steps: dict[str, bytes]
    ttl_s: int


@dataclass(frozen=True, slots=True)
class Dump:
    """One agent as Redis has it: ``ready`` and ``pending`` by ready id, the room and the consumer."""

    mode: str
    ready: list[tuple[str, str]]
    pending: dict[str, str]
    held: set[str]
    processing: dict[str, int]
    listed: set[str]
    rooms: dict[str, RoomDump]


class Wire:
    """Runs scripts of one agent synchronously; errors of Redis are raised after all replies were read."""

    def __init__(self, url: str, scripts: Mapping[str, Script]) -> None:
        self._redis = Redis.from_url(url, protocol=2)
        self._connection = self._redis.connection_pool.get_connection()
        self._shas = {name: script.sha for name, script in scripts.items()}
        texts = [script.text for script in scripts.values()] + [DUMP, LEFTOVERS, ERASE]
        loaded = [as_text(sha) for sha in self.send(*[("SCRIPT", "LOAD", text) for text in texts])]
        self._dump, self._leftovers, self._erase = loaded[-3:]
        self.keys = Keys("unnamed")

    def close(self) -> None:
        self._redis.connection_pool.release(self._connection)
        self._redis.close()

    def send(self, *commands: tuple[Word, ...]) -> list[Any]:
        """The replies to these commands, sent in one write."""
        packed = b"".join([hiredis.pack_command(words) for words in commands])  # type: ignore[arg-type]  # a union is as good
        self._connection.send_packed_command([packed])  # type: ignore[no-untyped-call]
        replies: list[Any] = []
        failed: ResponseError | None = None
        for _ in commands:
            try:
                replies.append(self._connection.read_response())
            except ResponseError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return replies

    def script(self, name: str, *args: Word) -> tuple[Word, ...]:
        """The command that runs this script."""
        return ("EVALSHA", self._shas[name], 1, self.keys.root, *args)

    def dump(self, rooms: list[str]) -> Dump:
        """The agent and these rooms at one instant."""
        mode, ready, pending, held, processing, listed, rows = self.send(("EVALSHA", self._dump, 1, self.keys.root, *rooms))[0]
        return Dump(
            mode=as_text(mode or ""),
            ready=[(as_text(entry_id), as_text(flat[1])) for entry_id, flat in ready],
            pending={as_text(row[0]): as_text(row[1]) for row in pending},
            held={as_text(room) for room in held},
            processing={name: int(score) for name, score in pairs(processing).items()},
            listed={as_text(room) for room in listed},
            rooms={room: _room(*row) for room, row in zip(rooms, rows, strict=True)},
        )

    def leftovers(self) -> dict[str, int]:
        """Every key of the agent but G itself, with its life in seconds: -1 is for ever."""
        found = self.send(("EVALSHA", self._leftovers, 1, self.keys.root))[0]
        return {as_text(key): int(ttl) for key, ttl in found}

    def erase(self) -> None:
        """Delete every key of the agent."""
        self.send(("EVALSHA", self._erase, 1, self.keys.root))


def _room(flat: list[bytes], messages: list[bytes], state: bytes | None, steps: list[bytes], ttl_s: int) -> RoomDump:
    done = {as_text(name): value for name, value in zip(steps[::2], steps[1::2], strict=True)}
    return RoomDump(pairs(flat), [as_text(entry_id) for entry_id in messages], state, done, ttl_s)
