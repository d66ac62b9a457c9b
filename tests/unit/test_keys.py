"""Names that are allowed, and the keys made of them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from greenroom.protocol.errors import InvalidName, InvalidRequest
from greenroom.protocol.keys import MAX_NAME_BYTES, Keys, check_agent, check_name, check_room


@pytest.mark.parametrize("name", ["a", "42", "a/b:c*?[x]", "größe-猫", "😀" * 64, "{braces}", "x" * MAX_NAME_BYTES])
def test_a_name_of_1_to_256_bytes_is_returned_as_it_is(name: str) -> None:
    assert check_name(name, "room") == name


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME_BYTES + 1), "😀" * 65])
def test_a_name_of_the_wrong_size_is_refused_with_the_size_in_bytes(name: str) -> None:
    with pytest.raises(InvalidName, match=f"^room .*: want 1 to 256 bytes, got {len(name.encode())}$"):
        check_name(name, "room")


@pytest.mark.parametrize("name", ["a b", " a", "a\n", "a\tb", "a\u2003b", "a\u00a0b", "a\x00", "a\x7f", "a\x85b"])
def test_white_space_and_control_characters_are_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="white space and control characters"):
        check_name(name, "room")


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidName, match="not valid UTF-8"):
        check_name("a\ud800", "room")


@pytest.mark.parametrize("name", [None, 42, b"room", ["a"]])
def test_what_is_no_string_is_refused_by_its_type(name: object) -> None:
    with pytest.raises(InvalidName, match=f"worker: want a string, got {type(name).__name__}"):
        check_name(name, "worker")


@pytest.mark.parametrize("name", ["{a", "a}", "{a}", "a{}b"])
def test_an_agent_name_with_braces_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="braces are not allowed"):
        check_agent(name)
    with pytest.raises(InvalidName):
        Keys(name)


@given(st.text(max_size=300))
@example("\ud800")
def test_any_text_is_either_returned_unchanged_or_refused_as_an_invalid_request(name: str) -> None:
    with suppress(InvalidRequest):
        assert check_name(name, "room") == name


def test_every_key_of_an_agent_carries_its_one_hash_tag() -> None:
    keys = Keys("support")
    of_agent = [keys.ready, keys.processing, keys.held, keys.rooms, keys.control, keys.dead, keys.events, keys.workers]
    of_room = [keys.room("4}2"), keys.messages("{42}"), keys.outbox("42"), keys.state("42"), keys.worker("w1")]
    for key in [keys.root, *of_agent, *of_room]:
        assert key.startswith("greenroom:{support}")
        assert key[key.index("{") + 1 : key.index("}")] == "support"
    assert len({keys.root, *of_agent, *of_room}) == 1 + len(of_agent) + len(of_room)


def test_a_room_is_found_under_its_own_name() -> None:
    assert Keys("support").room("42") == "greenroom:{support}:room:42"
    assert Keys("support").messages("42") == "greenroom:{support}:room:42:messages"


@pytest.mark.parametrize("part", ["messages", "outbox", "state", "steps"])
def test_a_room_whose_key_would_be_another_rooms_is_refused(part: str) -> None:
    with pytest.raises(InvalidName, match=f":{part}"):
        check_room(f"42:{part}")
    assert check_room(f"42:{part}:1") == f"42:{part}:1"
