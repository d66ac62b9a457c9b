"""``tail --events`` and ``signals``: what has happened, and who has signalled what with which outcome."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
import redis as redis_py

from greenroom import Client
from greenroom.protocol.keys import Keys
from integration.agents import Director, eventually, wait_event
from integration.command import Shell
from integration.conftest import Running

from started import Started

GREENROOM = [sys.executable, "-m", "greenroom"]


def test_events_of_the_agent_and_of_a_room_are_told_the_newest_last(
    shell: Shell, client: Client, running: Running, director: Director, redis: redis_py.Redis, agent: str
) -> None:
    system = running(director.agent(max_attempts=1))
    client.send("42", "fail")
    wait_event(redis, agent, "message.dead")
    client.ask("43", "hello")
    client.stop("42", "43", reason="why")
    kinds = ["worker.joined", "cycle.failed", "message.dead", "cycle.committed", "signal.applied"]
    found = shell.json("tail", "--events")
    assert [event["kind"] for event in found] == kinds
    assert [event["kind"] for event in shell.json("tail", "42", "--events")] == [
        "cycle.failed",
        "message.dead",
        "signal.applied",
    ]
    assert [event["kind"] for event in shell.json("tail", "4", "--events")] == []
    assert shell.json("tail", "--events", "--last", "2") == found[-2:]
    assert shell.json("tail", "42", "--events", "-n", "1") == found[-1:]
    assert shell.json("tail", "--events", "--after", found[2]["id"]) == found[3:]
    failed, dead, _ = shell("tail", "42", "--events")[0].splitlines()
    facts = ["cycle.failed", "42", str(found[1]["message"]), "1", system.name, "RuntimeError: fail"]
    assert failed.split("\t")[1:] == facts
    assert dead.endswith("RuntimeError: fail attempts=1")


def test_the_last_outputs_of_a_room_are_told(shell: Shell, client: Client, running: Running, director: Director) -> None:
    running(director.agent())
    for word in ("one", "two", "three"):
        client.ask("42", word)
    assert [output["body"] for output in shell.json("tail", "42", "--last", "2")] == ["two", "three"]
    assert [output["body"] for output in shell.json("tail", "42", "--last", "9")] == ["one", "two", "three"]


@pytest.mark.parametrize("arguments", [[], ["--follow"], ["--last", "2"]])
def test_a_tail_of_nothing_in_particular_is_wrong_usage(arguments: list[str], shell: Shell) -> None:
    assert "name a room, or --events" in shell.refused("tail", *arguments, code=2)


def test_signals_tell_by_whom_why_and_with_which_outcome(shell: Shell, client: Client) -> None:
    client.stop("42", "43", reason="wrong answers", by="ann", cid="c-1")
    client.stop("42", by="bob", cid="c-2")
    client.interrupt("43", message=7, cid="c-3")
    client.pause(everywhere=True, cid="c-4")
    told = [(each["cid"], each["mode"], each["room"], each["outcome"], each["message"]) for each in shell.json("signals")]
    assert told == [
        ("c-1", "stop", "42", "applied", None),
        ("c-1", "stop", "43", "applied", None),
        ("c-2", "stop", "42", "already", None),
        ("c-3", "interrupt", "43", "held", 7),
        ("c-4", "pause", None, "applied", None),
    ]
    assert [each["cid"] for each in shell.json("signals", "--room", "42")] == ["c-1", "c-2", "c-4"]
    assert [each["cid"] for each in shell.json("signals", "--last", "2")] == ["c-3", "c-4"]
    first, *_, last = shell("signals")[0].splitlines()
    assert first.split("\t")[1:] == ["stop", "42", "applied", "-", "ann", "wrong answers", "c-1"]
    assert last.split("\t")[1:4] == ["pause", "(everywhere)", "applied"]


def test_a_hand_written_signal_is_told_before_a_worker_has_read_it_and_its_outcome_after(
    shell: Shell, client: Client, running: Running, director: Director, redis: redis_py.Redis, keys: Keys
) -> None:
    """row 19: with no worker there, the operator sees that nobody has acted on it"""
    stop = str(redis.xadd(keys.control, {"mode": "stop", "room": "42", "by": "ops"}))
    junk = str(redis.xadd(keys.control, {"mode": "stoop", "message": "x"}))
    waiting = shell.json("signals")
    assert [(each["id"], each["cid"], each["outcome"], each["read"]) for each in waiting] == [
        (stop, stop, None, False),
        (junk, junk, None, False),
    ]
    assert shell("signals")[0].splitlines()[0].split("\t")[1:6] == ["stop", "42", "by hand, not read yet", "-", "ops"]
    running(director.agent())
    wait_event(redis, keys.agent, "signal.malformed")
    first, second, outcome = shell.json("signals")
    assert first["read"]
    assert second["read"]
    assert (outcome["cid"], outcome["outcome"], outcome["room"]) == (stop, "applied", "42")
    said = [line.split("\t")[3] for line in shell("signals", "--last", "3")[0].splitlines()]
    assert said == ["by hand, read", "no signal", "applied"]


@pytest.mark.parametrize("last", [[], ["--last", "1"]])
@pytest.mark.parametrize("command", [["tail", "--events"], ["signals", "--room", "42"]])
def test_events_and_signals_are_followed_until_ctrl_c(
    command: list[str], last: list[str], agent: str, redis_url: str, client: Client
) -> None:
    for cid in ("c-1", "c-2"):
        client.stop("42", cid=cid)
    words = [*GREENROOM, *command, "--follow", "--json", *last, "--agent", agent, "--redis", redis_url]

    def cid_of(line: str) -> str:
        entry = json.loads(line)
        return str(entry.get("cid") or entry["details"]["cid"])

    with Started(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        try:
            assert following.stdout is not None
            before = ["c-2"] if last else ["c-1", "c-2"]
            assert [cid_of(following.stdout.readline()) for _ in before] == before
            client.play("42", cid="c-3")
            assert cid_of(following.stdout.readline()) == "c-3"
            following.send_signal(signal.SIGINT)
            assert "".join(following.communicate(timeout=30)).strip() == ""
        finally:
            following.kill()
    assert following.returncode == 130


def test_a_client_follows_signals(client: Client) -> None:
    client.stop("42", cid="c-1")
    following = client.signals(follow=True)
    assert next(following).cid == "c-1"
    client.play("42", cid="c-2")
    second = next(following)
    assert (second.cid, second.mode, second.outcome) == ("c-2", "play", "applied")
    assert [entry.cid for entry in client.signals(after=second.id)] == []
    assert eventually(lambda: [entry.cid for entry in client.signals()], "all") == ["c-1", "c-2"]
