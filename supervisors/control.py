"""The control listener: follows the control stream, applies what people wrote by hand, wakes the rooms that a signal hit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from ..actors.room_events import Signal
from ..protocol.connect import Outage, answering, back_off, open_connection
from ..protocol.errors import InvalidRequest
from ..protocol.keys import check_room
from ..protocol.log import log
from ..protocol.records import Outcome, check_mode, fields, text
from .rooms import RoomSignal
from .service import Service
from .worker import Worker

BLOCK_MS = 2000
COUNT = 100
MAX_FIELD_BYTES = 4096
YES = ("1", "yes", "true")


class ControlListener(Service):
    """Never lossy: it goes on from where it was, over lost connections and restarts. Never slow: it waits for no room."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker.context.control)
        self._worker = worker
        self._store = worker.context.store

    async def run(self) -> None:
        failures, outage = 0, Outage()
        while True:
            try:
                async with open_connection(self._store.redis) as connection:
                    self._worker.context.counts.connected["control"] += 1
                    self._worker.control_seen = await self._place(connection)
                    while True:
                        await self._read(connection)
                        failures = 0
                        outage.over()
            except (RedisError, OSError, TimeoutError) as error:
                if outage.is_news(error):
                    log.warning("control.lost", error=str(error))
            await back_off(failures)
            failures += 1

    async def _place(self, connection: AbstractConnection) -> str:
        """After which entry to read on: the last one that was read, if this server has it.

        A replica that was promoted without it gives ids by its own clock, and may have entries with lower ids that nobody has
        read. Then all are read again: each is known by its ``upto``, or for what is written by hand by the agent's cursor.
        """
        seen, keys = self._worker.control_seen, self._store.keys
        if seen is None:
            cursor = text(await ask(connection, "HGET", keys.root, "control_cursor") or b"")
            return cursor if re.fullmatch(r"[0-9]{1,18}-[0-9]{1,18}", cursor) else "0-0"
        return seen if await ask(connection, "XRANGE", keys.control, seen, seen) else "0-0"

    async def _read(self, connection: AbstractConnection) -> None:
        words = ("XREAD", "COUNT", COUNT, "BLOCK", BLOCK_MS, "STREAMS", self._store.keys.control, self._worker.control_seen)
        reply = await ask(connection, *words)
        for entry_id, flat in reply[0][1] if reply else []:
            await self._entry(text(entry_id), flat)
            self._worker.control_seen = text(entry_id)

    async def _entry(self, entry: str, flat: list[bytes]) -> None:
        row = fields(flat)
        try:
            if "upto" in row and "outcome" in row:  # what a script wrote
                self._wake(entry, row)
                return
            mode, rooms, options = read_signal(row)
        except InvalidRequest as error:
            if (await self._store.malformed(entry, str(error))).word == "ok":
                log.warning("signal.malformed", entry=entry, error=str(error))
            return
        word, detail = await self._store.control(mode, rooms, cid=entry, raw=entry, **options)
        if word == "unreadable":
            log.warning("signal.malformed", entry=entry, error=text(detail))
        elif word == "ok":
            log.info("signal.applied", cid=entry, mode=mode, rooms=" ".join(rooms) or "everywhere", by=options["by"])

    def _wake(self, entry: str, row: Mapping[str, bytes]) -> None:
        try:
            upto, mode = int(row["upto"]), check_mode(text(row.get("mode", b"")))
            outcome = Outcome(text(row["outcome"]))
        except ValueError as error:
            raise InvalidRequest(f"written by hand as only scripts write: {str(error)[:200]}") from None
        self._worker.heard(entry, upto, mode, outcome)
        if outcome is not Outcome.APPLIED:
            return
        if "room" in row:
            self._worker.tell_rooms(RoomSignal(text(row["room"]), Signal(mode, upto)))
        else:  # each room that it hit has an entry of its own; this one wakes those that wait
            self._worker.tell_rooms(RoomSignal(None, Signal(mode, 0)))


async def ask(connection: AbstractConnection, *words: Any) -> Any:
    """The reply to one command, which may block for BLOCK_MS."""
    await connection.send_command(*words, check_health=False)
    async with answering(BLOCK_MS / 1000 * 2 + 10):
        return await connection.read_response()


def read_signal(row: Mapping[str, bytes]) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """Mode, rooms (none: everywhere) and options of a hand-written entry.

    Raises:
        InvalidRequest: what is wrong with it.
    """
    clean: dict[str, str] = {}
    for name, value in row.items():
        if len(name) > 64 or len(value) > MAX_FIELD_BYTES:
            raise InvalidRequest(f"field {name[:40]!r}: too long")
        try:
            clean[name] = value.decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"field {name!r}: not UTF-8") from None
    unknown = sorted(set(clean) - {"mode", "room", "everywhere", "message", "by", "reason"})
    if unknown:
        raise InvalidRequest(f"unknown field {unknown[0]!r}: want mode, room or everywhere, and message, by, reason")
    mode = check_mode(clean.get("mode", ""))
    everywhere = clean.get("everywhere", "").lower() in YES
    if ("room" in clean) == everywhere:
        raise InvalidRequest("want either room, or everywhere 1")
    rooms = () if everywhere else (check_room(clean["room"]),)
    options: dict[str, Any] = {"by": clean.get("by", "redis-cli"), "reason": clean.get("reason", "")}
    if "message" in clean:
        number = clean["message"].removesuffix("-0")
        if mode != "interrupt" or everywhere or not (number.isascii() and number.isdigit()) or len(number) > 16:
            raise InvalidRequest("message: want a message id, on an interrupt of one room")
        options["message"] = int(number)
    return mode, rooms, options
