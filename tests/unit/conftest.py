"""A loop for the actors of a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pykka
import pytest

from greenroom.actors.loop import LoopThread
from unit.looping import LIMIT_S


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    """A loop of its own, which ends all that is left on it."""
    before = pykka.ActorRegistry.get_all()
    loop = LoopThread("test-loop")
    loop.start()
    yield loop
    loop.stop()
    assert [ref for ref in pykka.ActorRegistry.get_all() if ref not in before] == [], "an actor outlived its test"


@pytest.fixture
def held(loop: LoopThread) -> Iterator[Callable[[], None]]:
    """The loop stands still until the test calls the answer."""
    go = threading.Event()
    loop.post(go.wait, LIMIT_S)
    yield go.set
    go.set()
