"""``greenroom run``: a supervisor process, or the parent of several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..app_path import load_agent
from ..keeping import retention_of
from ..logs import LogLevel, configure_logging
from ..options import AgentName, ChosenFormat, ChosenLevel, Embedded, RedisUrl, option
from ..protocol.log import bound
from ..running import metrics_words, option_words, run_parent, seconds, serving_metrics, using, wait_loaded, warn_of_password
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
    keep: Annotated[
        list[str] | None,
        option(
            "--keep",
            metavar="NAME=VALUE",
            help="How much is kept of what is over, in entries or as 90s, 30m, 24h, 7d: outbox, outbox_for, events, control, "
            "receipts, dead, idle_rooms. May be said several times.",
        ),
    ] = None,
    log_level: ChosenLevel = LogLevel.INFO,
    log_format: ChosenFormat = None,
    metrics: Annotated[
        int | None, option("--metrics", metavar="PORT", min=0, max=65535, help="Serve metrics for Prometheus on this port.")
    ] = None,
    metrics_host: Annotated[
        str | None, option("--metrics-host", metavar="HOST", help="The address for it; 127.0.0.1 by default.")
    ] = None,
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
    """Run a supervisor process: it works for the agent until SIGTERM or Ctrl-C, or until its terminal goes.

    A second SIGTERM or Ctrl-C forces it to end.

    SIGUSR1 has it write all threads, tasks and rooms to stderr.
    """
    if lifeline is not None:
        label_stderr(str(name))
    configure_logging(log_level, log_format)
    warn_of_password(redis, agent)
    period, lease_period = seconds("--grace", grace), seconds("--lease", lease)
    retention = retention_of(keep or ())
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
                if log_format is not None:
                    options["log-format"] = log_format
                kept = [word for said in keep or () for word in ("--keep", said)]
                words = [app, "--agent", agent, "--log-level", log_level, *option_words(options), *kept]
                workers = metrics_words(worker_names(name, processes), metrics, metrics_host)
                return run_parent(words, agent, workers, server_of(redis, embedded), orders)
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
                    retention=retention,
                    probes=probes,
                )
                with bound(agent=agent, worker=system.name), serving_metrics(system, metrics, metrics_host):
                    wait_loaded(url, agent)
                    return run_process(system, period, orders)
    except KeyboardInterrupt:  # told to end before there was anything to drain
        return ExitCode.OK
