"""``greenroom top``: a live table of an agent's rooms."""

from __future__ import annotations

import asyncio
import shutil
import sys
from typing import Annotated

import typer

from ..ending import raise_on_ctrl_c
from ..options import AgentName, Embedded, RedisUrl
from ..protocol.client import AsyncClient
from ..protocol.keyspace import agents_instead, no_such_agent
from ..protocol.watching import Watch
from ..supervisors.process import ExitCode, complain
from ..top.drawing import rows_that_fit, snapshot
from ..top.live import Top
from ..top.screen import Screen
from ..top.view import View
from ..where import url_of
from .clients import PATIENCE_S, store_of

SNAPSHOT_ROOMS, SNAPSHOT_WIDTH = 100, 160
LOOK_PATIENCE_S = 2.0  # after which a Redis that does not answer is told


def top(
    agent: AgentName,
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks.")] = 1.0,
    redis: RedisUrl = None,
    embedded: Embedded = None,
) -> int:
    """Watch the agent: rooms by what they do, how much happens, what runs for long, fails or is held, and the workers.

    Choose a room with the arrows, and interrupt, stop, pause or play it; ? tells the keys. Without a terminal it is shown once.
    """
    raise_on_ctrl_c()
    return asyncio.run(_top(agent, url_of(redis, embedded), interval))


async def _top(agent: str, url: str, interval_s: float) -> int:
    view = View()
    async with store_of(agent, url, LOOK_PATIENCE_S) as store:
        watch, others = Watch(store), await agents_instead(store)
        view.notice = "" if others is None else no_such_agent(agent, others)
        if not (sys.stdin.isatty() and sys.stdout.isatty()) or (screen := Screen()).console.is_dumb_terminal:
            view.take(await watch.look(SNAPSHOT_ROOMS))
            if view.notice:
                complain(view.notice)
            width = shutil.get_terminal_size((SNAPSHOT_WIDTH, 0)).columns
            typer.echo("\n".join(snapshot(view, width)))
            return ExitCode.OK
        # What is wrong with Redis is said before the screen is taken over.
        view.take(await watch.look(rows_that_fit(screen.console.height)))
        async with AsyncClient(agent, redis=url, timeout=PATIENCE_S) as client:
            with screen:
                return await Top(view, watch, client, screen, interval_s).run()
