"""``top`` at work: looks, draws, reads keys and sends signals, none of which waits for another."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

from ..protocol.client import AsyncClient
from ..protocol.errors import GreenroomError, RedisError
from ..protocol.records import Mode, Outcome
from ..protocol.watching import Watch
from .drawing import draw
from .keyboard import Keyboard
from .screen import Screen
from .view import Act, Quit, View

ESCAPE_S = 0.05  # after which an escape is a key of its own
ENDING = (signal.SIGTERM, signal.SIGHUP)


class Top:
    """One run of ``top`` on a terminal. The view has seen a first look."""

    def __init__(self, view: View, watch: Watch, client: AsyncClient, screen: Screen, interval_s: float) -> None:
        self._view, self._watch, self._client, self._screen = view, watch, client, screen
        self._interval_s = interval_s
        self._keyboard = Keyboard()
        self._escape: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()  # there is something to draw
        self._impatient = asyncio.Event()  # look now
        self._acts: set[asyncio.Task[None]] = set()
        self._code: int | None = None

    async def run(self) -> int:
        """Until a key or a signal ends it; the exit code."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._screen.keys, self._read)
        for number in ENDING:
            loop.add_signal_handler(number, self._end, 128 + number)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
        looking = loop.create_task(self._look())
        try:
            self._changed.set()
            while self._code is None:
                await self._changed.wait()
                self._changed.clear()
                self._screen.show(draw(self._view, *self._screen.console.size))
                if looking.done():
                    looking.result()
            if self._acts:  # what was asked for is still sent
                await asyncio.wait(self._acts)
        finally:
            looking.cancel()
            loop.remove_reader(self._screen.keys)
            for number in (*ENDING, signal.SIGTSTP, signal.SIGWINCH):
                loop.remove_signal_handler(number)
        return self._code

    def _end(self, code: int) -> None:
        self._code = code
        self._changed.set()

    def _suspend(self) -> None:
        self._screen.suspend()
        self._impatient.set()
        self._changed.set()

    # Looking. -----------------------------------------------------------------------------------------

    async def _look(self) -> None:
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_s):
                        await self._impatient.wait()
                self._impatient.clear()
                await self._look_once()
                self._changed.set()
        finally:
            self._changed.set()

    async def _look_once(self) -> None:
        view = self._view
        also = [view.selected] if view.selected is not None else []
        try:
            view.take(await self._watch.look(view.most, also=also, search=view.search))
        except RedisError as error:
            view.trouble = str(error)

    # Keys. --------------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            data = os.read(self._screen.keys, 1024)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            self._end(0)
            return
        if self._escape is not None:
            self._escape.cancel()
            self._escape = None
        self._press(self._keyboard.feed(data))
        if self._keyboard.waits:
            loop = asyncio.get_running_loop()
            self._escape = loop.call_later(ESCAPE_S, lambda: self._press(self._keyboard.flush()))

    def _press(self, keys: list[str]) -> None:
        for key in keys:
            before = (self._view.search, self._view.only)
            asked = self._view.press(key)
            if isinstance(asked, Quit):
                self._end(0)
            elif asked is not None:
                act = asyncio.get_running_loop().create_task(self._act(asked))
                self._acts.add(act)
                act.add_done_callback(self._acts.discard)
            if (self._view.search, self._view.only) != before:
                self._impatient.set()
        self._changed.set()

    async def _act(self, act: Act) -> None:
        try:
            self._view.notice = await self._send(act)
        except GreenroomError as error:
            self._view.notice = str(error)
        self._impatient.set()
        self._changed.set()

    async def _send(self, act: Act) -> str:
        """Send the signal; say what came of it."""
        client = self._client
        if act.mode is Mode.INTERRUPT:
            [receipt] = await client.interrupt(act.room, message=act.message)
        else:
            send = {Mode.STOP: client.stop, Mode.PAUSE: client.pause, Mode.PLAY: client.play}[act.mode]
            [receipt] = await send(act.room, reason=act.reason)
        hold = self._view.look and self._view.look.agent.hold
        still = ", but all rooms are held" if act.mode is Mode.PLAY and hold else ""
        why = " (its message has ended)" if act.mode is Mode.INTERRUPT and receipt.outcome is Outcome.IDLE else ""
        return f"{act.mode} {act.room}: {receipt.outcome}{why}{still}"
