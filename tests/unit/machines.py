"""What tests of the room's state machine share."""

from __future__ import annotations

import datetime as dt

from greenroom.actors.room_events import Taken
from greenroom.protocol.records import Message
from greenroom.protocol.store import Answer, Grant

READY, NEWER = "1-0", "2-0"  # entries of the ready stream
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def grant(ticket: int, *, attempt: int = 1, abort: str = "") -> Grant:
    message = Message(id=1, room="42", body=None, attempt=attempt, enqueued_at=NOW)
    return Grant(message, ticket, abort, None)


def taken(word: str, detail: str = "") -> Taken:
    return Taken(Answer(word, detail))
