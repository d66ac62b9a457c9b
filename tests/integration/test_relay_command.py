"""``greenroom relay``: the process, its signals, its death, and its exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
import redis as redis_py

from greenroom import Client
from greenroom.protocol.keys import Keys
from greenroom.protocol.server import RedisServer
from integration.agents import Director, eventually
from integration.command import Process, embedded_url
from integration.conftest import Running

ROOT = Path(__file__).parents[2]

APP = """
import asyncio, sys

def told(room, output):
    sys.stdout.write(f"given {room} {output.body}\\n")
    sys.stdout.flush()

async def post(room, output):
    told(room, output)

async def hang(room, output):
    told(room, output)
    if output.body == "hang":
        await asyncio.Event().wait()

def no_output(room):
    pass

thing = 3
"""


class Starting(Protocol):
    def __call__(self, app: str, *arguments: str) -> Process: ...


@pytest.fixture
def starting(tmp_path: Path, agent: str) -> Iterator[Starting]:
    """Starts ``greenroom relay APP --agent …`` in a folder with app.py; none of them outlives the test."""
    (tmp_path / "app.py").write_text(APP)
    started: list[Process] = []

    def start(app: str, *arguments: str) -> Process:
        started.append(Process(tmp_path, app, "--agent", agent, *arguments, command="relay"))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_hands_over_until_it_is_told_to_end(
    starting: Starting,
    running: Running,
    director: Director,
    client: Client,
    redis_url: str,
    redis: redis_py.Redis,
    keys: Keys,
    number: signal.Signals,
) -> None:
    running(director.agent())
    process = starting("app:post", "--redis", redis_url, "--name", "chat")
    process.wait_line("relay.joined")
    client.send("42", "hello")
    process.wait_line("given 42 hello")
    eventually(lambda: not redis.exists(keys.undelivered("chat")), "it is acknowledged")
    process.signal(number)
    assert process.exit_code() == 0
    assert redis.hkeys(keys.relays) == ["chat"]
    assert not redis.exists(keys.relay("chat"))


def test_what_it_had_in_hand_when_it_was_killed_is_handed_over_again_by_the_next_and_nothing_is_left_out(
    starting: Starting, running: Running, director: Director, client: Client, redis_url: str
) -> None:
    running(director.agent())
    process = starting("app:hang", "--redis", redis_url, "--lease", "1")
    process.wait_line("relay.joined")
    for body in ("before", "hang", "after"):
        client.send("42", body)
    process.wait_line("given 42 hang")
    process.kill()
    again = starting("app:post", "--redis", redis_url)
    again.wait_line("given 42 after")
    assert [line for line in again.output.splitlines() if line.startswith("given")] == ["given 42 hang", "given 42 after"]


def test_a_second_signal_does_not_wait_for_a_function_that_hangs(
    starting: Starting, running: Running, director: Director, client: Client, redis_url: str
) -> None:
    running(director.agent())
    process = starting("app:hang", "--redis", redis_url)
    process.wait_line("relay.joined")
    client.send("42", "hang")
    process.wait_line("given 42 hang")
    process.signal(signal.SIGTERM)
    process.wait_line("process.stopping")
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 1


def test_sigusr1_shows_the_rooms_at_work(
    starting: Starting, running: Running, director: Director, client: Client, redis_url: str, agent: str
) -> None:
    running(director.agent())
    process = starting("app:hang", "--redis", redis_url, "--grace", "0")
    process.wait_line("relay.joined")
    client.send("42", "hang")
    process.wait_line("given 42 hang")
    process.signal(signal.SIGUSR1)
    process.wait_line("end of the dump of relay relay")
    assert f"dump of relay relay, agent {agent}, pid {process.pid}\n" in process.output
    assert "  task greenroom-relay-42\n" in process.output
    assert "app.py" in process.output
    assert process.stop() == 0


def test_it_uses_the_embedded_server_that_runs(
    starting: Starting, redis_dir: Path, agent: str, director: Director, running: Running
) -> None:
    with RedisServer(redis_dir) as server:
        running(director.agent(), redis=server.url)
        process = starting("app:post", "--embedded", str(redis_dir))
        process.wait_line("relay.joined")
        assert embedded_url(process) == server.url
        with Client(agent, redis=server.url) as client:
            client.send("42", "hello")
        process.wait_line("given 42 hello")
        assert process.stop() == 0
        with Client(agent, redis=server.url) as client:
            assert client.ask("42", "it still runs") == "it still runs"


@pytest.mark.parametrize(
    ("app", "arguments", "code", "words"),
    [
        ("app:missing", (), 2, "app has no missing"),
        ("nothing:post", (), 2, "no module named nothing"),
        ("app:thing", (), 2, "want a function"),
        ("app:no_output", (), 2, "called with room and output"),
        ("app", (), 2, "want module:function"),
        ("app:post", ("--lease", "0.5"), 2, "--lease"),
        ("app:post", ("--name", "two words"), 2, "relay name"),
        ("app:post", ("--redis", "redis://127.0.0.1:1"), 3, "cannot be reached"),
    ],
)
def test_what_cannot_be_used_is_told_in_a_line_with_its_code(
    starting: Starting, redis_url: str, app: str, arguments: tuple[str, ...], code: int, words: str
) -> None:
    given = arguments if "--redis" in arguments else (*arguments, "--redis", redis_url)
    process = starting(app, *given)
    assert process.exit_code() == code
    assert words in process.output


def test_the_example_posts_each_output_once_and_in_order_to_a_chat_that_fails_now_and_then(redis_url: str) -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "GREENROOM_REDIS_URL": redis_url}
    command = [sys.executable, str(ROOT / "examples" / "relay_to_http.py")]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "chat: too busy"
    told = [line.removeprefix("chat: room 42: ") for line in lines[1:7]]
    assert told == ["chunk Once", "chunk upon", "chat: that is here already", "chunk a", "chunk time", "reply"]
    told.remove("chat: that is here already")
    story = [line.removeprefix("chat: room 43: ") for line in lines if line.startswith("chat: room 43: ")]
    assert story in [[*told[:count], "aborted"] for count in range(5)]


def test_the_page_about_relays_shows_what_runs(
    running: Running,
    director: Director,
    redis_url: str,
    agent: str,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (ROOT / "docs" / "relay.md").read_text(encoding="utf-8")
    program = page.partition("```python\n")[2].partition("```")[0]
    running(director.agent())

    def wait() -> None:
        client.ask("closed", "hello?")
        client.ask("42", "hello")
        eventually(lambda: not redis.exists(keys.undelivered("relay")), "both are done with")

    for old, new in (("redis://127.0.0.1:6379", redis_url), ('"support"', repr(agent)), ("relay.wait()", "wait()")):
        assert old in program
        program = program.replace(old, new)
    exec(compile(program, "relay.md", "exec"), {"wait": wait})  # noqa: S102  # the page's own code
    [output] = client.outputs("42")
    assert capsys.readouterr().out == f"42 reply hello with the idempotency key 42/{output.id}\n"
