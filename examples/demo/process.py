"""The supervisor as a process of its own, started as an operator would start it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent
START_S = 120.0
STOP_S = 45.0  # more than the 25 s that cycles are given to finish


class DemoFailed(Exception):
    """A step did not go as it must."""


class SupervisorProcess:
    """One ``greenroom run``. What it logs goes to ``log``, also when it is started again."""

    def __init__(self, agent: str, name: str, log: Path) -> None:
        self._agent = agent
        self._name = name
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._copying: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def command(self, redis: str) -> list[str]:
        """What is run, as one types it; its folder is that of the examples."""
        run = ["greenroom", "run", "support_agent:Support"]
        return [*run, "--agent", self._agent, "--redis", redis, "--name", self._name]

    async def start(self, redis: str) -> None:
        """Start it, and return when it says that it works.

        Raises:
            DemoFailed: it ended, or did not say so within two minutes.
        """
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *self.command(redis)),
            cwd=EXAMPLES,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the demo alone, which then ends this one
        )
        started = asyncio.Event()
        self._copying = asyncio.create_task(self._copy(self._process, started))
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait([waiting, self._copying], timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not started.is_set():
            raise DemoFailed(f"the supervisor did not start: see {self._log}")

    async def _copy(self, process: asyncio.subprocess.Process, started: asyncio.Event) -> None:
        assert process.stdout is not None
        with self._log.open("ab") as log:
            async for line in process.stdout:
                log.write(line)
                log.flush()
                if b"worker.started" in line:
                    started.set()

    async def kill(self) -> None:
        """SIGKILL: it gets no chance to tidy up."""
        await self._end(signal.SIGKILL, STOP_S)

    async def stop(self) -> int:
        """SIGTERM: it ends its work and leaves. Answers its exit code.

        Raises:
            DemoFailed: it has not ended in time.
        """
        return await self._end(signal.SIGTERM, STOP_S)

    async def clean_up(self) -> None:
        """End it if it still runs, in whatever way it takes."""
        if self._process is not None and self._process.returncode is None:
            try:
                await self._end(signal.SIGTERM, 5.0)
            except DemoFailed:
                await self.kill()

    def kill_now(self) -> None:
        """As ``kill``, without an event loop to wait on."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    async def _end(self, how: signal.Signals, limit_s: float) -> int:
        process, copying = self._process, self._copying
        assert process is not None
        assert copying is not None
        try:
            os.kill(process.pid, how)
            async with asyncio.timeout(limit_s):
                code = await process.wait()
                await copying
        except ProcessLookupError:
            code = await process.wait()
        except TimeoutError:
            raise DemoFailed(f"the supervisor (process {process.pid}) did not end within {limit_s:.0f} s") from None
        return code
