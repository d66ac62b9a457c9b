"""The record outside Redis: what was sent, signalled and seen, written to a file as it happens."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from greenroom import AsyncClient, Kind, Output, RedisUnavailable

ENDS = {Kind.REPLY: "committed", Kind.DEAD: "dead", Kind.DISCARDED: "discarded"}


def place(stream_id: str) -> tuple[int, int]:
    """A stream id as something that can be compared; "" is before everything."""
    ms, _, seq = stream_id.partition("-")
    return int(ms or 0), int(seq or 0)


def ending(output: Output) -> str | None:
    """How this output ends its message for good: committed, interrupted, dead or discarded; None if it does not."""
    if output.kind is Kind.ABORTED and output.mode == "interrupt":
        return "interrupted"
    return ENDS.get(output.kind)


@dataclass(frozen=True)
class Sent:
    """A message that Redis has accepted."""

    room: str
    message: int
    key: str
    text: str


@dataclass(frozen=True)
class Signalled:
    """A signal that was answered. ``before`` and ``after`` are the room's last output just before it was sent and just after it
    was answered.
    """

    room: str
    mode: str
    outcome: str
    message: int | None
    before: str
    after: str


@dataclass
class Record:
    """Everything that was observed, in the order in which it was. ``path`` gets one JSON line for each; None keeps no file."""

    path: Path | None = None
    sent: list[Sent] = field(default_factory=list)
    signals: list[Signalled] = field(default_factory=list)
    outputs: dict[str, list[Output]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    lines: int = 0

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._file = self.path.open("a", encoding="utf-8") if self.path is not None else None
        self._watchers: set[asyncio.Event] = set()

    def add_sent(self, sent: Sent) -> None:
        self.sent.append(sent)
        self._write("sent", asdict(sent))

    def add_signal(self, signal: Signalled) -> None:
        self.signals.append(signal)
        self._write("signal", asdict(signal))

    def add_output(self, room: str, output: Output) -> None:
        self.outputs.setdefault(room, []).append(output)
        if ending(output):
            self.ended.add(output.message)
        self._write("output", {"room": room, **output.model_dump(mode="json", exclude_none=True)})

    def last(self, room: str) -> str:
        """The id of the last output seen of a room, or nothing."""
        outputs = self.outputs.get(room)
        return outputs[-1].id if outputs else ""

    def _write(self, what: str, row: dict[str, Any]) -> None:
        if self._file is not None:
            line = {"at_s": round(time.monotonic() - self._began, 3), "what": what, **row}
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()  # it is there whatever dies next
        self.lines += 1
        for watcher in self._watchers:
            watcher.set()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def of_message(self, room: str, message: int) -> list[Output]:
        """What the room has sent for one message."""
        return [output for output in self.outputs.get(room, ()) if output.message == message]

    def open_messages(self, room: str | None = None) -> list[Sent]:
        """What was sent and has not ended, oldest first."""
        return [sent for sent in self.sent if sent.message not in self.ended and room in (None, sent.room)]

    async def wait_for(self, condition: Callable[[], bool], *, silence_s: float = 45.0) -> bool:
        """Wait until ``condition`` holds; it is looked at whenever something was recorded. False after so long a silence."""
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            while not condition():
                changed.clear()
                async with asyncio.timeout(silence_s):
                    await changed.wait()
        except TimeoutError:
            return False
        finally:
            self._watchers.discard(changed)
        return True


async def follow(record: Record, client: AsyncClient, room: str) -> None:
    """Record all that a room sends, for ever, over every loss of the connection."""
    last: str | None = None
    while True:
        try:
            async for output in client.outputs(room, after=last, follow=True):
                record.add_output(room, output)
                last = output.id
        except RedisUnavailable:
            continue  # the call has waited long enough by itself
