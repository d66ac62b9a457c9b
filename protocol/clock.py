"""The times in what Redis, or the logical clock, numbers: entries of streams, messages, tickets, incarnations."""

from __future__ import annotations

import datetime as dt

EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)
_LAST_MS = 253_402_300_799_999  # the end of the year 9999


def place_of(entry: str) -> tuple[int, int]:
    """The place of an entry among those of its stream: the server's time in ms, and a number within it."""
    ms, _, number = entry.partition("-")
    return int(ms), int(number or 0)


def time_of_entry(entry: str) -> dt.datetime:
    """The server's time in the id that it gave to a stream's entry."""
    return EPOCH + dt.timedelta(milliseconds=min(place_of(entry)[0], _LAST_MS))


def time_said(said: str | None) -> dt.datetime | None:
    """The time of a field that has one in ISO-8601; None for what says nothing, or what no script wrote."""
    try:
        found = dt.datetime.fromisoformat(said or "")
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def time_of_tick(value: float) -> dt.datetime:
    """The server's time at a value of the logical clock, which is never behind it: a message, a ticket or an incarnation; of a
    number that is no such value, the nearest time that there is.
    """
    return EPOCH + dt.timedelta(microseconds=int(min(max(value, 0), _LAST_MS * 1000)))
