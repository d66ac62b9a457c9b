"""The rights of an agent's Redis users: what the scripts and the clients send, and nothing else."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from greenroom.protocol import scripts as scripts_module
from greenroom.protocol.acl import COMMANDS, Role, command_line, rules, user_name
from greenroom.protocol.errors import InvalidName, InvalidRequest
from greenroom.protocol.scripts import scripts

OPERATORS = ("enqueue", "control", "discard", "requeue", "forget_relay")
SENT_BY_CLIENTS = {"evalsha", "script|load", "wait", "info"}
CONTAINERS = {"xgroup", "xinfo"}


def called(source: str) -> set[str]:
    """The commands that a script's text calls, as rules name them."""
    found = set()
    for call in re.finditer(r"call\('([A-Z]+)'", source):
        name = call[1].lower()
        if name in CONTAINERS:
            [subcommand] = re.findall(r"'([A-Z]+)'", source[call.end() :].partition(")")[0])[:1]
            name = f"{name}|{subcommand.lower()}"
        found.add(name)
    return found


def test_the_worker_may_do_what_the_scripts_do_and_no_writing_that_none_does() -> None:
    """row 48"""
    needed = set().union(*(called(script.text) for script in scripts().values()))
    granted = set(COMMANDS[Role.WORKER])
    assert needed <= granted
    assert granted - set(COMMANDS[Role.OBSERVER]) <= needed | SENT_BY_CLIENTS | {"xreadgroup"}


def test_the_operator_may_do_what_a_client_s_scripts_do_and_no_writing_that_none_of_them_does() -> None:
    """row 48"""
    needed = set().union(*(called(scripts()[name].text) for name in OPERATORS))
    granted = set(COMMANDS[Role.OPERATOR])
    # Of the prelude, which every script has in front of it, only a worker's part looks at who owns a room.
    assert needed <= granted
    assert granted - set(COMMANDS[Role.OBSERVER]) <= needed | SENT_BY_CLIENTS


def test_every_command_that_the_library_sends_by_itself_is_granted() -> None:
    root = Path(scripts_module.__file__ or "").parents[1]
    sources = "".join(path.read_text() for part in ("protocol", "actors", "supervisors") for path in (root / part).glob("*.py"))
    sent = set(re.findall(r'(?:command|ask|_tell)\((?:connection, )?"([A-Z]+)"', sources))
    sent |= set(re.findall(r'\("(X[A-Z]+|EVALSHA)", ', sources))
    assert {"XREADGROUP", "XREAD", "XRANGE", "HGETALL", "SUBSCRIBE", "PING"} <= sent
    granted = {command.partition("|")[0] for command in COMMANDS[Role.WORKER]}
    assert {word.lower() for word in sent} <= granted


def test_the_observer_may_write_nothing() -> None:
    """row 48"""
    writing = {"evalsha", "script|load", "publish", "xadd", "xreadgroup", "set", "hset", "del", "expire"}
    assert not writing & set(COMMANDS[Role.OBSERVER])


@pytest.mark.parametrize("role", Role)
def test_nobody_gets_what_looks_at_or_touches_other_keys_or_the_server(role: Role) -> None:
    """row 48"""
    for command in COMMANDS[role]:
        assert command.split("|")[0] not in {"keys", "scan", "config", "flushall", "flushdb", "client", "debug", "eval", "move"}
        assert command != "acl"


def test_an_agent_s_name_is_no_pattern() -> None:
    """row 48: the users of an agent called * have no other's keys"""
    assert r"~greenroom:{a\*\?\[b\]\\}" in rules("a*?[b]\\", Role.WORKER)


@pytest.mark.parametrize("agent", ["support", 'a"b', "a'b", r"a\b", "a*b", "größe", "#1", "-x"])
def test_a_line_is_read_back_by_a_shell_like_reader_as_it_was_meant(agent: str) -> None:
    line = command_line(agent, Role.WORKER, "secret")
    assert shlex.split(line) == ["ACL", "SETUSER", user_name(agent, Role.WORKER), *rules(agent, Role.WORKER, "secret")]


def test_a_line_holds_the_hash_of_the_password_and_not_the_password() -> None:
    line = command_line("support", Role.OBSERVER, "hunter2")
    assert "hunter2" not in line
    assert " reset on #f52fbd32b2b3b86ff88ef6c490628285f482af15ddcb29541f94bcf526a3f6c7 " in line


def test_without_a_password_a_user_keeps_the_ones_it_has() -> None:
    assert rules("support", Role.WORKER)[:2] == ["on", "resetkeys"]


def test_an_empty_password_and_a_name_that_is_none_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        rules("support", Role.WORKER, "")
    with pytest.raises(InvalidName):
        rules("a b", Role.WORKER)
