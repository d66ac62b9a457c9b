"""What an agent is told of a cycle that was aborted."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

from ..protocol.records import Message, Mode, Record

Code = Literal["cancelled", "killed", "detached", "not started"]


class Interruption(Record):
    """How a cycle was interrupted or stopped, and what it had done until then.

    Attributes:
        mode: interrupt or stop.
        by, reason, cid: of the signal; ``at`` is when it was applied.
        message: what was being answered.
        ran: since the message was claimed.
        sent: the chunks of this cycle that readers have, in order.
        done: the message's steps that are on record as done.
        begun: its steps that this cycle had begun; whether they happened is not on record.
        unknown: its steps that an earlier cycle had begun; whether they happened is not on record.
        code: what became of the agent's code: ``cancelled``: it has ended; ``killed``, with its process; ``detached``: it still
            runs, and nothing it sends is accepted; ``not started``.
    """

    mode: Mode
    by: str
    reason: str
    cid: str
    at: dt.datetime
    message: Message
    ran: dt.timedelta
    sent: tuple[Any, ...]
    done: tuple[str, ...]
    begun: tuple[str, ...]
    unknown: tuple[str, ...]
    code: Code
