"""What may be stored, its limits, and what becomes of bytes that nobody encoded."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenroom.protocol.codec import MAX_BYTES, MAX_DEPTH, decode, encode
from greenroom.protocol.errors import InvalidBody

texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | texts
    | st.binary()
    | st.uuids()
    | st.datetimes(timezones=st.just(dt.UTC))
)
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts | st.integers(0, 9), inner))


def nested(levels: int) -> list[Any]:
    """A list in a list, and so on: as many as ``levels``."""
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@given(values)
def test_what_is_encoded_is_decoded_to_the_same(value: Any) -> None:
    assert decode(encode(value)) == value


def test_a_datetime_keeps_its_instant_and_comes_back_in_utc() -> None:
    tokyo = dt.timezone(dt.timedelta(hours=9))
    back = decode(encode(dt.datetime(2024, 2, 29, 8, 30, 0, 123456, tzinfo=tokyo)))
    assert back == dt.datetime(2024, 2, 28, 23, 30, 0, 123456, tzinfo=dt.UTC)
    assert back.tzinfo is dt.UTC


def test_a_datetime_without_a_time_zone_is_refused() -> None:
    with pytest.raises(InvalidBody, match="time zone"):
        encode({"at": dt.datetime(2024, 1, 1)})


def test_a_uuid_comes_back_as_one_also_as_a_key() -> None:
    order = uuid.uuid4()
    assert decode(encode({order: [order]})) == {order: [order]}


def test_an_error_says_what_could_not_be_stored_and_what_can() -> None:
    with pytest.raises(
        InvalidBody, match=r"^the reply: what is of type object cannot be stored: only None, bool, .* UUID can$"
    ):
        encode(object(), what="the reply")
    with pytest.raises(InvalidBody, match=r"^the state: \d+ bytes are more than the limit of 3$"):
        encode("abc", limit=3, what="the state")


def test_what_was_not_awaited_is_said_to_be_so() -> None:
    async def reply() -> None: ...

    coroutine = reply()
    with pytest.raises(InvalidBody, match=r"of type coroutine cannot be stored: .* \(is an await missing\?\)$"):
        encode(coroutine)
    coroutine.close()


def test_a_tuple_comes_back_as_a_list() -> None:
    assert decode(encode((1, (2, 3)))) == [1, [2, 3]]


def test_an_extension_type_of_others_is_kept_as_it_is() -> None:
    theirs = msgpack.ExtType(7, b"data")
    assert decode(encode(theirs)) == theirs


class Order:
    """A type of the user's that msgpack does not carry."""


@pytest.mark.parametrize("value", [Order(), {"order": Order()}, {1, 2}, object, dt.date(2024, 1, 1), 1j])
def test_a_type_that_msgpack_does_not_carry_is_refused_by_its_name(value: object) -> None:
    with pytest.raises(InvalidBody, match=r"(Order|set|type|date|complex) cannot be stored"):
        encode(value)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, "\ud800"])
def test_a_value_out_of_msgpacks_range_is_refused(value: object) -> None:
    with pytest.raises(InvalidBody, match="cannot be stored"):
        encode(value)


def test_what_is_as_large_as_the_limit_is_stored_and_one_byte_more_is_refused() -> None:
    overhead = len(msgpack.packb(b"x" * (MAX_BYTES - 5))) - (MAX_BYTES - 5)
    assert len(encode(b"x" * (MAX_BYTES - overhead))) == MAX_BYTES
    with pytest.raises(InvalidBody, match=f"{MAX_BYTES + 1} bytes are more than the limit of {MAX_BYTES}"):
        encode(b"x" * (MAX_BYTES - overhead + 1))


def test_a_smaller_limit_may_be_asked_for() -> None:
    assert encode("abc", limit=4) == msgpack.packb("abc")
    with pytest.raises(InvalidBody, match="limit of 3"):
        encode("abc", limit=3)


def test_what_is_as_deep_as_the_limit_is_stored_and_one_level_more_is_refused_in_both_directions() -> None:
    assert decode(encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(InvalidBody, match="deeper than 32"):
        encode(nested(MAX_DEPTH + 1))
    with pytest.raises(InvalidBody, match="deeper than 32"):
        decode(msgpack.packb(nested(MAX_DEPTH + 1)))


def test_dicts_and_lists_count_alike_towards_the_depth() -> None:
    value: Any = "leaf"
    for _ in range(MAX_DEPTH // 2 + 1):
        value = {"list": [value]}
    with pytest.raises(InvalidBody, match="deeper than 32"):
        encode(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidBody, match="deeper than 32"):
        encode(value)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x01", b"\x01\x02", b"\xa2\xff\xff", b"{'a': 1}", b"\x81\x90\x01"])
def test_bytes_that_are_no_msgpack_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidBody, match="not msgpack"):
        decode(data)


@given(st.binary(max_size=200))
def test_decoding_any_bytes_answers_a_value_or_refuses_them(data: bytes) -> None:
    try:
        decode(data)
    except InvalidBody:
        return


@pytest.mark.parametrize("size", [0, 15, 17])
def test_a_uuid_of_the_wrong_size_stays_an_extension_type(size: int) -> None:
    theirs = msgpack.ExtType(1, b"x" * size)
    assert decode(msgpack.packb(theirs)) == theirs
