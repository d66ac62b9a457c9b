"""What an older worker does with what a newer greenroom, or a newer version of its agent, has written; and both side by side.

The newer ones are faked: ``greenroom run`` on an app that raises the versions as it is imported.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from greenroom import ActorSystem, Client, Kind, NewerVersion, Phase
from greenroom.protocol import codec, records
from greenroom.protocol.keys import Keys
from greenroom.protocol.scripts import scripts
from integration.agents import Director, events, eventually, ready_of, wait_event, wait_output
from integration.command import Process
from integration.conftest import Running
from integration.isolated_agents import Isolated

from helpers import unique

OLD, NEW = 1, 2
LINE = "local VERSION, LAYOUT = 1, 1\n"
APP = f"""
import os
from greenroom import Agent
from greenroom.protocol import records, scripts

RECORDS, STATE = int(os.environ["RECORDS"]), int(os.environ["STATE"])
whole = scripts._script
scripts._script = lambda name, text: whole(name, text.replace({LINE!r}, f"local VERSION, LAYOUT = {{RECORDS}}, 1\\n"))
records.VERSION = RECORDS

class Echo(Agent):
    max_attempts = 1
    state_version = STATE

    async def respond(self, message, cycle):
        cycle.state["count"] = cycle.state.get("count", 0) + 1
        return [RECORDS, STATE, message.attempt, message.body]

    def upgrade_state(self, state, version):
        return state
"""

Begin = Callable[..., Process]


@pytest.fixture
def begin(tmp_path: Path, redis_url: str, agent: str) -> Iterator[Begin]:
    """Starts a worker process of the given versions; ended with the test."""
    (tmp_path / "app.py").write_text(APP)
    started: list[Process] = []

    def start(*, records: int = OLD, state: int = OLD) -> Process:
        arguments = ("app:Echo", "--agent", agent, "--name", unique("process"), "--redis", redis_url)
        started.append(Process(tmp_path, *arguments, environment={"RECORDS": str(records), "STATE": str(state)}))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def send_newer(redis: redis_py.Redis, keys: Keys) -> Callable[[str, Any], int]:
    """Sends a message as a client of a newer greenroom does; answers its id."""
    enqueue: Any = redis.register_script(scripts()["enqueue"].text.replace(LINE, f"local VERSION, LAYOUT = {NEW}, 1\n"))

    def send(room: str, body: Any) -> int:
        _, entry, _ = enqueue(keys=[keys.root], args=[room, unique("key"), 60, 1000, codec.encode(body)])
        return records.read_id(entry)

    return send


def put_off(client: Client, room: str, times: int) -> None:
    """Wait until workers have looked at the room and put it back so many times."""
    seen = set[str | None]()

    def is_enough() -> bool:
        seen.add(ready_of(client, room))
        return len(seen - {None}) > times

    eventually(is_enough, f"{room} is put back {times} times")


def replies(client: Client, room: str) -> list[Any]:
    return [output.body for output in client.outputs(room) if output.kind is Kind.REPLY]


def test_scripts_and_python_know_the_same_versions() -> None:
    line = f"local VERSION, LAYOUT = {records.VERSION}, {records.LAYOUT}\n"
    assert all(line in script.text for script in scripts().values())


# Messages. ------------------------------------------------------------------------------------------------


def test_a_message_of_a_newer_version_waits_uncharged_until_a_newer_worker_takes_it(
    running: Running,
    director: Director,
    client: Client,
    redis: redis_py.Redis,
    agent: str,
    send_newer: Callable[[str, Any], int],
    begin: Begin,
) -> None:
    """row 50"""
    running(director.agent(max_attempts=1))
    message = send_newer("42", "newer")
    client.send("42", "after")
    wait_event(redis, agent, "message.newer", room="42", message=f"{message}-0")
    put_off(client, "42", 2)
    status = client.status("42")
    assert (status.phase, status.attempt, status.processing) == (Phase.BACKOFF, 0, None)
    assert "upgrade this worker" in str(status.last_error)
    assert client.ask("43", "another room") == "another room"
    assert (director.runs[0].room, client.overview().dead, replies(client, "42")) == ("43", 0, [])
    begin(records=NEW)
    output = wait_output(client, "42", lambda output: output.kind is Kind.REPLY)
    assert output.body == [NEW, OLD, 1, "newer"]
    wait_output(client, "42", lambda output: output.kind is Kind.REPLY and output.message > message)
    assert len(events(redis, agent, "message.newer", room="42")) == 1
    assert client.status("42").last_error is None


def test_a_newer_message_behind_an_older_one_is_not_taken_with_it(
    running: Running,
    director: Director,
    client: Client,
    redis: redis_py.Redis,
    agent: str,
    send_newer: Callable[[str, Any], int],
) -> None:
    running(director.agent(max_attempts=1))
    client.send("42", "wait")
    run = director.run("42")
    message = send_newer("42", "newer")
    run.finish("done")
    wait_event(redis, agent, "message.newer", room="42", message=f"{message}-0")
    assert replies(client, "42") == ["done"]
    client.discard("42", message)  # it is a message as any other for the rest
    client.send("42", "after")
    wait_output(client, "42", lambda output: output.body == "after")


def test_a_newer_message_is_held_by_a_stop_and_released_by_play_as_any_other(
    running: Running,
    director: Director,
    client: Client,
    redis: redis_py.Redis,
    agent: str,
    send_newer: Callable[[str, Any], int],
) -> None:
    running(director.agent())
    send_newer("42", "newer")
    wait_event(redis, agent, "message.newer", room="42")
    client.stop("42")
    assert client.status("42").phase is Phase.HELD
    client.play("42")
    put_off(client, "42", 1)


# State. -----------------------------------------------------------------------------------------------------


def test_a_state_of_a_newer_version_of_the_agent_leaves_its_message_uncharged_for_a_newer_worker(
    running: Running,
    director: Director,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
    redis_url: str,
    agent: str,
    begin: Begin,
) -> None:
    """row 50"""
    redis.set(keys.state("42"), codec.encode([NEW, {"count": 7}]))
    running(director.agent(max_attempts=1))
    message = client.send("42", "x")
    wait_event(redis, agent, "message.newer", room="42", message=f"{message}-0")
    put_off(client, "42", 2)
    status = client.status("42")
    assert (status.attempt, status.waiting, director.runs) == (0, 1, [])
    assert "the state is of version 2, this agent knows 1" in str(status.last_error)
    assert list(client.outputs("42")) == []
    begin(state=NEW)
    assert wait_output(client, "42", lambda output: output.final).body == [OLD, NEW, 1, "x"]
    with redis_py.Redis.from_url(redis_url) as raw:
        assert codec.decode(raw.get(keys.state("42"))) == [NEW, {"count": 8}]


def test_a_child_process_that_is_too_old_for_a_state_leaves_its_message_uncharged_too(
    running: Running, client: Client, redis: redis_py.Redis, keys: Keys, agent: str
) -> None:
    redis.set(keys.state("42"), codec.encode([NEW, {"count": 7}]))
    running(Isolated)  # it tries each message once
    client.send("42", "x")
    wait_event(redis, agent, "message.newer", room="42")
    put_off(client, "42", 2)
    assert (client.status("42").attempt, client.status("42").waiting, client.overview().dead) == (0, 1, 0)


# Side by side. ------------------------------------------------------------------------------------------------


def test_workers_of_two_versions_side_by_side_handle_every_message_once_in_order_and_on_its_first_attempt(
    client: Client, begin: Begin, send_newer: Callable[[str, Any], int]
) -> None:
    """row 50"""
    rooms, each = [f"room-{number}" for number in range(6)], 8
    workers = [begin(), begin(records=NEW, state=NEW)]
    for process in workers:
        process.wait_line()
    for number, room in itertools.product(range(each), rooms):
        send = send_newer if number % 3 == 2 else client.send
        send(room, number)
    for room in rooms:
        wait_output(client, room, lambda output: output.kind is Kind.REPLY and output.body[3] == each - 1)
        found = replies(client, room)
        assert [body for *_, body in found] == list(range(each))
        assert {attempt for _, _, attempt, _ in found} == {1}
        by = [version for version, *_ in found]
        assert by == sorted(by)  # from its first newer message or state on, no older worker runs the room
        assert set(by[2:]) == {NEW}
        assert not [output for output in client.outputs(room) if output.kind is Kind.FAILED]
    assert client.overview().dead == 0
    assert [process.stop() for process in workers] == [0, 0]


# The agent's data as a whole. -----------------------------------------------------------------------------------


def test_a_worker_refuses_data_of_a_newer_version_and_writes_nothing(
    director: Director, redis: redis_py.Redis, keys: Keys, redis_url: str, begin: Begin
) -> None:
    """row 50"""
    redis.hset(keys.root, "version", NEW)
    with pytest.raises(NewerVersion, match="version 2, here 1"):
        ActorSystem(director.agent(), agent=keys.agent, redis=redis_url).start()
    process = begin()
    assert process.exit_code() == 3
    assert "written by a newer greenroom" in process.output
    assert redis.keys(f"{keys.root}*") == [keys.root]
    assert redis.hgetall(keys.root) == {"version": str(NEW)}


def test_a_client_refuses_data_of_a_newer_version(client: Client, redis: redis_py.Redis, keys: Keys) -> None:
    redis.hset(keys.root, "version", NEW)
    for call in (lambda: client.send("42", "x"), lambda: client.stop("42"), client.overview):
        with pytest.raises(NewerVersion, match="upgrade"):
            call()
    assert redis.keys(f"{keys.root}*") == [keys.root]


def test_a_worker_at_work_gives_back_what_it_has_when_the_data_is_raised_to_a_newer_version(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """row 50"""
    system = running(director.agent(max_attempts=1))
    client.send("42", "wait")
    run = director.run("42")
    redis.hset(keys.root, "version", NEW)
    with pytest.raises(NewerVersion):
        system.wait(30)
    run.wait_cancelled()
    system.stop()
    status = client.status("42")
    assert (status.phase, status.attempt, status.waiting, status.ticket) == (Phase.QUEUED, 0, 1, None)
    redis.hset(keys.root, "version", OLD)
    running(director.agent(max_attempts=1))
    assert director.run("42").attempt == 1


def test_a_newer_dead_letter_is_neither_shown_nor_put_back_by_an_older_client(
    running: Running, director: Director, client: Client, redis_url: str, keys: Keys
) -> None:
    running(director.agent(max_attempts=1))
    client.send("42", "fail")
    wait_output(client, "42", lambda output: output.kind is Kind.DEAD)
    with redis_py.Redis.from_url(redis_url) as raw:
        entries: Any = raw.xrange(keys.dead)
        newer: Any = raw.xadd(keys.dead, {**entries[0][1], b"v": NEW, b"more": "x"})
        letters = client.dead_letters()
        assert next(letters).body == "fail"
        with pytest.raises(NewerVersion, match="dead letter"):
            next(letters)
        with pytest.raises(NewerVersion):
            client.requeue(newer.decode())
        assert raw.xlen(keys.dead) == 2
