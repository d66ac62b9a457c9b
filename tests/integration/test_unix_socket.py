"""Redis on a Unix socket: a worker and clients use it as any other."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from greenroom import ActorSystem, Client, RedisUnavailable
from greenroom.cli import execute
from greenroom.protocol.server import RedisServer
from integration.agents import Director


@pytest.fixture
def socket() -> Iterator[Path]:
    """Where a socket may be: its path has to be short."""
    with tempfile.TemporaryDirectory(prefix="greenroom-") as folder:
        yield Path(folder) / "redis.sock"


def test_a_worker_a_client_and_the_doctor_reach_redis_at_a_unix_socket(
    socket: Path, redis_dir: Path, director: Director, agent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"unix://default:secret@{socket}"
    with RedisServer(redis_dir, extra=["--unixsocket", str(socket)]):
        with ActorSystem(director.agent(), agent=agent, redis=url, name="w1"), Client(agent, redis=url) as client:
            assert client.ask("42", "hello") == "hello"
            assert next(client.outputs("42", follow=True)).body == "hello"
            assert [worker.name for worker in client.workers()] == ["w1"]
        assert execute(["doctor", agent, "--redis", url]) == 0
        assert "within this machine" in capsys.readouterr().out


def test_a_unix_socket_that_is_not_there_is_unavailable(socket: Path, agent: str) -> None:
    with Client(agent, redis=f"unix://{socket}", timeout=0.1) as client, pytest.raises(RedisUnavailable):
        client.overview()
