"""A copy of Redis that is taken while all is at work is one moment of it, and work goes on from there when it is put back."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from greenroom import ActorSystem, Agent, Client, Cycle, Kind, Message
from greenroom.protocol import codec
from greenroom.protocol.keys import Keys
from greenroom.protocol.server import RedisServer, find_cli
from integration.agents import WAIT_S, Director, eventually, wait_for, wait_output

ROOMS = [f"room-{number}" for number in range(8)]
AT_ONCE = ("--repl-diskless-sync-delay", "0")  # by default a copy begins after 5 s


class Counts(Agent):
    """Replies with how many messages its room has had, by its state."""

    async def respond(self, message: Message, cycle: Cycle) -> Any:
        cycle.state["n"] = cycle.state.get("n", 0) + 1
        return [message.body, cycle.state["n"]]


@pytest.fixture
def server(redis_dir: Path) -> Iterator[RedisServer]:
    with RedisServer(redis_dir, extra=AT_ONCE) as server:
        yield server


def back_up(server: RedisServer, file: Path) -> None:
    """As docs/operations.md says."""
    cli = find_cli()
    assert cli is not None
    subprocess.run([cli, "-u", server.url, "--rdb", str(file)], check=True, capture_output=True, timeout=WAIT_S)


def restored(backup: Path, folder: Path) -> RedisServer:
    """A server, yet to be started, that begins with the copy."""
    folder.mkdir()
    shutil.copy(backup, folder / "dump.rdb")
    return RedisServer(folder, appendonly=False)  # with an append-only file it would look for that, and begin empty


def replies(client: Client, room: str) -> list[Any]:
    return [output.body for output in client.outputs(room) if output.kind is Kind.REPLY]


def test_a_copy_taken_under_load_is_one_moment_and_work_goes_on_from_there(
    server: RedisServer, agent: str, tmp_path: Path, redis_dir: Path
) -> None:
    backup = tmp_path / "backup.rdb"
    with ExitStack() as stack:
        client = stack.enter_context(Client(agent, redis=server.url))
        stack.enter_context(ActorSystem(Counts, agent=agent, redis=server.url))
        client.stop("held", reason="kept by the copy")
        begun, over = threading.Event(), threading.Event()

        def send() -> None:
            for number in itertools.count():
                for room in ROOMS:
                    client.send(room, number)
                if over.is_set():
                    return
                begun.set()

        sending = threading.Thread(target=send)
        sending.start()
        wait_for(begun, "messages are sent")
        eventually(lambda: all(replies(client, room) for room in ROOMS), "each room has a state")
        back_up(server, backup)
        over.set()
        sending.join(WAIT_S)
    with restored(backup, tmp_path / "restored") as copy, Client(agent, redis=copy.url) as client:
        with redis_py.Redis.from_url(copy.url) as raw:
            for room in ROOMS:
                [*said] = replies(client, room)
                [_, fields] = codec.decode(raw.get(Keys(agent).state(room)))
                assert fields["n"] == len(said)  # replies and state are of the same moment
                assert said == [[number, number + 1] for number in range(len(said))]
                waiting = client.status(room).waiting
                before = [codec.decode(body) for body in _bodies(raw, Keys(agent).messages(room))]
                assert before == list(range(len(said), len(said) + waiting))
            raw.config_set("appendonly", "yes")
            eventually(lambda: not _rewrites(raw), "it is durable again, as before")
        with ActorSystem(Counts, agent=agent, redis=copy.url):
            for room in ROOMS:
                eventually(lambda room=room: client.status(room).waiting == 0, f"{room} is done")  # type: ignore[misc]
                said = replies(client, room)
                assert Counter(body for body, _ in said) == Counter(range(len(said)))
            hold = client.status("held").hold
            assert hold is not None
            assert hold.reason == "kept by the copy"


def _rewrites(raw: Any) -> bool:
    info = raw.info("persistence")
    return bool(info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"])


def _bodies(raw: Any, stream: str) -> list[bytes]:
    return [entry[b"body"] for _, entry in raw.xrange(stream)]


def test_a_worker_that_runs_on_while_a_copy_is_put_back_is_fenced_and_goes_on_with_what_the_copy_says(
    agent: str, director: Director, redis_dir: Path, tmp_path: Path
) -> None:
    backup = tmp_path / "backup.rdb"
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer(redis_dir, appendonly=False, extra=AT_ONCE))
        client = stack.enter_context(Client(agent, redis=server.url, timeout=WAIT_S))
        system = stack.enter_context(ActorSystem(director.agent(), agent=agent, redis=server.url, lease=timedelta(seconds=2)))
        client.pause("42")
        client.send("42", "wait")
        back_up(server, backup)
        client.play("42")
        run = director.run("42")  # a cycle that the copy knows nothing of
        server.kill()
        shutil.copy(backup, redis_dir / "dump.rdb")
        server.start()
        eventually(lambda: system.ready, "the worker is back")
        assert system.wait(0) is False  # the agent's data is the same, of an earlier moment: not taken for emptied
        run.finish("never sent")
        run.wait_ended()
        hold = client.status("42").hold
        assert hold is not None
        assert hold.mode == "pause"
        client.play("42")
        director.run("42").finish("again")
        wait_output(client, "42", lambda output: output.final)
        assert replies(client, "42") == ["again"]


def test_a_copy_is_not_read_by_a_server_with_an_append_only_file(agent: str, server: RedisServer, tmp_path: Path) -> None:
    """Why the page says so: Redis begins empty then, and workers that still run end with exit code 6."""
    backup = tmp_path / "backup.rdb"
    with Client(agent, redis=server.url) as client:
        client.stop("42")
    back_up(server, backup)
    (tmp_path / "wrong").mkdir()
    shutil.copy(backup, tmp_path / "wrong" / "dump.rdb")
    with RedisServer(tmp_path / "wrong") as wrong, Client(agent, redis=wrong.url) as client:
        assert client.status("42").hold is None
