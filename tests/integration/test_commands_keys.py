"""``keys``: every key that exists for an agent is listed and explained; and what a shell is told to complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as redis_py

from greenroom import Client
from greenroom.protocol.keys import Keys
from greenroom.protocol.keyspace import KINDS
from integration.agents import Director, wait_event
from integration.command import Shell
from integration.conftest import Running
from integration.receiver import Relaying

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"


def existing(redis: redis_py.Redis, keys: Keys) -> set[str]:
    found = map(str, redis.scan_iter(f"{keys.root}*", count=1000))
    return {key for key in found if key == keys.root or key.startswith(f"{keys.root}:")}


@pytest.fixture
def everything(
    running: Running, relaying: Relaying, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> Iterator[None]:
    """An agent with a key of every kind."""
    system = running(director.agent(max_attempts=1))
    relay = relaying(name="web", max_rooms=1)
    client.send("room:42", "wait")
    run = director.run("room:42")
    run.do(lambda cycle: cycle.step("once", lambda: 1))
    client.send("dead", "fail")
    wait_event(redis, keys.agent, "message.dead")
    client.send("state", "wait")
    keeping = director.run("state")
    keeping.do(lambda cycle: cycle.state.update(n=1))
    keeping.finish()
    client.stop("held")
    client.send("held", "later")
    redis.hset(keys.undelivered("gone"), "room:42", "1-1")  # of a relay that hangs, and so has outputs left
    redis.sadd(keys.aborted("room:42"), "7")
    yield
    run.finish()
    relay.stop()
    system.stop()


def test_every_key_is_listed_with_what_it_is(
    everything: None, shell: Shell, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    rows = {row["key"]: row for row in shell.json("keys", "--all")}
    assert rows.keys() == existing(redis, keys)
    assert {row["type"] for row in rows.values()} == {"hash", "string", "set", "zset", "stream"}
    kinds = {row["what"]: row for row in shell.json("keys")}
    assert kinds.keys() == {kind.what for kind in KINDS}, "one of each kind, and nothing that is none"
    assert {row["what"] for row in rows.values()} == kinds.keys()
    assert sum(row["keys"] for row in kinds.values()) == len(rows)
    room = rows[keys.room("room:42")]
    assert (room["type"], room["ttl"]) == ("hash", None)
    assert rows[keys.messages("held")]["size"] == 1
    assert rows[keys.outbox("dead")]["ttl"] > 600_000
    assert rows[keys.steps("room:42")]["what"].startswith("steps of the message")


def test_a_key_of_nobodys_or_of_another_type_is_told_and_another_agents_is_not(
    shell: Shell, redis: redis_py.Redis, keys: Keys
) -> None:
    redis.set(f"{keys.root}:what", "x")
    redis.set(keys.rooms, "x")
    redis.set(f"{keys.root}2", "x")
    redis.set(Keys(f"{keys.agent}-like").rooms, "x")
    rows = {row["key"]: row["what"] for row in shell.json("keys", keys.agent)}
    assert rows.keys() == {f"{keys.root}:what", keys.rooms}
    assert rows[f"{keys.root}:what"] == "nothing that this version of greenroom writes"
    assert rows[keys.rooms].endswith("(but it is a string, not a zset)")


def test_an_agent_without_keys_has_none(shell: Shell) -> None:
    assert shell("keys")[0] == "key\tkeys\ttype\tsize\tttl\twhat\n"
    shell.refused("keys", "a{b}", code=2)


def test_the_contract_lists_the_same_keys() -> None:
    section = PROTOCOL.read_text(encoding="utf-8").partition("## Keys")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `G(\S*)` \| (\w+)", section, re.MULTILINE)
    assert {(re.sub(r"<\w+>", "{}", name), kind) for name, kind in listed} == {(kind.name, kind.type) for kind in KINDS}


# Completion. ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "completed"), [("greenroom st", {"stop", "status"}), ("greenroom rooms --sort a", {"activity", "age"})]
)
def test_a_shell_is_told_what_may_come_next(words: str, completed: set[str]) -> None:
    asked = {"_GREENROOM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-m", "greenroom"]
    done = subprocess.run(command, env={**os.environ, **asked}, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert set(done.stdout.split()) == completed


def test_completion_can_be_installed(shell: Shell) -> None:
    assert "--install-completion" in shell("--help")[0]
    assert "--show-completion" in shell("--help")[0]
