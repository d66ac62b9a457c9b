"""The worker processes: three places, each with a worker that is started again whatever becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import astuple, dataclass
from pathlib import Path

from greenroom.supervisors.process import ExitCode

from .agent import PLANNED_EXIT
from .ledger import Ledger, Trouble, now_ms

AGENT = "chaos"
LEASE_S = 2.0
MAX_ROOMS = 12  # less than there are rooms: they must take turns
AGAIN_S = 0.3  # before a worker that ended by itself is started again
DRAIN_S = 20.0  # within which a worker must have ended after SIGTERM; its grace is 1 s


@dataclass(frozen=True, slots=True)
class Options:
    """What all workers of a fleet are started with."""

    agent: str = AGENT
    lease_s: float = LEASE_S
    max_rooms: int = MAX_ROOMS
    recovery_rate: float = 100.0


@dataclass(eq=False)
class Process:
    """One worker process. ``expected`` is the exit code that it is going to have; None: it is to run on."""

    name: str
    child: asyncio.subprocess.Process
    spawned_ms: int
    expected: int | None = None
    started: bool = False
    suspended: bool = False

    @property
    def runs(self) -> bool:
        return self.child.returncode is None

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself meanwhile
            os.kill(self.child.pid, number)


class Place:
    """Where one worker runs. ``lock`` is held by whoever acts on it, so that a worker that ends by itself is started once."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self._fleet = fleet
        self.number = number
        self.generation = 1
        self.lock = asyncio.Lock()
        self.process: Process | None = None

    @property
    def name(self) -> str:
        """The name of the worker that runs here; a new generation has a new one."""
        return f"w{self.number}" if self.generation == 1 else f"w{self.number}.{self.generation}"

    async def start(self) -> Process:
        """Start a worker here, under the place's name."""
        self.process = await self._fleet.spawn(self.name, self)
        return self.process

    async def end(self, number: signal.Signals, expected: int) -> Process | None:
        """End the worker that runs here by a signal, and wait until it has; None if there is none."""
        process = self.process
        if process is None or not process.runs:
            return None
        process.expected = expected
        await self._fleet.end(process, number)
        return process

    def resume(self) -> None:
        if self.process is not None and self.process.suspended:
            self.process.suspended = False
            self.process.signal(signal.SIGCONT)


class Fleet:
    """Starts workers, and watches how they end. What they log goes to files in ``folder``."""

    def __init__(self, ledger: Ledger, url: str, folder: Path, places: int, options: Options = Options()) -> None:
        self._ledger = ledger
        self._url = url
        self._folder = folder
        self._options = options
        self._watching: dict[Process, asyncio.Task[None]] = {}
        self.places = [Place(self, number) for number in range(1, places + 1)]
        self.ending = False  # nothing is started again

    async def spawn(self, name: str, place: Place | None) -> Process:
        """Start a worker; with ``place``, one that ends by itself is started there again."""
        options, spawned_ms = astuple(self._options), now_ms()
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "chaos_kit.worker", self._url, name, *map(str, options)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the chaos alone, which then ends this one
        )
        process = Process(name, child, spawned_ms)
        self._watching[process] = asyncio.create_task(self._watch(process, place))
        return process

    async def _watch(self, process: Process, place: Place | None) -> None:
        assert process.child.stderr is not None
        with (self._folder / f"{process.name}.log").open("ab") as log:
            async for line in process.child.stderr:
                log.write(line)
                log.flush()
                self._hear(process, line)
        code = await process.child.wait()
        self._ledger.add_trouble(Trouble(process.name, now_ms(), now_ms()))
        self._judge(process, code)
        del self._watching[process]
        if place is not None and process.expected is None:
            await asyncio.sleep(AGAIN_S)
            async with place.lock:
                if place.process is process and not self.ending:
                    await place.start()

    def _hear(self, process: Process, line: bytes) -> None:
        if b" refused " in line:
            self._ledger.events["refused " + line.split(b" refused ")[1].split()[0].decode()] += 1
        elif b"event=worker.started" in line:
            process.started = True
            self._ledger.add_trouble(Trouble(process.name, process.spawned_ms, now_ms()))
            self._ledger.did("started", process.name)

    def _judge(self, process: Process, code: int) -> None:
        if code == PLANNED_EXIT:
            self._ledger.did("exits of workers by their agent", process.name)
        elif code == ExitCode.REDIS and not process.started:
            self._ledger.did("starts without Redis", process.name)
        elif code == -signal.SIGTERM and not process.started:
            pass  # drained before it had come to handle signals
        elif code != process.expected:
            wanted = "none" if process.expected is None else process.expected
            self._ledger.complain(f"worker {process.name} (process {process.child.pid}) ended with {code}, expected: {wanted}")

    async def end(self, process: Process, number: signal.Signals) -> None:
        """End a worker by a signal, and wait until it has."""
        with self._ledger.trouble(process.name):
            process.signal(number)
            await self.join(process)

    async def join(self, process: Process) -> None:
        """Wait until a process that was told to end has ended; one that does not is killed and complained about."""
        try:
            async with asyncio.timeout(DRAIN_S):
                await process.child.wait()
        except TimeoutError:
            self._ledger.complain(f"worker {process.name} (process {process.child.pid}) did not end within {DRAIN_S:.0f} s")
            process.signal(signal.SIGKILL)
            await process.child.wait()

    async def stop(self) -> None:
        """End all workers gracefully."""
        self.ending = True
        async with contextlib.AsyncExitStack() as locks:
            for place in self.places:
                await locks.enter_async_context(place.lock)
            await asyncio.gather(*(place.end(signal.SIGTERM, ExitCode.OK) for place in self.places))
        if self._watching:
            await asyncio.wait(set(self._watching.values()))

    def kill_now(self) -> None:
        """End every process at once, however things are."""
        self.ending = True
        for process in self._watching:
            process.expected = -signal.SIGKILL
            process.signal(signal.SIGKILL)
