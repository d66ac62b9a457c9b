"""What a process is told from outside: by signals of the operating system, and by the parent that started it."""

from __future__ import annotations

import errno
import faulthandler
import os
import signal
import threading
import time
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Self

EARLY_S = 5.0
LOOK_S = 0.5
STDOUT, STDERR = 1, 2


class Order(Enum):
    """What a process can be told; the value is how its parent says it."""

    STOP = b"s"  # let cycles finish within the grace, then end
    FORCE = b"f"  # end at once
    DUMP = b"d"  # say what you are doing


class Orders:
    """Puts into ``events`` what this process is told: SIGTERM and SIGINT are STOP, a second one FORCE, and SIGUSR1 is DUMP.

    SIGHUP, unless it is ignored (``nohup``), is STOP, too, but only the first, and none is a second signal: when a terminal
    goes, its shell and the kernel both say so, and at a logout the service manager as well.

    A parent gives its orders over a socket, ``lifeline``, whose other end it alone holds: when it dies, however it dies, the
    socket is at its end, and that is STOP. A STOP of the parent and one of the operating system are not two signals: a service
    manager tells all processes at once.

    Enter it on the main thread before the agent's code is imported. Until ``begin`` there is nothing to stop: a STOP then
    raises KeyboardInterrupt in the main thread, and ends a child after 5 s if the code that is imported keeps it.
    """

    def __init__(self, lifeline: int | None = None) -> None:
        # Signal handlers may put into a SimpleQueue, whatever they have interrupted: into a Queue or an Event they may not.
        self.events: SimpleQueue[object] = SimpleQueue()
        self.lifeline = lifeline
        self._begun = False
        self._told = False
        self._signals = 0
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._signalled) for number in numbers}
        if self.lifeline is not None:
            os.set_inheritable(self.lifeline, False)
            threading.Thread(target=self._listen, args=(self.lifeline,), name="greenroom-lifeline", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def begin(self) -> None:
        """From now on somebody takes the events."""
        self._begun = True

    def next(self, due_s: float | None = None) -> object:
        """The next event; None when it is ``due_s`` by the monotonic clock before there is one. For the main thread.

        It wakes every half second: while one signal is pending the kernel hands the next to any thread, and that does not wake
        this one, which alone runs Python's handlers.
        """
        while True:
            left_s = LOOK_S if due_s is None else min(LOOK_S, due_s - time.monotonic())
            try:
                return self.events.get(timeout=max(0.0, left_s))
            except Empty:
                if due_s is not None and time.monotonic() >= due_s:
                    return None

    def _signalled(self, number: int, _frame: object) -> None:
        if os.getpid() != self._pid:  # a fork that the agent's code has made: it has nobody to tell, and is to end
            signal.signal(number, self._before[signal.Signals(number)])
            signal.raise_signal(number)
            return
        if number == signal.SIGUSR1:
            self._put(Order.DUMP)
            return
        first, self._told = not self._told, True
        if number == signal.SIGHUP:
            _leave_terminal()
            if not first:
                return
        else:
            self._signals += 1
        self.events.put(Order.STOP if self._signals <= 1 else Order.FORCE)
        if not self._begun:
            if self._signals > 1:
                os._exit(1)
            raise KeyboardInterrupt

    def _put(self, order: Order) -> None:
        if order is Order.DUMP and not self._begun:
            faulthandler.dump_traceback(STDERR)  # nobody takes the event: what is being imported may hang
        else:
            self.events.put(order)

    def _listen(self, lifeline: int) -> None:
        while word := _read(lifeline):
            self._ordered(Order(word))
        self._ordered(Order.STOP)

    def _ordered(self, order: Order) -> None:
        if order is Order.STOP:
            _leave_terminal()  # may be why: this process has a session of its own, and hears of no terminal
        self._put(order)
        if self._begun or order is Order.DUMP:
            return
        if order is Order.FORCE:
            os._exit(1)
        self._end_early()

    def _end_early(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGTERM)
        timer = threading.Timer(EARLY_S, self._give_up)
        timer.daemon = True
        timer.start()

    def _give_up(self) -> None:
        if not self._begun:
            os._exit(0)


def _leave_terminal() -> None:
    """If the terminal is gone, what is printed from here on is lost, instead of an OSError in a cycle that may still finish."""
    for number in (STDOUT, STDERR):
        try:
            os.get_terminal_size(number)
        except OSError as error:
            if error.errno == errno.EIO:  # else it is none, or closed
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)


def _read(lifeline: int) -> bytes:
    try:
        return os.read(lifeline, 1)
    except OSError:  # the agent's code has closed it: nobody could tell this process to end
        return b""
