"""``greenroom relay``: a process that hands outputs to a function."""

from __future__ import annotations

from typing import Annotated

import typer

from ..app_path import load_function
from ..logs import LogLevel, configure_logging
from ..options import AgentName, ChosenFormat, ChosenLevel, Embedded, RedisUrl
from ..protocol.log import bound
from ..running import seconds, using, wait_loaded, warn_of_password
from ..supervisors.orders import Orders
from ..supervisors.process import ExitCode, run_process
from ..supervisors.relay import Relay
from ..where import server_of


def relay(
    app: Annotated[str, typer.Argument(metavar="APP", show_default=False, help="module:function or path/to/file.py:function")],
    agent: AgentName,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    name: Annotated[
        str, typer.Option("--name", help="The relay's name: its place is kept by it, and of several with one name one works.")
    ] = "relay",
    max_rooms: Annotated[int, typer.Option(min=1, help="Of how many rooms outputs may be handed over at once.")] = 100,
    lease: Annotated[
        float, typer.Option(min=1, help="Seconds for which a relay that is gone keeps others of its name waiting.")
    ] = 5.0,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds in which the function may finish after SIGTERM or Ctrl-C.")
    ] = 25.0,
    log_level: ChosenLevel = LogLevel.INFO,
    log_format: ChosenFormat = None,
) -> int:
    """Hand each output of the agent's rooms to a function, until SIGTERM or Ctrl-C, or until its terminal goes.

    A second SIGTERM or Ctrl-C forces it to end.

    The function is called with the room and the output. What it raises is tried again with back-off, for ever.
    """
    configure_logging(log_level, log_format)
    warn_of_password(redis, agent)
    period, lease_period = seconds("--grace", grace), seconds("--lease", lease)
    try:
        with Orders() as orders:
            deliver = load_function(app)
            with using(server_of(redis, embedded)) as url:
                relay = Relay(agent, deliver, redis=url, name=name, max_rooms=max_rooms, lease=lease_period)
                with bound(agent=agent, relay=name):
                    wait_loaded(url, agent)
                    return run_process(relay, period, orders)
    except KeyboardInterrupt:  # told to end before there was anything to finish
        return ExitCode.OK
