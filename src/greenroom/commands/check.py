"""``greenroom check``: whether a worker is ready, or lives, for probes.

It is started every few seconds, so it parses its own arguments and imports what it needs when it needs it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ..protocol.errors import GreenroomError, InvalidRequest, RedisUnavailable
from ..protocol.keys import Keys, check_name

HEALTHY, UNHEALTHY, MISCONFIGURED, INTERRUPTED = 0, 1, 2, 130
TIMEOUT_S = 5.0


class NotHealthy(GreenroomError):
    """The answer is no, and why."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidRequest(f"{message} (see {self.prog} --help)")


def run(arguments: Sequence[str]) -> int:
    """Answer with the exit code: 0 healthy, 1 not, 2 misconfigured; and with a line, on stderr if it is not healthy."""
    try:
        said = _check(_parser().parse_args(arguments))
    except NotHealthy as no:
        return _complain(no, UNHEALTHY)
    except GreenroomError as error:
        return _complain(error, MISCONFIGURED)
    except SystemExit:  # --help
        return HEALTHY
    except KeyboardInterrupt:
        return INTERRUPTED
    sys.stdout.write(f"{said}\n")
    return HEALTHY


def _complain(error: GreenroomError, code: int) -> int:
    sys.stderr.write(f"greenroom: {error}\n")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="greenroom check",
        description="Answer a probe. Exit codes: 0 healthy, 1 not, 2 misconfigured.",
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--ready", action="store_true", help="whether Redis answers and holds the worker's lease")
    what.add_argument("--live", action="store_true", help="whether the worker's control loop turns; Redis has no part in it")
    add = parser.add_argument
    add("--agent", metavar="NAME", default=os.environ.get("GREENROOM_AGENT"), help="the agent's name; else $GREENROOM_AGENT")
    add("--worker", metavar="NAME", help="the worker's name; without it, any worker of the agent will do")
    add(
        "--probes",
        metavar="DIR",
        default=os.environ.get("GREENROOM_PROBES"),
        help="for --live: the directory that run was given; else $GREENROOM_PROBES",
    )
    add("--redis", metavar="URL", help="for --ready: where Redis is; else $GREENROOM_REDIS_URL")
    add("--embedded", metavar="DIR", help="for --ready: the embedded Redis of this directory")
    add("--timeout", metavar="SECONDS", type=float, default=TIMEOUT_S, help="how long to wait for an answer (%(default)s)")
    return parser


def _check(options: argparse.Namespace) -> str:
    if not options.agent:
        raise InvalidRequest("name the agent: --agent, or $GREENROOM_AGENT")
    if not 0 < options.timeout <= 3600:
        raise InvalidRequest("--timeout: want seconds, more than 0 and at most 3600")
    keys = Keys(options.agent)
    worker = None if options.worker is None else check_name(options.worker, "worker name")
    return _live(options, keys, worker) if options.live else _ready(options, keys, worker)


def _live(options: argparse.Namespace, keys: Keys, worker: str | None) -> str:
    from ..protocol.probe import is_live, socket_path, sockets_of

    if not options.probes:
        raise InvalidRequest("--live: name the directory that run was given: --probes, or $GREENROOM_PROBES")
    folder = Path(options.probes)
    if not folder.is_dir():
        raise InvalidRequest(f"--probes {folder}: no such directory: greenroom run --probes makes it")
    paths = list(sockets_of(folder, keys.agent)) if worker is None else [socket_path(folder, keys.agent, worker)]
    answers = [is_live(path, options.timeout) for path in paths]
    who = f"worker {worker}" if worker is not None else f"a worker of {keys.agent}"
    if False in answers:
        raise NotHealthy(f"{who} does not answer within {options.timeout:g} s: its control loop hangs")
    if True not in answers:
        raise NotHealthy(f"{who} is not running here")
    return "live"


def _ready(options: argparse.Namespace, keys: Keys, worker: str | None) -> str:
    import asyncio

    try:
        leases = asyncio.run(_leases(_url(options), keys, worker, options.timeout))
    except RedisUnavailable as error:
        raise NotHealthy(str(error)) from None
    if not leases:
        who = f"worker {worker}" if worker is not None else "no worker"
        raise NotHealthy(f"{who} of {keys.agent} {'has no lease' if worker is not None else 'has a lease'}")
    return f"ready: {' '.join(leases)}"


def _url(options: argparse.Namespace) -> str:
    from ..where import url_of

    return url_of(options.redis, None if options.embedded is None else Path(options.embedded))


async def _leases(url: str, keys: Keys, worker: str | None, timeout_s: float) -> list[str]:
    """Those of the workers whose lease Redis holds: of the one that is named, or of all."""
    import asyncio

    from ..protocol.connect import connect, open_connection, translate

    redis = connect(url)
    try:
        async with asyncio.timeout(timeout_s), open_connection(redis) as connection:

            async def ask(*words: str) -> object:
                await connection.send_command(*words, check_health=False)
                return await connection.read_response()

            members = await ask("SMEMBERS", keys.workers) if worker is None else [worker.encode()]
            assert isinstance(members, list)
            names = sorted(name.decode("utf-8", "backslashreplace") for name in members)
            return [name for name in names if await ask("EXISTS", keys.worker(name))]
    except TimeoutError:
        raise RedisUnavailable(f"Redis has not answered within {timeout_s:g} s") from None
    except Exception as error:
        raise translate(error) from None
    finally:
        await redis.aclose()
