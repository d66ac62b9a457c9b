"""A primary, a replica and three Sentinels, started for one test and ended with it."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis as redis_py
from redis.backoff import NoBackoff
from redis.retry import Retry

from greenroom.protocol.server import find_server
from integration.agents import eventually

from helpers import free_port
from started import Started

NAME = "rooms"
QUORUM = 2


class Node:
    """One server process: a Redis, or a Sentinel; on any free port. With ``tls`` it speaks nothing
    else: the folder of its certificates.
    """

    def __init__(
        self,
        folder: Path,
        *lines: str,
        sentinel: bool = False,
        tls: Path | None = None,
        executable: Path | None = None,
    ) -> None:
        self.port = free_port()
        self.folder = folder / str(self.port)
        self.folder.mkdir(parents=True)
        self._options = ["--sentinel"] if sentinel else []
        self._config = self.folder / "redis.conf"  # a Sentinel, and a Redis that a Sentinel reconfigures, rewrite theirs
        self._executable = executable or find_server()
        base = ("bind 127.0.0.1", f"dir {self.folder}", f"logfile {self.folder / 'log'}")
        ports = tls_lines(self.port, tls) if tls else [f"port {self.port}"]
        self._config.write_text("\n".join([*base, *ports, *lines, ""]))
        self._process: subprocess.Popen[bytes] | None = None
        reading: dict[str, Any] = {"decode_responses": True, "encoding_errors": "replace", "protocol": 2}  # bodies are binary
        self.options: dict[str, Any] = {}  # of connections to it
        if tls:
            files = {"ssl_ca_certs": tls / "ca.crt", "ssl_certfile": tls / "client.crt", "ssl_keyfile": tls / "client.key"}
            self.options = {"ssl": True, "ssl_check_hostname": False, **files}
        self.redis = redis_py.Redis(port=self.port, socket_timeout=5, retry=Retry(NoBackoff(), 0), **reading, **self.options)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = [str(self._executable), str(self._config), *self._options]
        self._process = Started(command, stdin=subprocess.DEVNULL, start_new_session=True)
        eventually(self._answers, f"the server on port {self.port} answers")

    def _answers(self) -> bool:
        try:
            return bool(self.redis.ping())
        except redis_py.RedisError:
            return False

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def suspend(self) -> None:
        """SIGSTOP: it hangs, and its connections stay."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, also when it is suspended; a second call does nothing."""
        self.redis.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def tls_lines(port: int, certificates: Path) -> list[str]:
    """The configuration of a server that speaks TLS only, also to its replicas, and wants certificates of its clients."""
    files = {"cert": "server.crt", "key": "server.key", "ca-cert": "ca.crt"}
    named = [f"tls-{name}-file {certificates / file}" for name, file in files.items()]
    return ["port 0", f"tls-port {port}", "tls-replication yes", *named]


def is_online(primary: Node, replicas: int = 1) -> bool:
    info: Any = primary.redis.info("replication")
    return [info.get(f"slave{number}", {}).get("state") for number in range(replicas)] == ["online"] * replicas


def confirm_all(primary: Node) -> None:
    """Wait until the replica has what the primary has."""
    connection: Any = primary.redis
    with connection.client() as same:  # WAIT speaks of its own connection
        same.ping()
        assert same.execute_command("WAIT", 1, 5000) == 1


REDIS_LINES = ("save ''", "repl-diskless-sync yes", "repl-diskless-sync-delay 0")


@contextmanager
def replicated(folder: Path, *primary_lines: str) -> Iterator[tuple[Node, Node]]:
    """A primary and its replica, in step."""
    with ExitStack() as stack:
        primary = Node(folder, *REDIS_LINES, *primary_lines)
        replica = Node(folder, *REDIS_LINES, f"replicaof 127.0.0.1 {primary.port}")
        for node in (primary, replica):
            stack.callback(node.kill)
            node.start()
        eventually(lambda: is_online(primary), "the replica is in step")
        yield primary, replica


class Watched:
    """A primary and a replica, watched by Sentinels."""

    def __init__(self, primary: Node, replica: Node, sentinels: list[Node]) -> None:
        self.primary = primary
        self.replica = replica
        self.sentinels = sentinels
        self.url = f"sentinel://{','.join(f'127.0.0.1:{node.port}' for node in sentinels)}/{NAME}"

    def wait_promoted(self) -> None:
        """Wait until a Sentinel has made the replica the primary."""
        eventually(lambda: _role(self.replica) == "master", "the replica is promoted")


def _role(node: Node) -> str:
    try:
        info: Any = node.redis.info("replication")
        return str(info["role"])
    except redis_py.ConnectionError:  # a promotion cuts the connections, this one too
        return "changing"


def _knows_all(sentinel: Node, others: int) -> bool:
    masters: Any = sentinel.redis.sentinel_masters()
    state = masters[NAME]
    return bool(state["num-slaves"] == 1 and state["num-other-sentinels"] == others)


@contextmanager
def watched(folder: Path) -> Iterator[Watched]:
    """A primary, a replica and three Sentinels that know one another."""
    with replicated(folder) as (primary, replica), ExitStack() as stack:
        lines = (
            f"sentinel monitor {NAME} 127.0.0.1 {primary.port} {QUORUM}",
            f"sentinel down-after-milliseconds {NAME} 1000",
            f"sentinel failover-timeout {NAME} 3000",
        )
        sentinels = [Node(folder, *lines, sentinel=True) for _ in range(3)]
        for node in sentinels:
            stack.callback(node.kill)
            node.start()
        for node in sentinels:
            eventually(lambda node=node: _knows_all(node, 2), "the Sentinels know one another")  # type: ignore[misc]
        yield Watched(primary, replica, sentinels)


def timed(action: Callable[[], object]) -> float:
    """How many seconds it took."""
    started = time.monotonic()
    action()
    return time.monotonic() - started
