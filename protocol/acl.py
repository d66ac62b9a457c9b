"""Redis ACL users of one agent: who works, who operates, who looks. Each may do what it needs, to this agent's keys only.

A script runs its commands as the user who sent it, so a user who may send scripts needs what they do;
``tests/unit/test_acl.py`` compares the commands below with those of the scripts.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum

from .errors import InvalidRequest
from .keys import Keys


class Role(StrEnum):
    """What a user of the agent's is for."""

    WORKER = "worker"  # runs rooms
    OPERATOR = "operator"  # sends, signals, discards, requeues, drops, and all that an observer does
    OBSERVER = "observer"  # reads, and changes nothing


_READS = (
    *("ping", "select", "time", "cluster|info", "cluster|slots"),
    *("acl|whoami", "multi", "discard"),  # what doctor finds out rights with
    *("exists", "get", "hexists", "hget", "hgetall", "hkeys", "hlen", "hmget", "hscan", "strlen", "ttl", "type"),
    *("scard", "sismember", "smembers", "sscan", "zcard", "zmscore", "zrange", "zrangebyscore", "zscan"),
    *("xlen", "xpending", "xrange", "xread", "xrevrange", "subscribe", "unsubscribe"),
)
_SENDS = (
    *("evalsha", "script|load", "publish", "wait", "info"),
    *("expire", "hdel", "hset", "hsetnx", "persist", "sadd", "set", "srem", "unlink"),
    *("xack", "xadd", "xdel", "xtrim", "zadd", "zrem"),
)
_WORKS = (
    *("del", "pexpire", "pttl", "srandmember", "xclaim", "xreadgroup"),
    *("xgroup|create", "xgroup|delconsumer", "xinfo|consumers", "xinfo|groups"),
)

COMMANDS: dict[Role, tuple[str, ...]] = {
    Role.OBSERVER: _READS,
    Role.OPERATOR: (*_READS, *_SENDS),
    Role.WORKER: (*_READS, *_SENDS, *_WORKS),
}


def user_name(agent: str, role: Role) -> str:
    """The name of the agent's user of that role."""
    return f"greenroom-{Keys(agent).agent}-{role}"


def rules(agent: str, role: Role, password: str | None = None) -> list[str]:
    """The rules of ``ACL SETUSER`` after the user's name.

    With a password they begin anew and hold its SHA-256 only; without, a user who is there keeps the passwords it has.

    Raises:
        InvalidName: the agent's name cannot be used.
        InvalidRequest: the password is empty.
    """
    root = literally(Keys(agent).root)
    begin = ["on"]
    if password is not None:
        if not password:
            raise InvalidRequest(f"the password of {user_name(agent, role)} is empty")
        begin = ["reset", "on", f"#{hashlib.sha256(password.encode()).hexdigest()}"]
    keys = ["resetkeys", f"~{root}", f"~{root}:*"]
    channels = ["resetchannels", f"&{root}:*"]
    return [*begin, *keys, *channels, "-@all", *(f"+{command}" for command in COMMANDS[role])]


def command_line(agent: str, role: Role, password: str | None = None) -> str:
    """The line for redis-cli that makes the user, or changes its rights. Raises as ``rules``."""
    return " ".join(map(_word, ("ACL", "SETUSER", user_name(agent, role), *rules(agent, role, password))))


def literally(text: str) -> str:
    """A pattern of Redis that matches this text only."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)


def _word(text: str) -> str:
    """A word as redis-cli reads it back."""
    if re.search(r"""["'\\]""", text):
        return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
    return text


# What each command is tried with: a dot stands for a key of the agent, and for a channel.
_TRIED_WITH = {
    **dict.fromkeys(("exists", "get", "hgetall", "hkeys", "hlen", "pttl", "scard", "smembers", "strlen", "ttl", "type"), "."),
    **dict.fromkeys(("subscribe", "unsubscribe", "xlen", "zcard"), "."),
    **dict.fromkeys(("del", "persist", "srandmember", "unlink", "xinfo|groups"), "."),
    **dict.fromkeys(("hget", "hexists", "hmget", "hdel", "sadd", "sismember", "srem", "zmscore", "zrem"), ". 1"),
    **dict.fromkeys(("publish", "xpending", "xinfo|consumers"), ". 1"),
    **dict.fromkeys(("expire", "pexpire", "set"), ". 1"),
    **dict.fromkeys(("hset", "hsetnx", "zadd"), ". 1 1"),
    **dict.fromkeys(("xrange", "xrevrange"), ". - +"),
    "select": "0",
    "zrange": ". 0 0",
    "zrangebyscore": ". 0 0",
    **dict.fromkeys(("hscan", "sscan", "zscan"), ". 0"),
    "xread": "STREAMS . 0",
    "evalsha": "0 1 .",
    "script|load": "return",
    "wait": "0 0",
    "xack": ". 1 0",
    "xadd": ". * 1 1",
    "xdel": ". 0",
    "xtrim": ". MAXLEN 1000",
    "xclaim": ". 1 1 0 0",
    "xgroup|create": ". 1 0",
    "xgroup|delconsumer": ". 1 1",
    "xreadgroup": "GROUP 1 1 STREAMS . >",
}


def trial(command: str, keys: Keys) -> list[str]:
    """The command as Redis would take it, to find out whether it may be sent. It is not meant to be executed."""
    key = f"{keys.root}:trial"
    words = [key if word == "." else word for word in _TRIED_WITH.get(command, "").split()]
    return [*command.upper().split("|"), *words]
