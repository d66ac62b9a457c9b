"""``relays``: those for which outputs are kept are listed, and one that is gone for good is forgotten."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
import redis as redis_py

from greenroom import Client
from greenroom.protocol.keys import Keys
from integration.agents import Director, eventually
from integration.command import Shell
from integration.conftest import Running
from integration.receiver import Receiver, Relaying, lose, wait_delivered


def test_a_relay_is_listed_with_who_hands_over_when_it_was_heard_of_and_what_waits_for_it(
    shell: Shell, client: Client, running: Running, director: Director, relaying: Relaying, redis: redis_py.Redis, keys: Keys
) -> None:
    running(director.agent())
    relay = relaying(name="chat")
    client.ask("42", "hello")
    wait_delivered(redis, keys, "chat")
    [runs] = shell.json("relays")
    assert (runs["name"], runs["holder"], runs["rooms"], runs["oldest"]) == ("chat", relay._duty.token, 0, None)
    lose(relay)
    eventually(lambda: client.relays()[0].holder is None, "its lease runs out")
    first = client.send("43", "hello")
    client.ask("42", "one")
    client.ask("42", "two")
    eventually(lambda: client.status("43").waiting == 0, "it is answered")
    [gone] = client.relays()
    assert gone.rooms == 2
    assert gone.since is not None
    assert gone.seen_at is not None
    assert gone.oldest is not None
    assert gone.since <= gone.seen_at < gone.oldest
    assert abs(gone.oldest - dt.datetime.fromtimestamp(first / 1e6, dt.UTC)) < dt.timedelta(seconds=30)
    header, row = shell("relays", "list")[0].splitlines()
    assert header.split("\t") == ["relay", "runs as", "seen", "rooms", "oldest", "since"]
    assert row.split("\t")[:2] == ["chat", "NOBODY"]


def test_the_oldest_output_that_waits_is_found_among_many_rooms(
    shell: Shell, client: Client, relaying: Relaying, redis: redis_py.Redis, keys: Keys
) -> None:
    relaying().stop()
    places: Any = {f"room-{number}": f"{1_700_000_000_000 + number}-0" for number in range(3000, 0, -1)}
    redis.hset(keys.undelivered("relay"), mapping={**places, "broken": "yesterday"})
    [found] = client.relays()
    assert found.rooms == 3001
    assert found.oldest == dt.datetime.fromtimestamp(1_700_000_000.001, dt.UTC)


def test_a_relay_that_is_gone_is_forgotten_if_one_is_sure_and_one_that_runs_is_not(
    shell: Shell, client: Client, relaying: Relaying, receiver: Receiver, redis: redis_py.Redis, keys: Keys
) -> None:
    relay = relaying(name="chat")
    assert "runs as" in shell.refused("relays", "forget", "chat", "--yes", code=1)
    relay.stop()
    assert "say --yes" in shell.refused("relays", "forget", "chat", code=2)
    assert [row["name"] for row in shell.json("relays")] == ["chat"]
    assert shell("relays", "forget", "chat", "--yes") == ("", "")
    assert shell.json("relays") == []
    assert not redis.exists(keys.relays, keys.relays_seen)
    assert "no relay chat" in shell.refused("relays", "forget", "chat", "--yes", code=1)


@pytest.mark.parametrize("arguments", [["forget"], ["foo"], ["list", "foo"], ["--foo"], ["forget", "a b", "c"]])
def test_what_relays_does_not_know_is_wrong_usage(arguments: list[str], shell: Shell) -> None:
    shell.refused("relays", *arguments, code=2)


def test_relays_tells_its_commands(shell: Shell) -> None:
    out, err = shell("relays", "--help")
    assert err == ""
    assert "forget" in out
