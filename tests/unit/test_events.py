"""Events: the names that scripts write, and records of whatever an entry says."""

from __future__ import annotations

import datetime as dt
import re
from importlib.resources import files
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from greenroom import Event, EventKind
from greenroom.protocol.records import read_event

ROOT = Path(__file__).parents[2]


# Names. -----------------------------------------------------------------------------------------------


def test_the_scripts_write_the_events_that_there_are_names_for_and_no_others() -> None:
    written = set[str]()
    for script in files("greenroom.protocol").joinpath("lua").iterdir():
        code = re.sub(r"--.*", "", script.read_text())
        written.update(re.findall(r"'([a-z]+\.[a-z]+)'", code))
    assert written == {kind.value for kind in EventKind}


def test_the_contract_lists_every_event() -> None:
    listed = re.findall(r"^\| `([a-z]+\.[a-z]+)` \|", (ROOT / "docs" / "protocol.md").read_text(), re.MULTILINE)
    assert listed == [kind.value for kind in EventKind]


# Records. ---------------------------------------------------------------------------------------------


def test_an_event_has_its_fields_by_name_and_the_others_among_its_details() -> None:
    entry = {
        b"event": b"signal.deferred",
        b"room": b"42",
        b"message": b"7-0",
        b"ticket": b"8",
        b"worker": b"web-1",
        b"mode": b"stop",
        b"cid": b"c1",
    }
    assert read_event(b"1700000000123-4", entry) == Event(
        id="1700000000123-4",
        kind=EventKind.SIGNAL_DEFERRED,
        at=dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, dt.UTC),
        room="42",
        message=7,
        ticket=8,
        worker="web-1",
        mode="stop",
        details={"cid": "c1"},
    )


def test_an_event_of_a_newer_version_is_read_too() -> None:
    event = read_event(b"1-0", {b"event": b"cycle.dreamt", b"of": b"sheep"})
    assert (event.kind, event.details) == ("cycle.dreamt", {"of": "sheep"})


NAMES = st.sampled_from([b"event", b"room", b"message", b"ticket", b"attempt", b"worker", b"mode", b"error", b"more"])


@given(
    event_id=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
    entry=st.dictionaries(st.one_of(NAMES, st.binary()), st.one_of(st.binary(), st.from_regex(rb"\A[0-9]{1,30}(-0)?\Z"))),
)
def test_whatever_an_entry_says_it_is_read(event_id: tuple[int, int], entry: dict[bytes, bytes]) -> None:
    event = read_event(b"%d-%d" % event_id, entry)
    assert event.id == "{}-{}".format(*event_id)
