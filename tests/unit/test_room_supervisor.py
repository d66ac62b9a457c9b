"""The room supervisor: a room a ready entry, started again when it fails, and no entry forgotten."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pykka
import pytest

from greenroom.actors.counts import Counts
from greenroom.actors.loop import LoopThread
from greenroom.actors.loop_actor import LoopActor
from greenroom.actors.room import CycleFailed
from greenroom.actors.slots import Slots
from greenroom.actors.transitions import RoomMachine
from greenroom.supervisors.rooms import Activate, RoomSupervisor
from unit.looping import LIMIT_S, settle


class FakeRoom(LoopActor):
    """A room that ends when it is told to, and not before."""

    def __init__(self, context: Any, room: str, ready: str) -> None:
        super().__init__(context.control)
        self.machine = RoomMachine(ready)
        context.begun.append((room, ready))

    def on_receive(self, message: Any) -> None:
        if isinstance(message, BaseException):
            raise message


@pytest.fixture
def context(loop: LoopThread) -> Any:
    """What the room supervisor needs of a worker; ``begun`` is what it has started."""
    return SimpleNamespace(control=loop, slots=Slots(10), counts=Counts(), active={}, begun=[])


def living_rooms(loop: LoopThread, count: int) -> list[pykka.ActorRef[FakeRoom]]:
    settle(loop)
    refs = pykka.ActorRegistry.get_by_class(FakeRoom)
    assert len(refs) == count
    return refs


@pytest.mark.parametrize("fails", [False, True])
def test_an_entry_that_arrives_while_its_room_ends_starts_the_room_again(loop: LoopThread, context: Any, fails: bool) -> None:
    """row 26"""
    rooms = RoomSupervisor.start(context, FakeRoom.start)
    rooms.tell(Activate("1-0", "42"))
    (first,) = living_rooms(loop, 1)
    go = threading.Event()
    loop.post(go.wait, LIMIT_S)
    if fails:
        first.tell(CycleFailed("on record"))
    else:
        first.stop(block=False)
    rooms.tell(Activate("2-0", "42"))  # is handled before the supervisor hears of the end
    go.set()
    del first
    settle(loop)
    assert context.begun == [("42", "1-0"), ("42", "2-0")]
    rooms.stop(timeout=LIMIT_S)


def test_a_room_that_ended_with_its_entry_claimed_is_forgotten(loop: LoopThread, context: Any) -> None:
    rooms = RoomSupervisor.start(context, FakeRoom.start)
    rooms.tell(Activate("1-0", "42"))
    (room,) = living_rooms(loop, 1)
    room.stop(timeout=LIMIT_S)
    settle(loop)
    actor = rooms._actor_weakref()
    assert actor is not None
    assert len(actor) == 0
    assert context.active == {}
    assert actor.whereis("42") is None
    rooms.stop(timeout=LIMIT_S)


def test_the_same_entry_handed_over_twice_starts_one_room(loop: LoopThread, context: Any) -> None:
    """row 20"""
    rooms = RoomSupervisor.start(context, FakeRoom.start)
    for _ in range(5):
        rooms.tell(Activate("1-0", "42"))
    settle(loop)
    assert context.begun == [("42", "1-0")]
    rooms.stop(timeout=LIMIT_S)


def test_a_room_that_crashes_does_not_touch_the_others(loop: LoopThread, context: Any) -> None:
    """row 32"""
    rooms = RoomSupervisor.start(context, FakeRoom.start)
    for number in range(3):
        rooms.tell(Activate(f"{number}-0", str(number)))
    first, *others = living_rooms(loop, 3)
    first.tell(CycleFailed("on record"))
    settle(loop)
    assert len(context.begun) == 4
    assert all(other.is_alive() for other in others)
    rooms.stop(timeout=LIMIT_S)
