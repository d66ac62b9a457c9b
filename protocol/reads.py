"""What a client may look at: events, signals, rooms, workers, dead letters, and the agent as a whole."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import TypeVar

from . import fleet, inspection, listing, relays
from .audit import SignalEntry, signal_pages
from .errors import InvalidRequest, NotFound
from .fleet import WorkerStatus
from .keys import Keys, check_room
from .records import AgentStatus, DeadLetter, Event, Output, RoomStatus, read_dead_letter, read_event
from .relays import RelayStatus
from .store import Store

T = TypeVar("T")

LOOK_S = 1.0  # nobody hints at events or signals: who follows them looks this often
_ENTRY_ID = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")


def check_entry(value: object, what: str) -> str:
    """Return ``value`` if it is an entry's id, or raise InvalidRequest."""
    if not isinstance(value, str) or not _ENTRY_ID.fullmatch(value):
        raise InvalidRequest(f"{what}: want an entry's id, such as 1700000000000-0, got {str(value)[:40]!r}")
    return value


def start_after(after: str | None) -> str:
    """Where a stream is read from by who has seen ``after``."""
    return "-" if after is None else f"({check_entry(after, 'after')}"


async def each(pages: AsyncIterator[list[T]]) -> AsyncIterator[T]:
    """The items of the pages."""
    async for page in pages:
        for item in page:
            yield item


class AsyncReads:
    """The part of ``AsyncClient`` that changes nothing."""

    _keys: Keys

    @property
    def _store(self) -> Store:
        raise NotImplementedError

    def events(self, *, after: str | None = None, follow: bool = False) -> AsyncIterator[Event]:
        """What happened in this agent's rooms, oldest first; with ``follow`` also what goes on to happen, for ever.

        ``after`` is the ``id`` of the last event you have seen. About the last 10,000 are kept: who follows more slowly than
        they come misses some. A follower looks once a second, over the connection that all calls share.

        Raises:
            InvalidRequest: ``after`` is no id of an event.
        """
        return each(self._event_pages(after, follow))

    async def _event_pages(self, after: str | None, follow: bool) -> AsyncIterator[list[Event]]:
        start = start_after(after)
        while True:
            async for page in inspection.entry_pages(self._store, self._keys.events, start):
                found = [read_event(event_id, entry) for event_id, entry in page]
                start = f"({found[-1].id}"
                yield found
            if not follow:
                return
            await asyncio.sleep(LOOK_S)

    def signals(self, *, after: str | None = None, follow: bool = False) -> AsyncIterator[SignalEntry]:
        """The signals so far and what came of them, oldest first; with ``follow`` also those to come, for ever.

        ``after`` is the ``id`` of the last one you have seen. About the last 10,000 are kept. A follower looks once a second.

        Raises:
            InvalidRequest: ``after`` is no id of a signal.
        """
        return each(self._signal_pages(after, follow))

    async def _signal_pages(self, after: str | None, follow: bool) -> AsyncIterator[list[SignalEntry]]:
        start = start_after(after)
        while True:
            async for page in signal_pages(self._store, start):
                start = f"({page[-1].id}"
                yield page
            if not follow:
                return
            await asyncio.sleep(LOOK_S)

    def dead_letters(self) -> AsyncIterator[DeadLetter]:
        """The dead letters, oldest first; what is none is passed over.

        Raises:
            NewerVersion: one was written by a newer version of greenroom.
        """
        return each(self._letter_pages())

    def _letter_pages(self) -> AsyncIterator[list[DeadLetter]]:
        return inspection.letter_pages(self._store)

    async def dead_letter(self, letter_id: str) -> DeadLetter:
        """The dead letter of that ``id``.

        Raises:
            NotFound: there is no such dead letter.
            RedisRefused: it is not what greenroom writes.
        """
        entry = check_entry(letter_id, "dead letter")
        found = await self._store.pipeline.command("XRANGE", self._keys.dead, entry, entry)
        if not found:
            raise NotFound(f"no dead letter {entry}")
        return read_dead_letter(found[0][0], dict(zip(found[0][1][::2], found[0][1][1::2], strict=True)))

    async def status(self, room: str) -> RoomStatus:
        """A room as it is now; a room that has nothing is one with no phase and no hold.

        Raises:
            InvalidName: there can be no such room.
            RedisRefused: its hash is not what greenroom writes.
        """
        return (await inspection.statuses(self._store, [check_room(room)]))[0]

    async def last_output(self, room: str) -> Output | None:
        """The newest of the room's outputs; None if there is none, or greenroom did not write it.

        Raises:
            InvalidName: there can be no such room.
        """
        return await inspection.last_output(self._store, check_room(room))

    def rooms(
        self,
        *,
        phase: str | None = None,
        mode: str | None = None,
        worker: str | None = None,
        sort: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[RoomStatus]:
        """The rooms that have work, a mode or state; in no order, or in that of ``sort``.

        Args:
            phase: only those in it: ``queued``, ``processing``, ``backoff``, ``held``.
            mode: only those that are held by a ``stop`` or ``pause`` of their own, or (``play``) that are not.
            worker: only those that this worker owns.
            sort: ``activity`` (the last active first), ``age`` (whose cycle has run longest first), ``waiting`` (the longest
                queue first) or ``room``. All that may fit are looked through before the first is answered.
            limit: how many at the most.

        Redis is read in pages, and by the index of the phase or worker. A room that changes meanwhile may be missed. One whose
        hash greenroom did not write has that as its ``last_error``.

        Raises:
            InvalidRequest: there is no such phase, mode, order or limit, or can be no worker of that name.
        """
        return each(self._room_pages(phase, mode, worker, sort, limit))

    def _room_pages(
        self, phase: str | None, mode: str | None, worker: str | None, sort: str | None, limit: int | None
    ) -> AsyncIterator[list[RoomStatus]]:
        return listing.room_pages(self._store, phase=phase, mode=mode, worker=worker, sort=sort, limit=limit)

    async def workers(self) -> list[WorkerStatus]:
        """The workers that live, or own rooms, by name."""
        return await fleet.workers(self._store)

    async def relays(self) -> list[RelayStatus]:
        """The registered relays, by name: also those that do not run, for which outputs are kept until they are forgotten."""
        return await relays.relays(self._store)

    async def overview(self) -> AgentStatus:
        """The agent as a whole."""
        return await inspection.overview(self._store)
