"""What ``greenroom run --keep`` says about how much is kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta

from .protocol.errors import InvalidRequest
from .protocol.retention import Retention

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DURATIONS = ("outbox_for", "receipts", "idle_rooms")
_NAMES = tuple(field.name for field in fields(Retention))


def retention_of(said: Sequence[str]) -> Retention:
    """The limits that ``NAME=VALUE`` words say; the others are as by default.

    Raises:
        InvalidRequest: a word is none, is said twice, or its value cannot be used.
    """
    given: dict[str, int | timedelta] = {}
    for word in said:
        name, _, value = word.partition("=")
        name = name.replace("-", "_")
        if name not in _NAMES:
            raise InvalidRequest(f"--keep {word}: want NAME=VALUE, of {', '.join(_NAMES)}")
        if name in given:
            raise InvalidRequest(f"--keep {word}: {name} is said twice")
        given[name] = _duration(word, value) if name in _DURATIONS else _count(word, value)
    try:
        return Retention(**given)  # type: ignore[arg-type]  # each has the type of its name
    except InvalidRequest as error:
        raise InvalidRequest(f"--keep {error}") from None


def _count(word: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", value):
        raise InvalidRequest(f"--keep {word}: want a whole number, such as 10000")
    return int(value)


def _duration(word: str, value: str) -> timedelta:
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", value)
    if not found:
        raise InvalidRequest(f"--keep {word}: want a duration, such as 90s, 30m, 24h or 7d")
    try:
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        raise InvalidRequest(f"--keep {word}: that is too long") from None
