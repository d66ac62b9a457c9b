"""Slots: how many rooms may be at work at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from greenroom.actors.slots import Slots


def noting(got: list[str], name: str) -> Callable[[], bool]:
    """Wants a slot, and says so in ``got``."""

    def on_free() -> bool:
        got.append(name)
        return True

    return on_free


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(main())


def test_a_slot_is_taken_even_when_none_is_free_for_work_that_must_go_on() -> None:
    slots = Slots(1)
    slots.take()
    slots.take()
    assert (slots.used, slots.free) == (2, 0)
    slots.give()
    assert slots.free == 0
    slots.give()
    assert slots.free == 1


def test_who_asks_gets_a_slot_at_once_or_when_one_is_given_back_first_come_first_served() -> None:
    slots, got = Slots(1), list[str]()
    slots.ask(noting(got, "a"))
    slots.ask(noting(got, "b"))
    slots.ask(noting(got, "c"))
    assert got == ["a"]
    slots.give()
    slots.give()
    assert got == ["a", "b", "c"]
    assert slots.used == 1


def test_a_slot_that_is_not_wanted_any_more_goes_to_the_next() -> None:
    slots, got = Slots(1), list[str]()
    slots.take()
    slots.ask(lambda: False)
    slots.ask(noting(got, "b"))
    slots.give()
    assert got == ["b"]
    assert slots.used == 1


def test_waiting_for_a_free_slot_never_answers_that_none_is() -> None:
    async def test() -> None:
        slots = Slots(1)
        slots.take()
        waiting = asyncio.ensure_future(slots.wait_free())
        await asyncio.sleep(0)
        slots.give()
        slots.take()  # somebody else is faster than who was woken
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        slots.give()
        assert await waiting == 1

    run(test)


@pytest.mark.parametrize("most", [1, 3])
def test_waiting_answers_at_once_while_slots_are_free(most: int) -> None:
    async def test() -> None:
        assert await Slots(most).wait_free() == most

    run(test)
