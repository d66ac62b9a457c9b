"""Every key that exists for an agent, and what it is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from .acl import literally
from .errors import RedisRefused
from .keys import Keys
from .records import text
from .store import Store

PAGE, SCANS = 1000, 200  # names that are looked at together; so often in a short look
MOST_NAMED = 10
_ROOT = re.compile(r"greenroom:\{([^{}]+)\}")


@dataclass(frozen=True, slots=True)
class KeyKind:
    """Keys that are alike. ``name`` is what follows the agent's namespace, ``{}`` in the place of a name."""

    name: str
    type: str
    what: str

    def matches(self, rest: str) -> bool:
        return re.fullmatch(re.escape(self.name).replace(r"\{\}", ".+"), rest) is not None


# The more specific first.
KINDS = (
    KeyKind("", "hash", "the agent: its clock, its mode and why, the instance of its data"),
    KeyKind(":ready", "stream", "rooms that may run; its group has who owns which"),
    KeyKind(":processing", "zset", "rooms with a live cycle, by ticket"),
    KeyKind(":held", "set", "rooms that have work and are stopped or paused"),
    KeyKind(":rooms", "zset", "rooms that have work, a mode or state, by last activity"),
    KeyKind(":control", "stream", "the signals and what came of them, the newest"),
    KeyKind(":events", "stream", "what happened, the newest"),
    KeyKind(":dead", "stream", "dead letters: each stays until it is put back, dropped, or beyond the limit"),
    KeyKind(":workers", "set", "workers that may own rooms"),
    KeyKind(":worker:{}", "hash", "a worker's lease: it lives while this is there"),
    KeyKind(":relays", "hash", "the registered relays, and since when"),
    KeyKind(":relays:seen", "hash", "when each relay was last heard of"),
    KeyKind(":relay:{}", "string", "a relay's lease: the process that hands over"),
    KeyKind(":undelivered:{}", "hash", "rooms with outputs that a relay is not done with"),
    KeyKind(":aborted:{}", "set", "aborted cycles of a room whose outputs a relay is not done with"),
    KeyKind(":signal:{}", "string", "a signal that was applied, so that it is not applied again"),
    KeyKind(":seen:{}", "string", "a request that was answered, so that it is not carried out again"),
    KeyKind(":room:{}:messages", "stream", "a room's queue; the first is the one in processing"),
    KeyKind(":room:{}:outbox", "stream", "what a room has sent: the newest, for some days"),
    KeyKind(":room:{}:state", "string", "a room's state, as its last commit left it"),
    KeyKind(":room:{}:steps", "hash", "steps of the message in processing: done, or begun"),
    KeyKind(":room:{}", "hash", "a room: its phase, owner, mode and why, attempt, last error"),
)
UNKNOWN = KeyKind("?", "", "nothing that this version of greenroom writes")
_BY_HEAD: dict[str, list[KeyKind]] = {}
for _kind in KINDS:
    _BY_HEAD.setdefault(_kind.name.split(":")[1] if _kind.name else "", []).append(_kind)
_SIZE = {"string": "STRLEN", "hash": "HLEN", "set": "SCARD", "zset": "ZCARD", "stream": "XLEN"}


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """A key as it is. ``size`` is in bytes for a string, else in entries; ``ttl_s`` None: it does not expire."""

    key: str
    kind: KeyKind
    type: str
    size: int | None
    ttl_s: int | None


async def agents_instead(store: Store) -> list[str] | None:
    """None if Redis has anything of the store's agent, else the agents that it has, the likest names first, as far as a short
    look finds them.
    """
    keys, command, cursor, found = store.keys, store.pipeline.command, b"0", set[str]()
    if await command("EXISTS", keys.root, keys.rooms, keys.control, keys.relays):
        return None
    try:
        for _ in range(SCANS):
            words = ("SCAN", cursor, "MATCH", "greenroom:{*}", "COUNT", PAGE)
            cursor, page = await command(*words)
            found |= {name[1] for name in map(_ROOT.fullmatch, map(text, page)) if name}
            if cursor == b"0":
                break
    except RedisRefused:  # an agent's own users may not
        pass
    return sorted(found, key=lambda name: (-SequenceMatcher(None, keys.agent, name).ratio(), name))


def no_such_agent(agent: str, others: list[str]) -> str:
    """What to say of it."""
    more = "" if len(others) <= MOST_NAMED else " and more"
    named = f"; agents that are: {', '.join(others[:MOST_NAMED])}{more}" if others else ""
    return f"there is no agent {agent} in this Redis{named}"


class Keyspace:
    """The keys of one agent. ``complete`` is false once it turned out that this user may not SCAN."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.complete = True

    def kind(self, key: str) -> KeyKind:
        rest = key.removeprefix(self._store.keys.root)
        alike = _BY_HEAD.get(rest.split(":", 2)[1] if rest else "", ())
        return next((kind for kind in alike if kind.matches(rest)), UNKNOWN)

    async def pages(self) -> AsyncIterator[list[str]]:
        """Names of keys, each once. Who may not SCAN gets those whose names can be known."""
        seen = set[str]()
        try:
            async for page in self._scan():
                fresh = [key for key in dict.fromkeys(page) if key not in seen]
                seen.update(fresh)
                yield fresh
        except RedisRefused:
            self.complete = False
            async for page in self._known():
                page = [key for key in dict.fromkeys(page) if key not in seen]
                seen.update(page)
                present = await asyncio.gather(*[self._store.pipeline.command("EXISTS", key) for key in page])
                yield [key for key, there in zip(page, present, strict=True) if there]

    async def _scan(self) -> AsyncIterator[list[str]]:
        root, cursor = self._store.keys.root, b"0"
        while True:
            words = ("SCAN", cursor, "MATCH", f"{literally(root)}*", "COUNT", PAGE)
            cursor, page = await self._store.pipeline.command(*words)
            yield [key for key in map(text, page) if key == root or key.startswith(f"{root}:")]
            if cursor == b"0":
                return

    async def _known(self) -> AsyncIterator[list[str]]:
        keys, command = self._store.keys, self._store.pipeline.command
        yield [f"{keys.root}{kind.name}" for kind in KINDS if "{}" not in kind.name]
        workers, relays = await asyncio.gather(command("SMEMBERS", keys.workers), command("HKEYS", keys.relays))
        yield [keys.worker(text(name)) for name in workers]
        yield [of(text(name)) for name in relays for of in (keys.relay, keys.undelivered)]
        cursor = b"0"
        while True:
            cursor, flat = await command("ZSCAN", keys.rooms, cursor, "COUNT", PAGE)
            yield [key for room in flat[::2] for key in of_room(keys, text(room))]
            if cursor == b"0":
                return

    async def look(self, keys: list[str]) -> list[KeyFacts]:
        """These keys as they are now; those that are gone are left out."""
        command = self._store.pipeline.command
        types = list(map(text, await asyncio.gather(*[command("TYPE", key) for key in keys])))
        there = [(key, kind) for key, kind in zip(keys, types, strict=True) if kind != "none"]
        sizes = [command(_SIZE[kind], key) if kind in _SIZE else _nothing() for key, kind in there]
        lives = [command("TTL", key) for key, _ in there]
        answers: list[Any] = await asyncio.gather(*sizes, *lives)
        return [
            KeyFacts(key, self.kind(key), kind, size, None if life < 0 else life)
            for (key, kind), size, life in zip(there, answers[: len(there)], answers[len(there) :], strict=True)
        ]


def of_room(keys: Keys, room: str) -> list[str]:
    """The keys that a room may have."""
    return [keys.room(room), keys.messages(room), keys.outbox(room), keys.state(room), keys.steps(room), keys.aborted(room)]


async def _nothing() -> None:
    return None
