"""The two-lane mailbox: control before messages, first in first out within each."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pykka._envelope import Envelope
from pykka.messages import _ActorStop

from greenroom.actors.mailbox import CONTROL_RUN, Control, Mailbox


class Numbered(Control):
    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


def put(mailbox: Mailbox, *messages: Any) -> None:
    for message in messages:
        mailbox.put(Envelope(message))


def drain(mailbox: Mailbox) -> list[Any]:
    taken = []
    while (envelope := mailbox.take()) is not None:
        message = envelope.message
        taken.append(f"c{message.number}" if isinstance(message, Numbered) else message)
    return taken


def test_control_overtakes_messages_that_were_there_before_it() -> None:
    mailbox = Mailbox()
    put(mailbox, "m1", "m2", Numbered(1), "m3", Numbered(2))
    assert drain(mailbox) == ["c1", "c2", "m1", "m2", "m3"]


def test_pykkas_own_stop_travels_in_the_control_lane() -> None:
    mailbox = Mailbox()
    put(mailbox, "m1", Numbered(1), _ActorStop())
    taken = drain(mailbox)
    assert taken[0] == "c1"
    assert isinstance(taken[1], _ActorStop)
    assert taken[2] == "m1"


def test_a_flood_of_control_lets_a_message_through_after_every_run_of_it() -> None:
    mailbox = Mailbox()
    put(mailbox, "m1", "m2", *map(Numbered, range(3 * CONTROL_RUN)))
    taken = drain(mailbox)
    assert taken.index("m1") == CONTROL_RUN
    assert taken.index("m2") == 2 * CONTROL_RUN + 1
    assert len(taken) == 3 * CONTROL_RUN + 2


def test_a_control_that_never_ends_cannot_starve_messages() -> None:
    mailbox = Mailbox()
    put(mailbox, "m1", Numbered(0))
    for number in range(1, 10 * CONTROL_RUN):  # one more arrives for each that is taken
        envelope = mailbox.take()
        assert envelope is not None
        if envelope.message == "m1":
            return
        put(mailbox, Numbered(number))
    pytest.fail("the message never came")


def test_control_is_not_held_up_when_no_message_waits() -> None:
    mailbox = Mailbox()
    put(mailbox, *map(Numbered, range(2 * CONTROL_RUN)))
    assert drain(mailbox) == [f"c{number}" for number in range(2 * CONTROL_RUN)]


def test_every_put_wakes_the_actor() -> None:
    mailbox = Mailbox()
    woken: list[int] = []
    put(mailbox, "before the actor is started")
    mailbox.on_put = lambda waking: woken.append(waking.qsize())
    put(mailbox, "m", Numbered(1))
    assert woken == [2, 3]  # woken when it is there already


def test_it_tells_its_size_and_get_never_blocks() -> None:
    mailbox = Mailbox()
    assert mailbox.empty()
    put(mailbox, "m", Numbered(1))
    assert not mailbox.empty()
    assert mailbox.qsize() == 2
    assert isinstance(mailbox.get().message, Numbered)
    assert mailbox.get().message == "m"
    assert mailbox.empty()
    with pytest.raises(IndexError):
        mailbox.get()


@given(st.lists(st.sampled_from(["control", "message", "take"]), max_size=200))
def test_nothing_is_lost_and_each_lane_keeps_its_order(acts: list[str]) -> None:
    mailbox = Mailbox()
    sent: dict[str, list[int]] = {"control": [], "message": []}
    taken: dict[str, list[int]] = {"control": [], "message": []}

    def take() -> bool:
        envelope = mailbox.take()
        if envelope is None:
            return False
        if isinstance(envelope.message, Numbered):
            taken["control"].append(envelope.message.number)
        else:
            taken["message"].append(envelope.message)
        return True

    for number, act in enumerate(acts):
        if act == "take":
            took = take()
            assert took or mailbox.empty()
        else:
            sent[act].append(number)
            put(mailbox, Numbered(number) if act == "control" else number)
    while take():
        pass
    assert taken == sent


def test_many_threads_may_put_at_once() -> None:
    mailbox = Mailbox()
    threads = [threading.Thread(target=put, args=(mailbox, *[(t, n) for n in range(500)])) for t in range(8)]
    for thread in threads:
        thread.start()
    taken = []
    while any(thread.is_alive() for thread in threads) or not mailbox.empty():
        if (envelope := mailbox.take()) is not None:
            taken.append(envelope.message)
    assert len(taken) == 8 * 500
    for t in range(8):
        assert [n for thread, n in taken if thread == t] == list(range(500))
