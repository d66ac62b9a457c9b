"""``--keep``: how much is kept, as words of a command line; and as Redis has it."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta

import pytest

from greenroom import InvalidRequest, Retention
from greenroom.keeping import retention_of
from greenroom.protocol.retention import LIMITS, words_of


def test_what_is_not_said_is_as_by_default() -> None:
    assert retention_of([]) == Retention()
    assert retention_of(["events=5", "outbox-for=90m", "idle_rooms=30d", "receipts=120s"]) == Retention(
        events=5, outbox_for=timedelta(minutes=90), idle_rooms=timedelta(days=30), receipts=timedelta(minutes=2)
    )


@pytest.mark.parametrize(
    "word",
    [
        *("", "events", "events=", "events=x", "events=0", "events=-1", "events=1.5", "color=1", "events=10d"),
        *("receipts=5s", "outbox_for=7", "outbox_for=d", "outbox_for=0s", "idle_rooms=999999999999d", "idle_rooms=never"),
    ],
)
def test_what_is_no_limit_is_refused_with_its_name(word: str) -> None:
    with pytest.raises(InvalidRequest, match=f"--keep {word.partition('=')[0]}"):
        retention_of([word])


def test_a_limit_is_said_once() -> None:
    with pytest.raises(InvalidRequest, match="twice"):
        retention_of(["outbox_for=1d", "outbox-for=2d"])


def test_the_limits_that_are_shown_are_those_there_are_and_are_said_as_they_are_given() -> None:
    assert [limit.option for limit in LIMITS] == [field.name for field in fields(Retention)]
    given = Retention(outbox=5, outbox_for=timedelta(hours=36), idle_rooms=timedelta(days=2), receipts=timedelta(seconds=61))
    words = words_of(given)
    stored = dict(zip(words[::2], words[1::2], strict=True))
    said = [limit.said(limit.read(str(stored[limit.field]).encode())) for limit in LIMITS]
    assert said[:2] == ["outbox=5", "outbox_for=36h"]
    assert retention_of(said) == given
    unsaid = [limit.said(limit.read(None)) for limit in LIMITS]
    assert unsaid[-1] == "idle_rooms for ever"
    assert retention_of(unsaid[:-1]) == Retention()
