"""Every Redis key, and the rules for names. The scripts build the same keys in ``lua/prelude.lua``."""

from __future__ import annotations

import unicodedata

from .errors import InvalidName

MAX_NAME_BYTES = 256
_PARTS = (":messages", ":outbox", ":state", ":steps")  # what a room's own keys end in


def check_name(name: object, what: str) -> str:
    """Return ``name`` if it is 1 to 256 bytes of UTF-8 without white space or control characters.

    Raises:
        InvalidName: with the rule that is broken.
    """
    if not isinstance(name, str):
        raise InvalidName(f"{what}: want a string, got {type(name).__name__}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"{what} {name!r}: not valid UTF-8") from None
    if not 1 <= size <= MAX_NAME_BYTES:
        raise InvalidName(f"{what} {name[:40]!r}: want 1 to {MAX_NAME_BYTES} bytes, got {size}")
    if any(c.isspace() or unicodedata.category(c) == "Cc" for c in name):
        raise InvalidName(f"{what} {name!r}: white space and control characters are not allowed")
    return name


def check_room(name: object) -> str:
    """Return ``name`` if it is a valid room id: one whose key is no key of another room.

    Raises:
        InvalidName: with the rule that is broken.
    """
    room = check_name(name, "room")
    if room.endswith(_PARTS):
        raise InvalidName(f"room {room!r}: it must not end in {', '.join(_PARTS)}: another room's keys do")
    return room


def check_agent(name: object) -> str:
    """Return ``name`` if it is a valid name without braces (they would move the Cluster hash tag)."""
    agent = check_name(name, "agent")
    if "{" in agent or "}" in agent:
        raise InvalidName(f"agent {agent!r}: braces are not allowed")
    return agent


class Keys:
    """The keys of one agent, all in one Redis Cluster slot.

    Raises:
        InvalidName: for an agent name with braces, white space or control characters.
    """

    def __init__(self, agent: str) -> None:
        self.agent = check_agent(agent)
        self.root = f"greenroom:{{{agent}}}"
        self.ready = f"{self.root}:ready"
        self.processing = f"{self.root}:processing"
        self.held = f"{self.root}:held"
        self.rooms = f"{self.root}:rooms"
        self.control = f"{self.root}:control"
        self.dead = f"{self.root}:dead"
        self.events = f"{self.root}:events"
        self.workers = f"{self.root}:workers"
        self.relays = f"{self.root}:relays"
        self.relays_seen = f"{self.root}:relays:seen"

    def room(self, room: str) -> str:
        return f"{self.root}:room:{room}"

    def messages(self, room: str) -> str:
        return f"{self.root}:room:{room}:messages"

    def outbox(self, room: str) -> str:
        return f"{self.root}:room:{room}:outbox"

    def state(self, room: str) -> str:
        return f"{self.root}:room:{room}:state"

    def steps(self, room: str) -> str:
        return f"{self.root}:room:{room}:steps"

    def worker(self, name: str) -> str:
        return f"{self.root}:worker:{name}"

    def relay(self, name: str) -> str:
        return f"{self.root}:relay:{name}"

    def undelivered(self, name: str) -> str:
        return f"{self.root}:undelivered:{name}"

    def aborted(self, room: str) -> str:
        return f"{self.root}:aborted:{room}"
