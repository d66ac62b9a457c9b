"""What ``greenroom run`` needs besides a worker: its Redis, and the parent of several."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from .protocol.connect import back_off, connect, is_loading, without_password
from .protocol.errors import InvalidRequest, RedisUnavailable
from .protocol.keys import Keys
from .protocol.log import bound, log
from .protocol.server import RedisServer
from .supervisors.notify import Notifier
from .supervisors.orders import Orders
from .supervisors.process import complain
from .supervisors.processes import Processes
from .supervisors.system import ActorSystem
from .where import URL_VARIABLE

RESTART_PAUSE_S = 0.5  # between two starts of an embedded server that keeps ending
METRICS_HOST = "127.0.0.1"
MAX_PORT = 65535


def warn_of_password(redis: str | None, agent: str) -> None:
    """Warn of a password on this process' command line."""
    if redis is not None and without_password(redis) != redis:
        log.warning("process.password_shown", agent=agent, instead=URL_VARIABLE)


def using(server: str | RedisServer) -> contextlib.AbstractContextManager[str]:
    """The URL of what ``server_of`` has named; an embedded server is started, and ended with the block."""
    return contextlib.nullcontext(server) if isinstance(server, str) else _serving(server)


@contextlib.contextmanager
def _serving(server: RedisServer) -> Iterator[str]:
    """The URL of an embedded server, which ends with this block if it was started for it."""
    try:
        try:
            server.start()
        except RedisUnavailable:
            raise
        except OSError as error:
            raise InvalidRequest(f"--embedded {server.directory}: {error.strerror}") from None
        complain(f"the embedded Redis of {server.directory} is ready: redis-cli -u {server.url}")
        with _kept_running(server):
            yield server.url
    finally:
        server.stop()


@contextlib.contextmanager
def _kept_running(server: RedisServer) -> Iterator[None]:
    """Within this block a server that ends is started again, on its data and its port: the workers then go on by themselves."""
    lock, over = threading.Lock(), threading.Event()

    def start_again() -> bool:
        with lock:
            if over.is_set():
                return True
            try:
                server.start()
            except (RedisUnavailable, OSError) as error:
                complain(str(error))
                return False
            return True

    def keep() -> None:
        while server.wait() and not over.is_set():
            complain(f"the embedded Redis of {server.directory} has ended by itself: it is started again")
            while not start_again():
                over.wait(RESTART_PAUSE_S)

    threading.Thread(target=keep, name="greenroom-embedded", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        with lock:  # not in the middle of a start
            pass


def wait_loaded(url: str, agent: str) -> None:
    """Wait for as long as the Redis there loads its data: it was reached, and will do. All else the start tells."""
    asyncio.run(_wait_loaded(url, Keys(agent).root))


async def _wait_loaded(url: str, root: str) -> None:
    redis, looks = connect(url, root), 0
    try:
        while await is_loading(redis):
            if not looks:
                log.warning("redis.loading")
            await back_off(looks)
            looks += 1
    finally:
        await redis.aclose()


@contextlib.contextmanager
def serving_metrics(system: ActorSystem, port: int | None, host: str | None) -> Iterator[None]:
    """Within this block the metrics of ``system`` are served, if there is a port for them.

    Raises:
        InvalidRequest: they cannot be, or there is a host without a port.
    """
    _check_metrics(port, host)
    if port is None:
        yield
        return
    try:
        from .metrics import serve_metrics
    except ImportError as error:
        raise InvalidRequest(f"--metrics: {error}") from None
    host = host or METRICS_HOST
    with serve_metrics(system, port, host) as served:
        log.info("metrics.serving", host=host, port=served)
        yield


def _check_metrics(port: int | None, host: str | None) -> None:
    if port is None and host is not None:
        raise InvalidRequest("--metrics-host is for --metrics PORT")


def metrics_words(names: list[str], port: int | None, host: str | None) -> dict[str, list[str]]:
    """The workers of a parent, each with the words that are for it alone: ports that follow one another.

    Raises:
        InvalidRequest: there are not so many ports, or there is a host without a port.
    """
    _check_metrics(port, host)
    if port is None:
        return {name: [] for name in names}
    said = [] if host is None else ["--metrics-host", host]
    if port and port + len(names) - 1 > MAX_PORT:
        raise InvalidRequest(f"--metrics: {len(names)} workers need as many ports, from {port} on")
    return {name: ["--metrics", str(port + number if port else 0), *said] for number, name in enumerate(names)}


def run_parent(
    words: list[str], agent: str, workers: Mapping[str, Sequence[str]], server: str | RedisServer, orders: Orders
) -> int:
    """Run the workers, each as ``greenroom run`` with these words and its own, in processes of their own.

    What is wrong for all of them is said here, once.

    Raises:
        InvalidRequest: the agent's name, or the URL.
        RedisUnavailable: the embedded server cannot be started.
    """
    Keys(agent)
    with using(server) as url, Notifier.from_environment() as notifier:
        connect(url)
        # The URL may have a password, which a command line would show to every user of the machine.
        environment = {**os.environ, URL_VARIABLE: url}
        with bound(agent=agent):
            command = [*_this_program(), "run", *words]
            return Processes(command, workers, orders, environment=environment, notifier=notifier).run()


def _this_program() -> list[str]:
    """How this program is started again. With its current directory importable only if it is for this process: a user's own
    redis.py must not be taken for another.
    """
    as_script = getattr(sys.modules["__main__"], "__spec__", None) is None
    return [sys.executable, *(["-P"] if as_script or sys.flags.safe_path else []), "-m", "greenroom"]


def option_words(options: Mapping[str, object]) -> list[str]:
    """Options as words of a command line."""
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def seconds(option: str, value: float) -> timedelta:
    """The value of an option, in seconds, as a duration.

    Raises:
        InvalidRequest: it is too long, or no number.
    """
    try:
        return timedelta(seconds=value)
    except (ValueError, OverflowError):
        raise InvalidRequest(f"{option}: want a number of seconds, got {value}") from None
