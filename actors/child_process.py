"""A child process as its worker has it: started, talked to, and killed with all that it has started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from .frames import MOST_BYTES, BadFrame, Frames, check_from_child, pack
from .loop import LoopThread
from .threads import start_thread

READ = 256 * 1024  # more than the kernel holds of what one child has said
REST = 16  # reads of what was said before the end, at the most: something that has left the group may talk on

OnFrame = Callable[[list[Any]], None]


class Channel:
    """The worker's end of the socket pair, on the control loop. ``on_bad`` is called with a frame's fault."""

    def __init__(
        self, control: LoopThread, connection: socket.socket, on_frame: OnFrame, on_bad: Callable[[str], None]
    ) -> None:
        self._loop = control.loop
        self._connection = connection
        self._on_frame = on_frame
        self._on_bad = on_bad
        self._frames = Frames(MOST_BYTES)
        self._out = bytearray()
        self._open = True
        connection.setblocking(False)
        self._loop.add_reader(connection, self._read)

    def send(self, *frame: Any) -> None:
        """Does not wait; nobody may be there any more."""
        if self._open:
            self._out += pack(*frame)
            self._write()

    def _write(self) -> None:
        try:
            while self._out:
                del self._out[: self._connection.send(self._out)]
        except BlockingIOError:
            self._loop.add_writer(self._connection, self._write)
            return
        except OSError:  # the child has gone, and its end will be told
            self._out.clear()
        self._loop.remove_writer(self._connection)

    def _read(self) -> bool:
        """Take what is there; answer whether there may be more."""
        if not self._open:
            return False
        try:
            data = self._connection.recv(READ)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._connection)  # its end will be told when all is over
            return False
        try:
            for frame in self._frames.feed(data):
                check_from_child(frame)
                self._on_frame(frame)
        except BadFrame as error:
            self.close()
            self._on_bad(str(error))
        return self._open

    def read_rest(self) -> None:
        """Take what was said before the end."""
        for _ in range(REST):
            if not self._read():
                break

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._connection)
            self._loop.remove_writer(self._connection)
            self._connection.close()


class ChildProcess:
    """One child, on the control loop but for the thread that starts it and waits for its end. It has a session, and so a
    process group, of its own.

    ``on_frame(child, frame)`` is called with what it says, ``on_end(child, how)`` once when it is over: it, and all of its
    group, is dead.

    Raises:
        OSError, RuntimeError: no file or no thread is to be had for it.
    """

    def __init__(
        self,
        control: LoopThread,
        on_frame: Callable[[ChildProcess, list[Any]], None],
        on_end: Callable[[ChildProcess, str], None],
    ) -> None:
        self._control = control
        self._on_end = on_end
        self._lock = threading.Lock()  # a process id is killed while it is this child's
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._fault = ""
        ours, theirs = socket.socketpair()
        reading, self._lifeline = os.pipe()
        self.channel = Channel(control, ours, partial(on_frame, self), self._bad)
        try:
            start_thread("greenroom-child", partial(self._live, theirs, reading))
        except BaseException:
            theirs.close()
            os.close(reading)
            self.close()
            raise

    @property
    def pid(self) -> int:
        """0 before it has one, and when it is over."""
        process = self._process
        return process.pid if process is not None else 0

    def send(self, *frame: Any) -> None:
        self.channel.send(*frame)

    def kill(self) -> None:
        """Kill its group, now or as soon as there is one. Its end will be told. From any thread, and as often as you like."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                _kill_group(self._process.pid)

    def close(self) -> None:
        """Let go of its files: alive, it ends itself."""
        self.channel.close()
        lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)

    def _bad(self, fault: str) -> None:
        self._fault = f"was ended, as it said what no child says: {fault}"
        self.kill()

    def _live(self, theirs: socket.socket, reading: int) -> None:
        """On the child's own thread."""
        try:
            # -u: it is going to be killed, with whatever waits in a buffer.
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", _program(theirs.fileno(), reading)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), reading],
                start_new_session=True,
            )
        except Exception as error:  # no memory, too many processes, or the interpreter is about to end
            self._control.post(self._ended, f"could not be started: {error}")
            return
        finally:
            theirs.close()
            os.close(reading)
        with self._lock:
            self._process = process
            if self._killed:
                _kill_group(process.pid)
        _await_end(process)
        with self._lock:
            _kill_group(process.pid)  # what it has left behind; not waited for yet, its id is nobody else's
            code = process.wait()
            self._process = None
        self._control.post(self._ended, how_it_ended(code))

    def _ended(self, how: str) -> None:
        self.channel.read_rest()
        self.close()
        self._on_end(self, self._fault or how)


_PROGRAM = """\
import sys
home, path = {home!r}, {path!r}
own = [*filter(None, sys.path)]
sys.path[:] = [*([] if home in own else [home]), *own, *path]
from greenroom.actors.child import main
sys.path[:] = path
main({connection}, {lifeline})
"""


def _program(connection: int, lifeline: int) -> str:
    """What is importable for the agent is as it is here. What greenroom itself imports is looked for where the interpreter
    looks by itself, before that: a file beside the agent's may have the name of any of it.
    """
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = [entry for entry in sys.path if isinstance(entry, str)]
    return _PROGRAM.format(home=home, path=path, connection=connection, lifeline=lifeline)


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """Wait until it has ended, and leave it a zombie, where that can be done."""
    if sys.platform != "linux":
        process.wait()
        return
    with suppress(ChildProcessError):  # the host waits for all children of its process, or ignores their ends
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        os.killpg(group, signal.SIGKILL)


def how_it_ended(code: int) -> str:
    """In words, from an exit code as ``subprocess`` has it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
