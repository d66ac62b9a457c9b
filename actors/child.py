"""The main program of a child process: one agent, one cycle or hook at a time.

It is a runner as the worker itself has one, with a link that asks the worker instead of Redis. A thread of its own listens to
the worker: whatever the agent's code does, the end of the worker is the end of this process and of all in its group.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import socket
import sys
import threading
import traceback
from dataclasses import astuple
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn

from ..protocol.errors import AgentError, CycleEnded, GreenroomError, words_of
from ..protocol.log import forward
from ..protocol.store import Abort
from .agent import AgentSpec, inspect_agent
from .frames import FROM_WORKER, Frames, pack, unpack_error, unpack_message
from .interruption import Code
from .link import Done
from .loop import LoopThread
from .origin import Origin, load
from .room_events import Cancelled, Closed, Failed, Finished
from .runner import Aborted, Run, Runner

CHUNK = 64 * 1024


def main(connection: int, lifeline: int) -> NoReturn:
    """``connection`` is this end of the socket pair; ``lifeline`` is at its end when the worker is."""
    for number in (connection, lifeline):
        os.set_inheritable(number, False)
    _die_with_worker(lifeline)
    _let_worker_decide()
    child = Child(socket.socket(fileno=connection))
    threading.Thread(target=child.listen, name="greenroom-worker", daemon=True).start()
    try:
        child.load()
    except BaseException as error:  # it is the user's module and constructor: they may raise anything
        traceback.print_exc()
        child.send("unfit", f"{type(error).__name__}: {words_of(error)}")
    while True:
        signal.pause()


def _die_with_worker(lifeline: int) -> None:
    """Have the kernel kill this process group when the worker's end of the lifeline is closed. Only Linux can; elsewhere the
    thread that listens does it, unless the agent's code keeps all threads from running.
    """
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _let_worker_decide() -> None:
    """Service managers tell all processes at once to end; here the worker does, when its cycles have had their time. What the
    agent's code forks or starts is ended as usual.
    """

    def told_to_end(number: int, _frame: object) -> None:
        pass

    def be_as_usual() -> None:
        for number in numbers:
            if signal.getsignal(number) is told_to_end:
                signal.signal(number, signal.SIG_DFL)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, told_to_end)
    os.register_at_fork(after_in_child=be_as_usual)


class ChildLink:
    """A cycle's way to its worker, which has the link to Redis."""

    def __init__(self, child: Child, ticket: int) -> None:
        self._child = child
        self.ticket = ticket
        self.ended = ""
        self.acked = 0

    def push(self, data: bytes) -> None:
        self._child.send("push", self.ticket, data)

    def request(self, done: Done, what: str, *args: Any) -> None:
        self._child.ask(self, done, what, args)

    def answered(self, acked: int, error: GreenroomError | None) -> None:
        self.acked = max(self.acked, acked)
        if isinstance(error, CycleEnded):
            self.ended = self.ended or error.why


class Child:
    """This process, as its worker sees it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._origin: SimpleQueue[tuple[str, Origin]] = SimpleQueue()
        self._runner: Runner
        self._ticket = 0
        self._run: Run | None = None
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[ChildLink, Done]] = {}

    def load(self) -> None:
        """Make the agent, as the worker's first words say, and tell that it is ready."""
        name, origin = self._origin.get()
        spec = self._load_spec(origin)
        user = LoopThread("greenroom-user")
        user.start()
        self._runner = Runner(spec, name, spec.agent_class(), user)
        self.send("ready")

    def _load_spec(self, origin: Origin) -> AgentSpec:
        found = load(origin)
        if found is None:
            raise AgentError(f"{origin.file or origin.module} has no {origin.qualname} when a child process loads it")
        return inspect_agent(found)

    # To the worker. -------------------------------------------------------------------------------

    def send(self, *frame: Any) -> None:
        """From any thread."""
        data = pack(*frame)
        try:
            with self._sending:
                self._connection.sendall(data)
        except OSError:
            _end()

    def ask(self, link: ChildLink, done: Done, what: str, args: tuple[Any, ...]) -> None:
        number = next(self._numbers)
        self._asked[number] = (link, done)
        self.send("ask", link.ticket, number, what, args)

    def _report(self, report: Finished | Failed | Cancelled | Closed) -> None:
        self.send(type(report).__name__.lower(), *astuple(report))

    # From the worker. -----------------------------------------------------------------------------

    def listen(self) -> None:
        """Until the worker has gone. No code of the agent's runs on this thread."""
        frames = Frames(FROM_WORKER)
        try:
            while data := self._connection.recv(CHUNK):
                for frame in frames.feed(data):
                    self._told(*frame)
        finally:
            _end()

    def _told(self, kind: str, *rest: Any) -> None:
        match kind:
            case "answer":
                self._answered(*rest)
            case "abort":
                self._abort(*rest)
            case "cycle":
                self._start_cycle(*rest)
            case "hook":
                self._start_hook(*rest)
            case "load":
                name, level, *origin = rest
                forward(level, partial(self.send, "log"))
                sys.argv[:] = origin.pop()
                self._origin.put((name, Origin(*origin)))

    def _answered(self, number: int, acked: int, answer: bytes | str, error: list[str] | None) -> None:
        link, done = self._asked.pop(number)
        raised = unpack_error(error)
        link.answered(acked, raised)
        done(answer, raised)

    def _abort(self, ticket: int, why: str) -> None:
        if self._run is not None and self._ticket == ticket:
            self._run.abort(why)

    def _start_cycle(self, ticket: int, message: list[bytes], state: bytes | None) -> None:
        self._ticket = ticket
        self._run = self._runner.start(unpack_message(message), state, ChildLink(self, ticket), _nothing, self._report)

    def _start_hook(
        self, ticket: int, message: list[bytes], state: bytes | None, abort: list[Any], sent: list[bytes], code: Code
    ) -> None:
        aborted = Aborted(unpack_message(message), ticket, Abort(*abort), sent, code)
        self._run = self._runner.start_hook(aborted, state, _nothing, self._report)


def _nothing() -> None:
    """The worker has the time limits."""


def _end() -> NoReturn:
    """Nobody is left to work for: neither for this process nor for what it has started."""
    os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)
