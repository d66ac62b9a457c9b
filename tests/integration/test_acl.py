"""The Redis users of an agent: each does what it is for, as itself, and nothing beyond."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis as redis_py

from greenroom import ActorSystem, Client, Cycle, GreenroomError, Kind, Outcome, RedisRefused
from greenroom.cli import execute
from greenroom.protocol.acl import Role, command_line, user_name
from greenroom.protocol.keys import Keys
from greenroom.protocol.server import RedisServer, find_cli
from integration.agents import Director, abandon, wait_event, wait_output
from integration.servers import server_executables

from helpers import unique

README = Path(__file__).parents[2] / "README.md"


@dataclass
class Secured:
    """A server, and the users that the agent has there."""

    server: RedisServer
    agent: str

    def url(self, role: Role, agent: str | None = None) -> str:
        user = quote(user_name(agent or self.agent, role), safe="")
        return f"redis://{user}:password-of-{role}@127.0.0.1:{self.server.port}/0"

    def add(self, agent: str) -> None:
        with self.plain() as admin:
            for role in Role:
                admin.execute_command(*shlex.split(command_line(agent, role, f"password-of-{role}")))

    def plain(self, role: Role | None = None) -> Any:
        """A redis-py client of that user, or of one who may do everything."""
        url = self.server.url if role is None else self.url(role)
        return redis_py.Redis.from_url(url, decode_responses=True, encoding_errors="replace", protocol=2)

    def denials(self) -> list[tuple[str, str]]:
        """Who was denied what, but for what redis-py says of itself when it connects."""
        with self.plain() as admin:
            log: Any = admin.acl_log()
            return [(row["username"], row["object"]) for row in log if row["object"].split("|")[0] != "client"]


@pytest.fixture(scope="module", params=server_executables().items(), ids=lambda item: item[0])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("secured"), executable=request.param[1]) as server:
        yield server


@pytest.fixture
def secured(server: RedisServer, agent: str) -> Secured:
    """The test's agent with its three users, and nobody denied anything so far."""
    secured = Secured(server, agent)
    secured.add(agent)
    with secured.plain() as admin:
        admin.acl_log_reset()
    return secured


@pytest.fixture
def redis_url(secured: Secured) -> str:
    """Systems of these tests run as the worker."""
    return secured.url(Role.WORKER)


@pytest.fixture
def client(secured: Secured) -> Iterator[Client]:
    """A client of the operator's."""
    with Client(secured.agent, redis=secured.url(Role.OPERATOR), by="test") as client:
        yield client


# What they may. -------------------------------------------------------------------------------------


def test_a_worker_lives_a_whole_life_as_its_user_and_an_operator_does_all_that_clients_can(
    secured: Secured, client: Client, director: Director
) -> None:
    """row 48: everything of which a script or a client consists is done here, and Redis denies none of it"""

    async def work(cycle: Cycle) -> None:
        await cycle.send("chunk")
        await cycle.step("once", lambda: 1)
        async with cycle.shield():
            await cycle.stream("shielded")
        cycle.state["n"] = 1

    def start(name: str, **options: Any) -> ActorSystem:
        agent_class = director.agent(max_attempts=2, on_interrupt=lambda *_: "sorry", **options)
        system = ActorSystem(
            agent_class, agent=secured.agent, redis=secured.url(Role.WORKER), name=name, lease=timedelta(seconds=1)
        )
        return system.start()

    first, second = start("first"), start("second")
    try:
        client.send("42", "wait")
        run = director.run("42")
        run.do(work)
        run.finish("done")
        assert client.ask("42", "again") == "again"
        client.send("42", "wait to be interrupted", key="once")
        director.run("42")
        assert [receipt.outcome for receipt in client.interrupt("42")] == [Outcome.APPLIED]
        client.send("42", "wait to be stopped")
        director.run("42").do(lambda cycle: cycle.step("once", lambda: 1))
        for signal in (client.stop, client.pause, client.play, client.interrupt):
            signal("42")
            signal(everywhere=True)
        client.send("dead", "fail")
        wait_output(client, "dead", lambda output: output.kind is Kind.DEAD)
        [letter] = client.dead_letters()
        client.requeue(letter.id)
        client.stop("held")
        client.discard("held", client.send("held", "dropped"))
        client.send("adopted", "wait")
        director.run("adopted")
        abandon(first if client.status("adopted").owner == "first" else second)
        director.run("adopted").finish("done")
        wait_output(client, "adopted", lambda output: output.kind is Kind.REPLY)
        assert "held" in {status.room for status in client.rooms()}
        assert len(client.overview().workers) == 1
    finally:
        for system in (first, second):
            system.stop(timedelta(0))
    assert secured.denials() == []


def test_hand_written_signals_of_the_operator_are_applied_by_the_worker(
    secured: Secured, client: Client, director: Director
) -> None:
    """rows 19 and 48"""
    with (
        ActorSystem(director.agent(), agent=secured.agent, redis=secured.url(Role.WORKER)),
        secured.plain(Role.OPERATOR) as redis,
    ):
        client.send("42", "wait")
        run = director.run("42")
        redis.xadd(Keys(secured.agent).control, {"mode": "stop", "room": "42"})
        run.wait_cancelled()
        redis.xadd(Keys(secured.agent).control, {"mode": "stoop", "room": "42"})
        wait_event(redis, secured.agent, "signal.malformed")
    assert secured.denials() == []


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.OBSERVER])
def test_each_line_of_the_readme_that_reads_is_answered_to_an_operator_and_an_observer(
    role: Role, secured: Secured, director: Director
) -> None:
    """rows 44 and 48; the lines that signal are an operator's only"""
    lines = [line for line in README.read_text().splitlines() if line.startswith("redis-cli")]
    assert len(lines) > 10
    with ActorSystem(director.agent(), agent=secured.agent, redis=secured.url(Role.WORKER)), secured.plain(role) as redis:
        for line in lines:
            words = shlex.split(line.replace("support", secured.agent), comments=True)[1:]
            if role is Role.OBSERVER and words[0] == "XADD":
                with pytest.raises(redis_py.exceptions.NoPermissionError):
                    redis.execute_command(*words)
            else:
                redis.execute_command(*words)


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.OBSERVER])
@pytest.mark.parametrize("command", [["status"], ["status", "42"], ["rooms"], ["tail", "42"]])
def test_the_commands_that_look_work_for_an_operator_and_an_observer(
    role: Role,
    command: list[str],
    secured: Secured,
    client: Client,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """row 48"""
    monkeypatch.setenv("GREENROOM_AGENT", secured.agent)
    client.send("42", "hello")
    client.discard("42", client.send("42", "dropped"))
    assert execute([*command, "--redis", secured.url(role)]) == 0
    shown = {"status": "rooms: 1", "status 42": "waiting: 1", "rooms": "42\tqueued", "tail 42": "discarded"}
    assert shown[" ".join(command)] in capsys.readouterr().out


def test_an_observer_follows_what_a_room_sends_while_it_sends_it(secured: Secured, client: Client, director: Director) -> None:
    """row 48: woken by the publications, without waiting for the next look"""
    system = ActorSystem(director.agent(), agent=secured.agent, redis=secured.url(Role.WORKER))
    with system, Client(secured.agent, redis=secured.url(Role.OBSERVER)) as observer:
        client.send("42", "wait")
        run = director.run("42")
        run.send("one")
        wait_output(observer, "42", lambda output: output.body == "one")
        run.finish("two")
        wait_output(observer, "42", lambda output: output.body == "two")
    assert {word for _, word in secured.denials()} <= {"script|load", "script"}


def test_the_lines_that_the_command_prints_make_the_users_when_redis_cli_reads_them(
    server: RedisServer, agent: str, tmp_path: Path
) -> None:
    """row 48: with the passwords of the files, which are made once and for their owner only"""
    folder = tmp_path / "passwords"
    command = [sys.executable, "-m", "greenroom", "acl", agent, "--passwords", str(folder)]
    lines = [subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout for _ in range(2)]
    assert lines[0] == lines[1]
    cli = find_cli()
    assert cli is not None
    said = subprocess.run(
        [cli, "-p", str(server.port)], input=lines[0], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert said.split() == ["OK", "OK", "OK"]
    for role in Role:
        file = folder / role
        assert file.stat().st_mode & 0o777 == 0o600
        password = file.read_text().strip()
        assert password not in lines[0]
        with redis_py.Redis(port=server.port, username=user_name(agent, role), password=password) as redis:
            assert redis.ping()


def test_the_lines_without_passwords_change_rights_and_keep_the_passwords(secured: Secured) -> None:
    with secured.plain() as admin, secured.plain(Role.OBSERVER) as observer:
        admin.execute_command("ACL", "SETUSER", user_name(secured.agent, Role.OBSERVER), "+flushall", "~*")
        admin.execute_command(*shlex.split(command_line(secured.agent, Role.OBSERVER)))
        assert observer.ping()
        with pytest.raises(redis_py.exceptions.NoPermissionError):
            observer.flushall()


# What they may not. ---------------------------------------------------------------------------------

WRITES = (
    ("SET", "1"),
    ("APPEND", "1"),
    ("DEL",),
    ("UNLINK",),
    ("EXPIRE", "1"),
    ("PERSIST",),
    ("RENAME", "other"),
    ("HSET", "mode", "play"),
    ("HDEL", "mode"),
    ("SADD", "1"),
    ("ZADD", "1", "1"),
    ("XADD", "*", "mode", "stop"),
    ("XDEL", "1-0"),
    ("XTRIM", "MAXLEN", "0"),
)


def denied(redis: Any, *words: str) -> None:
    with pytest.raises(redis_py.exceptions.NoPermissionError):
        redis.execute_command(*words)


def test_an_observer_cannot_signal_send_or_change_a_key(secured: Secured, client: Client) -> None:
    """row 48"""
    message = client.send("42", "hello")
    with Client(secured.agent, redis=secured.url(Role.OBSERVER)) as observer:
        for act in (
            lambda: observer.send("42", "x"),
            lambda: observer.ask("42", "x"),
            lambda: observer.stop("42"),
            lambda: observer.play(everywhere=True),
            lambda: observer.interrupt("42"),
            lambda: observer.discard("42", message),
            lambda: observer.requeue("1-0"),
        ):
            with pytest.raises(RedisRefused, match="refuses access"):
                act()
        assert observer.status("42").waiting == 1
    keys = Keys(secured.agent)
    with secured.plain(Role.OBSERVER) as redis:
        for key in (keys.root, keys.control, keys.room("42"), keys.messages("42"), keys.state("42")):
            for command, *words in WRITES:
                denied(redis, command, key, *words)
        denied(redis, "PUBLISH", keys.outbox("42"), "1")
        denied(redis, "EVAL", "return redis.call('SET', KEYS[1], 1)", "1", keys.state("42"))
        denied(redis, "SCRIPT", "LOAD", "return 1")
    assert client.status("42").waiting == 1


def test_an_observer_s_command_that_would_change_something_is_one_line_and_exit_code_3(
    secured: Secured, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """row 48"""
    monkeypatch.setenv("GREENROOM_AGENT", secured.agent)
    for command in (["stop", "42"], ["send", "42", "x"], ["interrupt", "--everywhere"], ["discard", "42", "1"]):
        assert execute([*command, "--redis", secured.url(Role.OBSERVER)]) == 3
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert "refuses access" in err


@pytest.mark.parametrize("role", Role)
def test_nobody_may_look_at_other_keys_at_the_server_or_at_other_users(role: Role, secured: Secured) -> None:
    """row 48"""
    with secured.plain(role) as redis:
        for words in (
            ("FLUSHALL",),
            ("FLUSHDB",),
            ("KEYS", "*"),
            ("SCAN", "0"),
            ("RANDOMKEY",),
            ("CONFIG", "GET", "requirepass"),
            ("CONFIG", "SET", "appendonly", "no"),
            ("ACL", "LIST"),
            ("ACL", "SETUSER", user_name(secured.agent, role), "+@all"),
            ("CLIENT", "KILL", "TYPE", "normal"),
            ("SHUTDOWN",),
            ("REPLICAOF", "NO", "ONE"),
            ("MONITOR",),
            ("SCRIPT", "FLUSH"),
            ("PSUBSCRIBE", "*"),
            ("MIGRATE", "127.0.0.1", "1", Keys(secured.agent).root, "0", "1"),
        ):
            denied(redis, *words)


@pytest.mark.parametrize("role", Role)
def test_nobody_may_touch_or_read_another_agent(role: Role, secured: Secured) -> None:
    """row 48: nor one whose name begins alike, nor from within a script"""
    for other in (Keys(unique("other")), Keys(f"{secured.agent}-2")):
        with Client(other.agent, redis=secured.server.url) as theirs:
            theirs.stop("42")
            theirs.send("42", "secret")
        with secured.plain(role) as redis:
            denied(redis, "HGETALL", other.room("42"))
            denied(redis, "XRANGE", other.messages("42"), "-", "+")
            denied(redis, "XREAD", "STREAMS", other.control, "0")
            denied(redis, "SUBSCRIBE", other.outbox("42"))
            if role is not Role.OBSERVER:
                denied(redis, "XADD", other.control, "*", "mode", "play", "room", "42")
                denied(redis, "HDEL", other.room("42"), "mode")
                denied(redis, "PUBLISH", other.outbox("42"), "1")
                sha = redis.script_load("return redis.call('HDEL', KEYS[1], 'mode')")
                denied(redis, "EVALSHA", sha, "1", other.room("42"))
                smuggled = redis.script_load("return redis.call('HDEL', ARGV[1], 'mode')")
                with pytest.raises(redis_py.ResponseError):
                    redis.evalsha(smuggled, 0, other.room("42"))
        with Client(other.agent, redis=secured.url(role)) as wrong:
            for act in (lambda: wrong.play("42"), lambda: wrong.send("42", "x"), lambda: wrong.status("42")):
                with pytest.raises(RedisRefused, match="refuses access"):
                    act()
        with Client(other.agent, redis=secured.server.url) as theirs:
            hold = theirs.status("42").hold
            assert hold is not None
            assert theirs.status("42").waiting == 1


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.OBSERVER])
def test_no_worker_runs_as_an_operator_or_an_observer(role: Role, secured: Secured, director: Director) -> None:
    """row 48: it is refused at the start, with one clear line"""
    system = ActorSystem(director.agent(), agent=secured.agent, redis=secured.url(role))
    with pytest.raises(RedisRefused, match="refuses access"):
        system.start()


def test_no_worker_of_another_agent_runs_as_this_one_s(secured: Secured, director: Director) -> None:
    """row 48"""
    system = ActorSystem(director.agent(), agent=unique("other"), redis=secured.url(Role.WORKER))
    with pytest.raises(GreenroomError, match="refuses access"):
        system.start()


def test_an_agent_whose_name_is_a_pattern_has_no_other_s_keys(secured: Secured) -> None:
    """row 48"""
    greedy = unique("a*?[a-z]\\")
    secured.add(greedy)
    with Client(greedy, redis=secured.url(Role.OPERATOR, greedy)) as client:
        client.send("42", "hello")
        assert client.status("42").waiting == 1
    other = unique("abc")
    with Client(other, redis=secured.url(Role.OPERATOR, greedy)) as client, pytest.raises(RedisRefused):
        client.status("42")
