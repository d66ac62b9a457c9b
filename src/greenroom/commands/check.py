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
TIMEOUT_S, MOST_S = 5.0, 3600


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
        epilog="With a directory of probes, the workers that run here are asked: each answers by its own control loop, and all "
        "that run have to answer well. Without one, --ready asks Redis for the lease of a worker, wherever that runs.",
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--ready", action="store_true", help="connected to Redis, and the lease is held")
    what.add_argument("--live", action="store_true", help="the control loop turns; Redis has no part in it")
    add, env = parser.add_argument, os.environ.get
    add("--agent", metavar="NAME", default=env("GREENROOM_AGENT"), help="the agent's name; else $GREENROOM_AGENT")
    add("--worker", metavar="NAME", help="ask about this worker only")
    add("--probes", metavar="DIR", default=env("GREENROOM_PROBES"), help="as run has it; else $GREENROOM_PROBES")
    add("--redis", metavar="URL", help="where Redis is; else $GREENROOM_REDIS_URL")
    add("--embedded", metavar="DIR", help="ask the embedded Redis of this directory")
    add("--timeout", metavar="SECONDS", type=float, default=TIMEOUT_S, help="how long to wait for an answer (%(default)s)")
    return parser


def _check(options: argparse.Namespace) -> str:
    if not options.agent:
        raise InvalidRequest("name the agent: --agent, or $GREENROOM_AGENT")
    if not 0 < options.timeout <= MOST_S:
        raise InvalidRequest(f"--timeout: want seconds, more than 0 and at most {MOST_S}")
    keys = Keys(options.agent)
    worker = None if options.worker is None else check_name(options.worker, "worker name")
    if options.redis is not None or options.embedded is not None or (options.ready and not options.probes):
        if options.live:
            raise InvalidRequest("--live: Redis has no part in it")
        return _leased(options, keys, worker)
    return _answered(options, keys, worker)


def _answered(options: argparse.Namespace, keys: Keys, worker: str | None) -> str:
    """What the workers that run here say of themselves."""
    from ..protocol.probe import LIVE, READY, ask_worker, socket_path, sockets_of

    if not options.probes:
        raise InvalidRequest("--live: name the directory that run was given: --probes, or $GREENROOM_PROBES")
    folder = Path(options.probes)
    if not folder.is_dir():
        raise InvalidRequest(f"--probes {folder}: no such directory: greenroom run --probes makes it")
    paths = list(sockets_of(folder, keys.agent)) if worker is None else [socket_path(folder, keys.agent, worker)]
    answers = {ask_worker(path, options.timeout) for path in paths} - {None}  # what a killed worker has left says nothing
    who = f"a worker of {keys.agent}" if worker is None else f"worker {worker} of {keys.agent}"
    if not answers:
        raise NotHealthy(f"{who} is not running here")
    if not answers <= {LIVE, READY}:
        raise NotHealthy(f"{who} does not answer within {options.timeout:g} s: its control loop hangs")
    if options.ready and answers != {READY}:
        raise NotHealthy(f"{who} is not connected to Redis, has lost its lease, or is ending")
    return "ready" if options.ready else "live"


def _leased(options: argparse.Namespace, keys: Keys, worker: str | None) -> str:
    """What Redis says."""
    import asyncio

    from ..where import url_of

    try:
        url = url_of(options.redis, None if options.embedded is None else Path(options.embedded))
        leases = asyncio.run(_leases(url, keys, worker, options.timeout))
    except RedisUnavailable as error:
        raise NotHealthy(str(error)) from None
    if not leases:
        raise NotHealthy(f"no worker of {keys.agent} has a lease" if worker is None else f"worker {worker} has no lease")
    return f"ready: {' '.join(leases)}"


async def _leases(url: str, keys: Keys, worker: str | None, timeout_s: float) -> list[str]:
    """Those of the workers whose lease Redis holds: of the one that is named, or of all."""
    import asyncio

    from ..protocol.connect import connect, open_connection, translate

    redis = connect(url, keys.root)
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
