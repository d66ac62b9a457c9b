"""What is told to systemd, over a real socket, and what of the environment that is taken from."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from greenroom.supervisors.notify import MAX_STATUS_CHARS, STATUS_S, Notifier

from helpers import Receiver, unique


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    receiver = Receiver(str(tmp_path / "notify"))
    yield receiver
    receiver.close()


def notifier_for(receiver: Receiver, **more: str) -> Notifier:
    return Notifier.from_environment({"NOTIFY_SOCKET": receiver.address, **more})


def test_what_is_told_and_in_which_words(receiver: Receiver) -> None:
    with notifier_for(receiver, WATCHDOG_USEC="3000000", WATCHDOG_PID=str(os.getpid())) as notifier:
        notifier.ready("works")
        notifier.alive("2 rooms")
        notifier.alive("2 rooms")
        notifier.alive()
        notifier.stopping("ends")
        notifier.say("no\nmodel")
    assert receiver.said() == [
        "READY=1\nSTATUS=works\n",
        "WATCHDOG=1\nSTATUS=2 rooms\n",
        "WATCHDOG=1\n",
        "WATCHDOG=1\n",
        "STOPPING=1\nSTATUS=ends\n",
        "STATUS=no model\n",
    ]
    assert notifier.period_s == 1.5


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract sockets")
def test_an_abstract_socket_is_found_by_its_name() -> None:
    receiver = Receiver(f"@{unique('notify')}")
    with notifier_for(receiver) as notifier:
        notifier.ready("works")
    assert receiver.said() == ["READY=1\nSTATUS=works\n"]
    receiver.close()


@pytest.mark.parametrize("more", [{}, {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}])
def test_without_a_watchdog_of_its_own_only_a_changed_status_is_told(receiver: Receiver, more: dict[str, str]) -> None:
    with notifier_for(receiver, **more) as notifier:
        for status in ("1 room", "1 room", "2 rooms"):
            notifier.alive(status)
    assert receiver.said() == ["STATUS=1 room\n", "STATUS=2 rooms\n"]
    assert (notifier.watchdog_s, notifier.period_s) == (None, STATUS_S)


def test_what_this_process_is_told_with_is_not_inherited(receiver: Receiver) -> None:
    environment = {"NOTIFY_SOCKET": receiver.address, "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1", "HOME": "/"}
    with Notifier.from_environment(environment):
        pass
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize("address", ["", "relative", "vsock:2:1234", "/nowhere/at/all"])
def test_where_nobody_can_be_told_nothing_happens(address: str) -> None:
    with Notifier.from_environment({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"}) as notifier:
        notifier.ready("works")
        notifier.alive("works")


def test_who_stops_listening_disturbs_nobody(receiver: Receiver) -> None:
    with notifier_for(receiver, WATCHDOG_USEC="1000000") as notifier:
        for _ in range(10_000):  # more than waits for him
            notifier.alive("works")
        receiver.close()
        notifier.stopping("ends")


def test_who_listens_anew_at_the_same_path_is_told(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with Notifier.from_environment({"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "1000000"}) as notifier:
        for _ in range(2):
            notifier.alive("lost")
            receiver = Receiver(str(path))
            notifier.alive("works")
            assert receiver.said() == ["WATCHDOG=1\nSTATUS=works\n"]
            receiver.close()
            path.unlink()


def test_a_status_is_one_line_of_bounded_length(receiver: Receiver) -> None:
    with notifier_for(receiver) as notifier:
        notifier.say("a\nREADY=1\n" + "x" * 10_000 + "\udc80")
    [said] = receiver.said()
    assert said.startswith("STATUS=a READY=1 x")
    assert len(said) == len("STATUS=\n") + MAX_STATUS_CHARS


def test_a_parent_is_told_over_the_lifeline_which_goes_on_to_be_waited_at() -> None:
    ours, theirs = socket.socketpair()
    environment = {"WATCHDOG_USEC": "1000000"}
    with Notifier.to_parent(theirs.fileno(), environment) as notifier:
        notifier.ready("works")
        notifier.alive("works")
        assert ours.recv(1000) == b"READY=1\nSTATUS=works\nWATCHDOG=1\n"
        assert os.get_blocking(theirs.fileno())
        assert environment == {}
        ours.close()
        notifier.alive("nobody is there")
    theirs.close()


def test_a_lifeline_that_goes_one_way_tells_nobody() -> None:
    reading, writing = os.pipe()
    with Notifier.to_parent(reading, {}) as notifier:
        notifier.ready("works")
    os.close(reading)
    with pytest.raises(BrokenPipeError):  # nobody has another end of it
        os.write(writing, b"x")
    os.close(writing)
