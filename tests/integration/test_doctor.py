"""``greenroom doctor`` against servers that are set up wrongly, each in its way."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from greenroom import Client, Relay
from greenroom.cli import execute
from greenroom.protocol.acl import COMMANDS, Role, command_line, trial, user_name
from greenroom.protocol.keys import Keys
from greenroom.protocol.server import RedisServer
from integration.agents import Director, eventually
from integration.conftest import Running
from integration.replicated import replicated
from integration.servers import server_executables

Doctor = Callable[..., dict[str, dict[str, str]]]
Serving = Callable[..., RedisServer]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Runs the doctor; answers its findings by check, which are one line each."""

    def examine(url: str, *arguments: str, code: int = 0) -> dict[str, dict[str, str]]:
        capsys.readouterr()
        exited = execute(["doctor", *arguments, "--redis", url, "--json"])
        out, err = capsys.readouterr()
        assert (exited, err) == (code, ""), (out, err)
        rows = [json.loads(line) for line in out.splitlines()]
        found = {row["check"]: row for row in rows}
        assert len(found) == len(rows)
        return found

    return examine


@pytest.fixture
def serving(redis_dir: Path) -> Iterator[Serving]:
    """Starts a server of the test's own, with further options."""
    with ExitStack() as stack:

        def start(*options: str, executable: Path | None = None, appendonly: bool = True) -> RedisServer:
            server = RedisServer(redis_dir, executable=executable, appendonly=appendonly, extra=options)
            return stack.enter_context(server)

        yield start


def admin(server: RedisServer) -> Any:
    return redis_py.Redis(port=server.port, decode_responses=True, protocol=2)


def bad(found: dict[str, dict[str, str]]) -> dict[str, str]:
    """What is not fine, and how bad it is; nobody asks for a password here, and there is nothing of the agent's."""
    spared = ("access", "latency", "agent")
    return {name: row["severity"] for name, row in found.items() if row["severity"] != "ok" and name not in spared}


@pytest.mark.parametrize("executable", server_executables().values(), ids=server_executables().keys())
def test_a_redis_as_it_should_be_is_fine_in_all_that_is_looked_at(
    executable: Path, serving: Serving, doctor: Doctor, agent: str
) -> None:
    found = doctor(serving(executable=executable).url, agent)
    assert bad(found) == {}
    assert list(found) == [
        *("latency", "version", "eviction", "memory", "persistence", "saving", "role", "fsync", "clock", "transport"),
        *("data", "access", "agent"),
    ]


def test_without_an_agent_nothing_is_said_about_its_data(redis_url: str, doctor: Doctor) -> None:
    assert "data" not in doctor(redis_url)


@pytest.mark.parametrize(
    ("options", "check", "severity", "code"),
    [
        (["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"], "eviction", "error", 1),
        (["--maxmemory-policy", "volatile-lru"], "eviction", "warning", 0),
        (["--maxmemory", "1"], "memory", "error", 1),
        (["--appendfsync", "no"], "fsync", "warning", 0),
    ],
)
def test_a_server_that_is_configured_wrongly_is_found_out(
    options: list[str], check: str, severity: str, code: int, serving: Serving, doctor: Doctor
) -> None:
    """row 45"""
    found = doctor(serving(*options).url, code=code)
    assert bad(found) == {check: severity}
    assert found[check]["do"]


def test_a_server_without_an_append_only_file_is_found_out(serving: Serving, doctor: Doctor) -> None:
    found = doctor(serving(appendonly=False).url)
    assert bad(found) == {"persistence": "warning"}
    assert "appendonly yes" in found["persistence"]["do"]


def test_memory_that_is_nearly_used_up_is_found_out(serving: Serving, doctor: Doctor) -> None:
    server = serving()
    with admin(server) as redis:
        redis.setrange("ballast", 20_000_000, "x")  # beside which what the doctor's own connections take is nothing
        used = redis.info("memory")["used_memory"]
        redis.config_set("maxmemory", int(used * 1.05))
    assert bad(doctor(server.url)) == {"memory": "warning"}


@pytest.mark.parametrize("command", ["BGSAVE", "BGREWRITEAOF"])
def test_a_snapshot_or_rewrite_that_fails_is_found_out(command: str, serving: Serving, doctor: Doctor) -> None:
    server = serving(appendonly=command == "BGREWRITEAOF")
    field = {"BGSAVE": "rdb_last_bgsave_status", "BGREWRITEAOF": "aof_last_bgrewrite_status"}[command]
    shutil.rmtree(server.directory)
    with admin(server) as redis:
        with suppress(redis_py.ResponseError):  # Redis 7 says so at once of a rewrite
            redis.execute_command(command)
        eventually(lambda: redis.info("persistence")[field] == "err", "it has failed")
    assert doctor(server.url)["saving"]["severity"] == "warning"


def test_a_replica_is_found_out_and_a_primary_says_how_many_it_has(redis_dir: Path, doctor: Doctor) -> None:
    with replicated(redis_dir) as (primary, replica):
        assert doctor(primary.url)["role"]["says"] == "primary, 1 replica"
        found = doctor(replica.url, code=1)
        assert found["role"]["severity"] == "error"
        assert "sentinel://" in found["role"]["do"]


def test_data_of_a_newer_greenroom_is_found_out(
    redis_url: str, redis: redis_py.Redis, keys: Keys, agent: str, doctor: Doctor, running: Running, director: Director
) -> None:
    """row 50"""
    assert "ever joined" in doctor(redis_url, agent)["data"]["says"]
    running(director.agent())
    assert doctor(redis_url, agent)["data"]["severity"] == "ok"
    redis.hset(keys.root, "version", "2")
    assert doctor(redis_url, agent, code=1)["data"]["severity"] == "error"


def test_an_agent_that_is_not_there_is_told_with_those_that_are(
    redis_url: str, client: Client, agent: str, doctor: Doctor
) -> None:
    client.send("42", "hello")
    found = doctor(redis_url, f"{agent}x")["agent"]
    assert found["severity"] == "warning"
    assert f"no agent {agent}x in this Redis" in found["says"]
    assert found["says"].partition("agents that are: ")[2].split(", ")[0] == agent, "the likest name is the first"


def test_what_ails_an_agent_is_told_by_whoever_may_look_at_it(
    secured: RedisServer, agent: str, director: Director, running: Running, doctor: Doctor
) -> None:
    """Rows 14 and 44: one command says what is wrong and what to do."""
    url = url_of(secured, agent, Role.WORKER)
    with Client(agent, redis=url, by="ann") as client:
        client.pause(everywhere=True, reason="model is down")
        client.send("42", "hello")
        found = doctor(url, agent, code=0)
        assert (found["workers"]["severity"], found["mode"]["severity"]) == ("warning", "warning")
        assert "pause by ann" in found["mode"]["says"]
        assert "model is down" in found["mode"]["says"]
        client.play(everywhere=True)
        assert doctor(url, agent, code=1)["workers"]["severity"] == "error"
        Relay(agent, print, redis=url, name="chat").start().stop()
        system = running(director.agent(max_attempts=1), redis=url)
        client.send("43", "fail")
        eventually(lambda: client.overview().dead == 1, "it dies")
        client.stop("44")
        client.send("44", "hello")
        found = doctor(url_of(secured, agent, Role.OBSERVER), agent)
        assert {name for name in ("dead", "held", "relay chat") if found[name]["severity"] == "warning"} == {
            *("dead", "held", "relay chat")
        }
        assert all(found[name]["do"] for name in ("dead", "held", "relay chat"))
        assert found["workers"]["says"] == f"{system.name} live"
        assert found["retention"]["says"].startswith("outbox=1000, outbox_for=7d, events=10000")
        system.stop()


# Rights. --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executable", server_executables().values(), ids=server_executables().keys())
def test_every_command_can_be_tried_without_being_executed(
    executable: Path, serving: Serving, doctor: Doctor, agent: str
) -> None:
    """Also by a user who may do everything; nothing is changed."""
    server = serving(executable=executable)
    keys = Keys(agent)
    with admin(server) as redis:
        redis.response_callbacks.clear()  # what is answered is to be seen as it is
        for command in COMMANDS[Role.WORKER]:
            if command not in ("multi", "discard"):
                assert redis.execute_command("MULTI") == "OK"
                assert redis.execute_command(*trial(command, keys)) == "QUEUED", command
                assert redis.execute_command("DISCARD") == "OK"
        for role in Role:
            redis.execute_command(*shlex.split(command_line(agent, role, "secret")))
            doctor(f"redis://{user_name(agent, role)}:secret@127.0.0.1:{server.port}", agent)
        assert redis.dbsize() == 0


@pytest.fixture
def secured(serving: Serving, agent: str) -> RedisServer:
    server = serving()
    with admin(server) as redis:
        for role in Role:
            redis.execute_command(*shlex.split(command_line(agent, role, "secret")))
    return server


def url_of(server: RedisServer, agent: str, role: Role) -> str:
    return f"redis://{user_name(agent, role)}:secret@127.0.0.1:{server.port}/0"


@pytest.mark.parametrize(
    ("role", "roles"),
    [(Role.OBSERVER, "observer"), (Role.OPERATOR, "observer, operator"), (Role.WORKER, "observer, operator, worker")],
)
def test_what_a_user_may_do_is_told_as_the_roles_it_fills(
    role: Role, roles: str, secured: RedisServer, agent: str, doctor: Doctor
) -> None:
    """row 48"""
    access = doctor(url_of(secured, agent, role), agent)["access"]
    assert access["severity"] == "ok"
    assert access["says"].endswith(f"has the rights of {roles}")


def test_what_a_user_may_not_see_is_said_to_be_unknown(secured: RedisServer, agent: str, doctor: Doctor) -> None:
    """row 48: and the rest is looked at all the same"""
    found = doctor(url_of(secured, agent, Role.OBSERVER), agent)
    assert found["server"]["severity"] == "unknown"
    assert "INFO" in found["server"]["says"]
    found = doctor(url_of(secured, agent, Role.OPERATOR), agent)
    assert bad(found) == {"fsync": "unknown"}


@pytest.mark.parametrize(
    ("role", "taken"), [(Role.WORKER, "xclaim"), (Role.WORKER, "xgroup"), (Role.OPERATOR, "zadd"), (Role.OBSERVER, "hgetall")]
)
def test_a_right_that_is_missing_is_named(role: Role, taken: str, secured: RedisServer, agent: str, doctor: Doctor) -> None:
    """row 48"""
    with admin(secured) as redis:
        redis.execute_command("ACL", "SETUSER", user_name(agent, role), f"-{taken}")
    access = doctor(url_of(secured, agent, role), agent, code=1)["access"]
    assert access["severity"] == "error"
    assert f"the {role} of {agent}: it lacks {taken}" in access["says"]
    assert f"greenroom acl {agent}" in access["do"]


def test_a_user_of_another_agent_is_found_out(secured: RedisServer, agent: str, doctor: Doctor) -> None:
    """row 48"""
    found = doctor(url_of(secured, agent, Role.WORKER), f"{agent}-2", code=1)
    assert found["access"]["severity"] == "error"
    assert found["data"]["severity"] == "unknown"


def test_a_user_whose_rights_cannot_be_tried_is_said_to_be_unknown(secured: RedisServer, agent: str, doctor: Doctor) -> None:
    for taken in ("discard", "multi"):
        with admin(secured) as redis:
            redis.execute_command("ACL", "SETUSER", user_name(agent, Role.OPERATOR), f"-{taken}")
        assert doctor(url_of(secured, agent, Role.OPERATOR), agent)["access"]["severity"] == "unknown"


def test_a_redis_that_asks_for_no_password_and_a_user_who_may_do_everything_are_found_out(
    serving: Serving, agent: str, doctor: Doctor
) -> None:
    """row 48"""
    server = serving("--user", "root", "on", ">secret", "~*", "&*", "+@all")
    access = doctor(server.url, agent)["access"]
    assert (access["severity"], "whoever reaches" in access["says"]) == ("warning", True)
    access = doctor(f"redis://root:secret@127.0.0.1:{server.port}", agent)["access"]
    assert (access["severity"], "user root may" in access["says"]) == ("warning", True)


# The command. ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://127.0.0.1:1", "cannot be reached"),
        ("http://{port}", "not a Redis URL"),
        ("redis://nobody:hunter2@127.0.0.1:{port}", "refuses access"),
    ],
)
def test_a_redis_that_cannot_be_looked_at_is_one_line(
    url: str, words: str, redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["doctor", "--redis", url.format(port=redis_server.port)]) == (2 if url.startswith("http") else 3)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert "hunter2" not in err


def test_an_agent_s_name_that_is_none_is_wrong_usage(redis_url: str) -> None:
    assert execute(["doctor", "a b", "--redis", redis_url]) == 2


def test_the_lines_are_a_table_with_tabs_when_stdout_is_no_terminal(redis_url: str, agent: str) -> None:
    command = [sys.executable, "-m", "greenroom", "doctor", agent, "--redis", redis_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    header, *rows = done.stdout.splitlines()
    assert header.split("\t") == ["severity", "check", "says", "do"]
    assert [row.split("\t")[:2] for row in rows[:1]] == [["ok", "latency"]] or rows[0].startswith("warning\tlatency")
    assert all(len(row.split("\t")) == 4 for row in rows)


def test_the_embedded_server_of_a_directory_is_looked_at(redis_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["doctor", "--embedded", str(redis_dir)]) == 3
    assert "no embedded Redis runs" in capsys.readouterr().err
    with RedisServer(redis_dir):
        assert execute(["doctor", "--embedded", str(redis_dir)]) == 0
