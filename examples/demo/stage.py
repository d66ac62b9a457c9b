"""What the steps of the story have in common: telling, posting, signalling, waiting, and looking into Redis."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from greenroom import AsyncClient, Kind, Output, Receipt
from greenroom.protocol import codec
from greenroom.protocol.keys import Keys
from greenroom.protocol.records import read_id, text
from greenroom.protocol.server import RedisServer, find_cli

from .account import Snapshot
from .process import EXAMPLES, DemoFailed, SupervisorProcess
from .record import Record, Sent, Signalled

AGENT = "support"
PATIENCE_S = 60.0  # for which a call waits for a Redis that is down
ENOUGH = 60  # messages that wait, so that every step finds rooms at work
MORE = 24
HALF_WAY = range(7, 11)  # words said, of an answer of fourteen or more


class Stage:
    """The processes, connections and files of one run. ``client`` and ``redis`` are there once Redis has been started."""

    client: AsyncClient
    redis: Redis

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = Keys(AGENT)
        # `always`: what Redis has confirmed is in its file, so that the account may demand all of it after a kill -9.
        self.server = RedisServer(folder / "redis", extra=["--appendfsync", "always"])
        self.supervisor = SupervisorProcess(AGENT, "desk-1", folder / "supervisor.log")
        self.record = Record(folder / "record.jsonl")
        lines = (EXAMPLES / "support_messages.jsonl").read_text(encoding="utf-8").splitlines()
        self._letters = [json.loads(line) for line in lines]
        self.rooms = sorted({letter["room"] for letter in self._letters})
        self._posted = 0
        self._began = time.monotonic()
        self._step = 0

    def end_children(self) -> None:
        """End every process of this run at once, wherever the story was. A second call does nothing."""
        self.supervisor.kill_now()
        self.server.stop()

    # Telling. -------------------------------------------------------------------------------------

    def heading(self, words: str) -> None:
        self._step += 1
        print(f"\n[{time.monotonic() - self._began:5.1f} s] {self._step}. {words}", flush=True)

    def say(self, words: str) -> None:
        for line in words.splitlines():
            print(f"{'':10}{line}", flush=True)

    def say_receipt(self, receipt: Receipt) -> None:
        why = f", because: {receipt.reason}" if receipt.reason else ""
        of = f"message {receipt.message} of " if receipt.message is not None else ""
        self.say(f"Receipt: {receipt.mode} {receipt.outcome}, {of}room {receipt.room}, by {receipt.by}{why}.")

    def say_exchange(self, room: str, message: int) -> None:
        """What the customer wrote, and what the customer got to see."""
        asked = next(sent.text for sent in self.record.sent if sent.message == message)
        self.say(f"  {room + ':':11}{asked}\n  {'agent:':11}{self.speech(room, message)}")

    def say_cli(self, *words: str) -> None:
        """Run the real redis-cli, and show the command and what it printed."""
        self.say(f"$ redis-cli -p {self.server.port} {shlex.join(words)}")
        cli = find_cli()
        if cli is None:
            self.say("  (there is no redis-cli beside this redis-server)")
            return
        shown = subprocess.run([cli, "-p", str(self.server.port), *words], capture_output=True, encoding="utf-8", check=True)
        lines = shown.stdout.splitlines()
        if words[0] == "HGETALL":  # it prints a field and its value in turn: side by side they are easier to read
            lines = [f"{name:12} {value}" for name, value in zip(lines[::2], lines[1::2], strict=True)]
        self.say("\n".join(f"  {line}" for line in lines))

    # Posting and signalling. ----------------------------------------------------------------------

    @property
    def unposted(self) -> int:
        """How many lines of the file are still to be sent."""
        return max(0, len(self._letters) - self._posted)

    async def post(self, count: int) -> None:
        """Send the next lines of the file in order, all at once; after its end it begins again."""
        lines = range(self._posted, self._posted + count)
        self._posted += count
        await asyncio.gather(*(self._post(line) for line in lines))

    async def _post(self, line: int) -> None:
        """Send a line under its number: should it have to be sent again, it is not there twice."""
        letter, key = self._letters[line % len(self._letters)], f"line-{line + 1}"
        message = await self.client.send(letter["room"], letter["text"], key=key)
        self.record.add_sent(Sent(letter["room"], message, key, letter["text"]))

    async def top_up(self) -> None:
        """However slow this machine is: see that the rooms have enough to do."""
        while len(self.record.open_messages()) < ENOUGH:
            await self.post(MORE)

    async def signal(self, room: str, send: Callable[[], Awaitable[list[Receipt]]]) -> Receipt:
        """Send a signal for one room, and record where its outbox was before and after."""
        before = await self.last_output(room)
        (receipt,) = await send()
        after = await self.last_output(room)
        self.record.add_signal(Signalled(room, receipt.mode, receipt.outcome, receipt.message, before, after))
        return receipt

    async def last_output(self, room: str) -> str:
        """The id of the room's last output as Redis has it, or nothing."""
        entries = await self.ask_redis("XREVRANGE", self.keys.outbox(room), "+", "-", "COUNT", 1)
        return text(entries[0][0]) if entries else ""

    async def ask_redis(self, *words: str | int) -> Any:
        """Ask Redis itself, past the library."""
        return await self.redis.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py has no types there

    # Waiting. -------------------------------------------------------------------------------------

    async def expect(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that must come to be recorded."""
        if not await self.record.wait_for(condition):
            raise DemoFailed(f"{what} did not come")

    async def half_way(self, *, tried: set[int], other_than: str = "") -> tuple[str, int]:
        """Wait for a room that is in the middle of an answer and has more to do; answer the room and the message."""
        found: list[tuple[str, int]] = []

        def look() -> bool:
            for room, outputs in self.record.outputs.items():
                last = outputs[-1]
                speaking = last.kind is Kind.CHUNK and last.seq in HALF_WAY and last.message not in tried
                if speaking and room != other_than and len(self.record.open_messages(room)) > 2:
                    found.append((room, last.message))
            return bool(found)

        await self.top_up()
        await self.expect(look, "a room in the middle of an answer")
        tried.add(found[0][1])
        return found[0]

    async def until_busy(self, rooms: int) -> None:
        """Wait until so many rooms have a cycle in flight, and enough to do that this is still so a moment later."""
        while True:
            await self.top_up()
            loaded = [room for room in self.rooms if len(self.record.open_messages(room)) > 3]
            if len(loaded) > rooms and (await self.client.overview()).processing >= rooms:
                return
            await self.expect(partial(self._has_grown, self.record.lines), f"{rooms} busy rooms")

    def _has_grown(self, lines: int) -> bool:
        return self.record.lines > lines

    def _has_seen(self, room: str, last: str) -> bool:
        return self.record.last(room) == last

    # Looking. -------------------------------------------------------------------------------------

    def speech(self, room: str, message: int, ticket: int = 0) -> str:
        """What the customer got to see in one run of this message; the latest by default."""
        outputs = self.record.of_message(room, message)
        ticket = ticket or max((output.ticket for output in outputs), default=0)
        return "".join(str(o.body) for o in outputs if o.ticket == ticket and o.kind is Kind.CHUNK).strip()

    def cut_off(self) -> list[tuple[str, Output]]:
        """The cycles that died with their worker, as was found out when their messages were replayed."""
        return [(room, output) for room, seen in self.record.outputs.items() for output in seen if output.kind is Kind.FAILED]

    def was_stopped(self, room: str, message: int) -> bool:
        return any(output.kind is Kind.ABORTED and output.mode == "stop" for output in self.record.of_message(room, message))

    async def snapshot(self) -> Snapshot:
        """Everything that the account needs of Redis, once the record has caught up with it."""
        shot = Snapshot(dead=[letter.message async for letter in self.client.dead_letters()])
        for room in self.rooms:
            last = await self.last_output(room)
            await self.record.wait_for(partial(self._has_seen, room, last), silence_s=15.0)
            queue = await self.ask_redis("XRANGE", self.keys.messages(room), "-", "+")
            shot.queued[room] = [read_id(text(entry)) for entry, _ in queue]
            shot.outboxes[room] = [output async for output in self.client.outputs(room)]
            state = await self.ask_redis("GET", self.keys.state(room))
            shot.questions[room] = codec.decode(state)[1]["questions"] if state else 0
        return shot
