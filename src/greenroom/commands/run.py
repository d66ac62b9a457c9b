"""``greenroom run``: a supervisor process, or the parent of several."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from ..app_path import load_agent
from ..options import AgentName, Embedded, LogLevel, RedisUrl, option
from ..running import option_words, run_parent, seconds, using
from ..supervisors.orders import Orders
from ..supervisors.process import ExitCode, label_stderr, run_process
from ..supervisors.processes import worker_names
from ..supervisors.system import ActorSystem
from ..where import server_of


def run(
    app: Annotated[str, typer.Argument(metavar="APP", show_default=False, help="module:Class or path/to/file.py:Class")],
    agent: AgentName,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    name: Annotated[
        str | None, option("--name", help="This worker's name, kept over restarts; the host and process id by default.")
    ] = None,
    processes: Annotated[
        int | None, option("--processes", min=1, help="Supervise so many worker processes, named NAME-1, NAME-2 and so on.")
    ] = None,
    max_rooms: Annotated[int, typer.Option(min=1, help="How many rooms may be at work at once, in each process.")] = 1000,
    lease: Annotated[float, typer.Option(min=1, help="Seconds for which a worker that is gone keeps its rooms.")] = 5.0,
    recovery_rate: Annotated[
        float, typer.Option(min=0.01, help="How many rooms a second are resumed after a restart, beside new work.")
    ] = 100.0,
    grace: Annotated[float, typer.Option(min=0, help="Seconds in which cycles may finish after SIGTERM or Ctrl-C.")] = 25.0,
    log_level: Annotated[LogLevel, typer.Option(help="Log to stderr from this level on.")] = LogLevel.INFO,
    probes: Annotated[
        Path | None,
        option(
            "--probes",
            metavar="DIR",
            envvar="GREENROOM_PROBES",
            help="Answer greenroom check on a Unix socket in this directory.",
        ),
    ] = None,
    lifeline: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> int:
    """Run a supervisor process: it works for the agent until SIGTERM or Ctrl-C; a second one forces it to end.

    SIGUSR1 has it write all threads, tasks and rooms to stderr.
    """
    if lifeline is not None:
        label_stderr(str(name))
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=log_level.upper())
    period, lease_period = seconds("--grace", grace), seconds("--lease", lease)
    try:
        with Orders(lifeline) as orders:
            if processes is not None:
                options: dict[str, object] = {
                    "max-rooms": max_rooms,
                    "lease": lease,
                    "recovery-rate": recovery_rate,
                    "grace": grace,
                }
                if probes is not None:
                    options["probes"] = probes
                words = ["--agent", agent, "--log-level", log_level, *option_words(options)]
                return run_parent([app, *words], agent, worker_names(name, processes), server_of(redis, embedded), orders)
            agent_class = load_agent(app)
            with using(server_of(redis, embedded)) as url:
                system = ActorSystem(
                    agent_class,
                    agent=agent,
                    redis=url,
                    name=name,
                    max_rooms=max_rooms,
                    lease=lease_period,
                    recovery_rate=recovery_rate,
                    probes=probes,
                )
                return run_process(system, period, orders)
    except KeyboardInterrupt:  # told to end before there was anything to drain
        return ExitCode.OK
