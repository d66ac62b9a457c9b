"""The embedded redis-server: what it keeps, and what becomes of it when something dies."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis

from greenroom.protocol import server as server_module
from greenroom.protocol.errors import RedisUnavailable
from greenroom.protocol.server import RedisServer

from helpers import lasting_server


@contextmanager
def connected(server: RedisServer) -> Iterator[Redis]:
    """A client of the server."""
    with Redis.from_url(server.url, decode_responses=True) as client:
        yield client


def test_it_answers_on_the_loopback_only_as_soon_as_it_is_started(redis_dir: Path) -> None:
    with RedisServer(redis_dir) as server, connected(server) as redis:
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        assert redis.ping()
        assert redis.config_get("bind") == {"bind": "127.0.0.1"}
        assert redis.info("server")["process_id"] == server.pid


def test_it_keeps_an_append_only_file_and_no_snapshots(redis_dir: Path) -> None:
    with RedisServer(redis_dir) as server, connected(server) as redis:
        assert redis.config_get("append*")["appendonly"] == "yes"
        assert redis.config_get("appendfsync") == {"appendfsync": "everysec"}
        assert redis.config_get("save") == {"save": ""}
    assert not (redis_dir / "dump.rdb").exists()


def test_without_the_append_only_file_nothing_is_kept(redis_dir: Path) -> None:
    for _ in range(2):
        with RedisServer(redis_dir, appendonly=False) as server, connected(server) as redis:
            assert not redis.exists("key")
            redis.set("key", "value")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_data_and_url_are_the_same_after_it_ended_and_was_started_again(redis_dir: Path, end: str) -> None:
    server = lasting_server(redis_dir)
    server.start()
    before = server.url, server.pid
    with connected(server) as redis:
        redis.set("key", "value")
    getattr(server, end)()
    with RedisServer(redis_dir) as again, connected(again) as redis:
        assert redis.get("key") == "value"
        assert again.url == before[0]
        assert again.pid != before[1]


def test_it_takes_another_port_when_its_own_was_taken(redis_dir: Path) -> None:
    with RedisServer(redis_dir) as server:
        port = server.port
    with socket.create_server(("127.0.0.1", port)), RedisServer(redis_dir) as server, connected(server) as redis:
        assert server.port != port
        assert redis.ping()


def test_another_directorys_server_at_its_port_is_not_taken_for_its_own(redis_dir: Path, redis_server: RedisServer) -> None:
    redis_dir.mkdir()
    (redis_dir / "port").write_text(f"{redis_server.port}\n")
    with RedisServer(redis_dir) as server:
        assert server.pid != redis_server.pid


def test_a_recorded_port_that_is_no_number_is_forgotten(redis_dir: Path) -> None:
    redis_dir.mkdir()
    (redis_dir / "port").write_text("?")
    with RedisServer(redis_dir) as server, connected(server) as redis:
        assert redis.ping()


def test_a_server_that_runs_is_found_and_left_running_by_whoever_found_it(redis_dir: Path) -> None:
    with RedisServer(redis_dir) as first, connected(first) as redis:
        with RedisServer(redis_dir) as second:
            assert (second.url, second.pid) == (first.url, first.pid)
        second.kill()
        assert redis.ping()


def test_starts_at_the_same_time_share_one_server(redis_dir: Path) -> None:
    servers = [RedisServer(redis_dir) for _ in range(8)]
    threads = [threading.Thread(target=server.start) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len({server.pid for server in servers}) == 1
    finally:
        for server in servers:
            server.stop()


def test_a_second_start_and_a_second_stop_change_nothing(redis_dir: Path) -> None:
    server = RedisServer(redis_dir)
    server.stop()
    server.start()
    pid = server.pid
    server.start()
    assert server.pid == pid
    server.stop()
    server.stop()
    assert (server.port, server.pid) == (0, 0)


def test_a_start_after_the_server_died_starts_it_again(redis_dir: Path) -> None:
    with RedisServer(redis_dir) as server:
        died = server.pid
        os.kill(died, signal.SIGKILL)
        os.waitid(os.P_PID, died, os.WEXITED | os.WNOWAIT)
        server.start()
        assert server.pid != died


def test_a_start_returns_only_when_the_data_is_loaded(redis_dir: Path) -> None:
    with RedisServer(redis_dir) as server, connected(server) as redis, redis.pipeline() as pipe:
        for number in range(200):
            pipe.set(f"key:{number}", number)
        pipe.execute()
    with RedisServer(redis_dir, extra=["--key-load-delay", "1000"]) as server, connected(server) as redis:
        assert redis.dbsize() == 200


def test_an_option_that_it_refuses_shows_in_the_error(redis_dir: Path) -> None:
    with pytest.raises(RedisUnavailable, match=r"ended at its start: .*no-such-option"):
        RedisServer(redis_dir, extra=["--no-such-option", "1"]).start()


def test_a_directory_that_is_held_by_a_server_that_does_not_answer_is_an_error(
    redis_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "START_DEADLINE_S", 0.1)
    redis_dir.mkdir()
    with (redis_dir / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RedisUnavailable, match="does not answer"):
            RedisServer(redis_dir).start()


def test_it_is_in_a_session_of_its_own_so_that_ctrl_c_does_not_reach_it(redis_server: RedisServer) -> None:
    assert os.getsid(redis_server.pid) == redis_server.pid


def test_it_outlives_a_killed_parent_and_is_found_by_the_next(redis_dir: Path) -> None:
    program = f"""
import os, signal
from greenroom.protocol.server import RedisServer
server = RedisServer({str(redis_dir)!r})
server.start()
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    paths = os.pathsep.join(sys.path)
    killed = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": paths})
    assert killed.returncode == -signal.SIGKILL
    with RedisServer(redis_dir) as server, connected(server) as redis:
        assert server.pid == int(killed.stdout)
        redis.shutdown()
