"""``rooms``, ``status`` and ``workers``: which rooms are listed, in which order, and who has them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from greenroom import ActorSystem, Backoff, Client, InvalidRequest
from greenroom.protocol.keys import Keys
from greenroom.protocol.server import RedisServer
from integration.agents import Director, abandon, eventually
from integration.command import Shell
from integration.conftest import Running

from helpers import unique

HOUR = timedelta(hours=1)
ALL = {"runs", "runs-too", "fails", "stopped", "paused", "stopped-idle", "remembers"}


@pytest.fixture(scope="module")
def agent() -> str:
    """One agent for the tests that only look: its rooms are in every phase."""
    return unique("agent")


@pytest.fixture(scope="module", autouse=True)
def worker(agent: str, redis_server: RedisServer) -> Iterator[str]:
    """Its worker's name."""
    director, name = Director(), unique("worker")
    agent_class = director.agent(retry=Backoff(first=HOUR, most=HOUR))
    with ActorSystem(agent_class, agent=agent, redis=redis_server.url, name=name):
        with Client(agent, redis=redis_server.url, by="ann") as client:
            client.send("runs", "wait")
            client.send("runs", "next")
            director.run("runs")
            client.send("runs-too", "wait")
            director.run("runs-too")
            client.send("fails", "fail: no model")
            eventually(lambda: client.status("fails").phase == "backoff", "the failed room waits")
            client.send("remembers", "wait")
            remembering = director.run("remembers")
            remembering.do(lambda cycle: cycle.state.update(n=1))
            remembering.finish()
            eventually(lambda: client.status("remembers").waiting == 0, "the state is committed")
            client.stop("stopped", "stopped-idle", reason="wrong answers")
            client.pause("paused")
            for room in ("stopped", "paused", "paused", "paused"):
                client.send(room, "later")
        yield name
        for run in director.runs:
            run.finish()  # those that still wait


def names(rows: list[Any]) -> list[str]:
    return [row["room"] for row in rows]


@pytest.mark.parametrize(
    ("options", "rooms"),
    [
        ([], ALL),
        (["--phase", "processing"], {"runs", "runs-too"}),
        (["--phase", "backoff"], {"fails"}),
        (["--phase", "queued"], set()),
        (["--phase", "held"], {"stopped", "paused"}),
        (["--mode", "stop"], {"stopped", "stopped-idle"}),
        (["--mode", "pause"], {"paused"}),
        (["--mode", "play"], {"runs", "runs-too", "fails", "remembers"}),
        (["--mode", "stop", "--phase", "held"], {"stopped"}),
        (["--worker", "WORKER"], {"runs", "runs-too", "fails"}),
        (["--worker", "WORKER", "--phase", "backoff"], {"fails"}),
        (["--worker", "nobody"], set()),
    ],
)
@pytest.mark.parametrize("sort", ["activity", "room"])
def test_rooms_lists_those_that_fit(options: list[str], rooms: set[str], sort: str, shell: Shell, worker: str) -> None:
    options = [worker if word == "WORKER" else word for word in options]
    found = names(shell.json("rooms", "--sort", sort, *options))
    assert len(found) == len(rooms)
    assert set(found) == rooms


def test_rooms_are_sorted_by_activity_age_queue_or_name(shell: Shell, redis: redis_py.Redis, agent: str) -> None:
    scores: Any = redis.zrange(Keys(agent).rooms, 0, -1, withscores=True)
    score = dict(scores)
    by_activity = names(shell.json("rooms"))
    assert all(score[room] >= score[after] for room, after in pairwise(by_activity))
    assert names(shell.json("rooms", "--sort", "age"))[:2] == ["runs", "runs-too"]
    assert names(shell.json("rooms", "--sort", "waiting"))[:2] == ["paused", "runs"]
    assert names(shell.json("rooms", "--sort", "room")) == sorted(ALL)
    assert names(shell.json("rooms", "--sort", "room", "--limit", "2")) == sorted(ALL)[:2]


def test_rooms_says_who_holds_a_room_and_why_and_what_has_failed(shell: Shell) -> None:
    header, *lines = shell("rooms")[0].splitlines()
    assert header.split("\t") == [
        "room",
        "phase",
        "hold",
        "waiting",
        "owner",
        "since",
        "processing",
        "attempt",
        "retry",
        "says",
    ]
    says = {line.split("\t")[0]: line.split("\t")[-1] for line in lines}
    assert says["stopped"] == "by ann: wrong answers"
    assert says["paused"] == "by ann"
    assert says["fails"] == "RuntimeError: fail: no model"
    assert says["runs"] == "-"


@pytest.mark.parametrize(
    "options", [["--phase", "asleep"], ["--mode", "interrupt"], ["--sort", "colour"], ["--limit", "0"], ["--limit", "x"]]
)
def test_a_filter_or_an_order_that_there_is_not_is_wrong_usage(options: list[str], shell: Shell) -> None:
    shell.refused("rooms", *options, code=2)


@pytest.mark.parametrize(
    "options", [{"phase": "asleep"}, {"mode": "interrupt"}, {"mode": "x"}, {"sort": "colour"}, {"limit": -1}], ids=str
)
def test_a_client_refuses_them_too(options: dict[str, Any], redis_url: str, agent: str) -> None:
    with Client(agent, redis=redis_url) as client, pytest.raises(InvalidRequest, match=next(iter(options))):
        list(client.rooms(**options))


def test_status_of_the_agent_counts_its_rooms_and_tells_since_when_the_oldest_cycle_runs(
    shell: Shell, redis_url: str, agent: str
) -> None:
    [whole] = shell.json("status")
    counts = {name: whole[name] for name in ("rooms", "waiting", "processing", "held", "dead")}
    assert counts == {"rooms": len(ALL), "waiting": 1, "processing": 2, "held": 2, "dead": 0}
    with Client(agent, redis=redis_url) as client:
        overview, oldest = client.overview(), client.status("runs").claimed_at
    assert overview.oldest is not None
    assert oldest is not None
    assert abs(overview.oldest - oldest) < timedelta(seconds=1)


def test_workers_tells_who_lives_since_when_and_owns_how_many_rooms(shell: Shell, worker: str) -> None:
    [found] = shell.json("workers")
    assert (found["name"], found["alive"], found["owns"]) == (worker, True, 3)
    since, renewed = (dt.datetime.fromisoformat(found[name]) for name in ("since", "renewed_at"))
    assert since < renewed + timedelta(milliseconds=1)  # the heartbeat's time is in whole ms
    assert found["pid"] > 0
    header, row = shell("workers")[0].splitlines()
    facts = dict(zip(header.split("\t"), row.split("\t"), strict=True))
    assert (facts["worker"], facts["alive"], facts["owns"]) == (worker, "yes", "3")
    assert facts["incarnation"] == str(found["incarnation"])


# With agents of their own. --------------------------------------------------------------------------------


@pytest.fixture
def another(monkeypatch: pytest.MonkeyPatch, shell: Shell) -> str:
    """An agent that commands are about in this test, which has nothing."""
    name = unique("agent")
    monkeypatch.setenv("GREENROOM_AGENT", name)
    return name


def test_what_lists_rooms_and_workers_is_empty_for_an_agent_that_never_was(shell: Shell, another: str) -> None:
    for command in (["rooms"], ["rooms", "--worker", "w"], ["rooms", "--phase", "queued"], ["workers"], ["dead", "list"]):
        assert shell.json(*command) == []
        assert len(shell(*command)[0].splitlines()) == 1, "the names of the columns"


def test_that_there_is_no_such_agent_is_told_people(shell: Shell, another: str) -> None:
    looks = (["status"], ["rooms"], ["workers"], ["signals"], ["tail", "42"], ["dead", "list"], ["relays"], ["keys"], ["top"])
    for command in looks:
        err = shell(*command)[1]
        assert err.startswith(f"greenroom: there is no agent {another} in this Redis")
        assert err.count("\n") == 1
    shell("stop", "42")
    assert [shell(*command)[1] for command in looks] == [""] * len(looks)


def test_a_worker_whose_lease_has_run_out_is_told_while_it_owns_rooms(
    shell: Shell, another: str, redis_url: str, director: Director, running: Running
) -> None:
    with Client(another, redis=redis_url) as client:
        system = running(director.agent(), agent=another, lease=timedelta(seconds=1))
        client.send("42", "wait")
        director.run("42")
        abandon(system)
        gone = eventually(lambda: [each for each in client.workers() if not each.alive], "its lease runs out")
    assert [(each.name, each.owns) for each in gone] == [(system.name, 1)]
    assert shell("workers")[0].splitlines()[1].split("\t")[:3] == [system.name, "NO", "1"]


def test_what_nobody_but_greenroom_should_have_written_hides_nothing_else(
    shell: Shell, another: str, redis_url: str, redis: redis_py.Redis
) -> None:
    """row 15: garbage where rooms and workers are looked for"""
    keys = Keys(another)
    with Client(another, redis=redis_url) as client:
        client.send("good", "later")
        client.stop("broken")
    redis.hset(keys.room("broken"), "phase", "garbage")
    redis.xadd(keys.ready, {"what": "ever"})
    redis.xadd(keys.control, {b"\xff": b"\xff"})
    redis.xadd(keys.events, {b"\xff": b"\xff"})
    redis.sadd(keys.workers, b"\xff", "w")
    redis.hset(keys.worker("w"), mapping={"beat": "yesterday", "pid": "x", "incarnation": "9" * 40})
    assert names(shell.json("rooms", "--phase", "queued")) == ["good"]
    assert set(names(shell.json("rooms"))) == {"good", "broken"}
    assert [row["name"] for row in shell.json("workers")] == ["\\xff", "w"]
    for command in (["signals"], ["tail", "--events"], ["top"], ["status"], ["keys"]):
        assert shell(*command)[1] == ""


def test_thousands_of_rooms_are_listed_once_each_over_many_pages_and_no_command_reads_them_all(
    shell: Shell, another: str, redis_dir: Path
) -> None:
    rooms = {f"room-{number}" for number in range(3000)}
    with RedisServer(redis_dir) as server, redis_py.Redis.from_url(server.url) as redis:
        with Client(another, redis=server.url) as client:
            client.stop(*rooms)
            client.send("room-7", "later")
            client.send("free", "now")
        redis.config_resetstat()
        for sort in ("activity", "room"):
            found = names(shell.json("rooms", "--sort", sort, "--redis", server.url))
            assert len(found) == 3001
            assert set(found) == rooms | {"free"}
        assert names(shell.json("rooms", "--phase", "held", "--redis", server.url)) == ["room-7"]
        called: Any = redis.info("commandstats")
    assert "cmdstat_zscan" in called
    assert not called.keys() & {"cmdstat_keys", "cmdstat_scan", "cmdstat_smembers", "cmdstat_zrange", "cmdstat_sort"}
