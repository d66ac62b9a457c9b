"""What a process ends with, what it says, and what it is told."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

import greenroom
from greenroom import GreenroomError
from greenroom.protocol import errors
from greenroom.supervisors.orders import Order, Orders
from greenroom.supervisors.process import ExitCode, complain, exit_code, label_stderr

ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GreenroomError)]


@pytest.mark.parametrize("kind", [*ERRORS, greenroom.BudgetSpent], ids=lambda kind: kind.__name__)
def test_the_exit_code_says_who_must_act(kind: type[GreenroomError]) -> None:
    own = {
        errors.Superseded: ExitCode.SUPERSEDED,
        errors.RedisEmptied: ExitCode.EMPTIED,
        greenroom.BudgetSpent: ExitCode.BUDGET,
    }
    expected = own.get(kind, ExitCode.FAILED)
    if issubclass(kind, errors.InvalidRequest | errors.AgentError):
        expected = ExitCode.USAGE
    elif issubclass(kind, errors.RedisError) and kind not in own:
        expected = ExitCode.REDIS
    assert exit_code(kind.__new__(kind)) is expected


def test_no_error_is_fine_and_any_other_error_has_failed() -> None:
    assert exit_code(None) is ExitCode.OK
    assert exit_code(RuntimeError()) is ExitCode.FAILED
    assert [int(code) for code in ExitCode] == [0, 1, 2, 3, 4, 5, 6]


def test_a_complaint_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    complain("one\ntwo\r\nthree")
    assert capsys.readouterr() == ("", "greenroom: one two three\n")


# Lines that say whose they are. -------------------------------------------------------------------------


def test_each_line_on_stderr_begins_with_the_label(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    label_stderr("w-1")
    complain("one")
    for part in ("two ", "and\nthree", "\n"):
        sys.stderr.write(part)
    sys.stderr.writelines(["four\n", "five"])
    assert capsys.readouterr().err == "w-1: greenroom: one\nw-1: two and\nw-1: three\nw-1: four\n"
    sys.stderr.flush()
    assert capsys.readouterr().err == "w-1: five\n"
    assert sys.stderr.encoding


def test_lines_of_several_threads_stay_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    label_stderr("w")

    def write(word: str) -> None:
        for _ in range(200):
            sys.stderr.write(f"{word * 50}\n")

    threads = [threading.Thread(target=write, args=(word,)) for word in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(capsys.readouterr().err.splitlines()) == sorted(f"w: {word * 50}" for word in "abc" for _ in range(200))


# Orders. --------------------------------------------------------------------------------------------------


def test_a_second_signal_is_to_force_and_the_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Orders() as orders:
        orders.begin()
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.raise_signal(number)
        assert [orders.events.get() for _ in range(3)] == [Order.STOP, Order.DUMP, Order.FORCE]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_before_anything_has_begun_interrupts_and_is_not_forgotten() -> None:
    with Orders() as orders:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        orders.begin()
        assert orders.events.get() is Order.STOP


@pytest.fixture
def hang_up() -> Iterator[None]:
    """SIGHUP as it is by default, and again what it was at the end."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hang_up")
def test_a_terminal_that_goes_is_a_stop_once_and_never_a_second_signal() -> None:
    with Orders() as orders:
        orders.begin()
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.raise_signal(number)
        assert [orders.events.get() for _ in range(3)] == [Order.STOP, Order.STOP, Order.FORCE]
        assert orders.events.empty()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


@pytest.mark.usefixtures("hang_up")
def test_a_terminal_that_goes_before_anything_has_begun_interrupts_once() -> None:
    with Orders() as orders:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert orders.events.get() is Order.STOP
        assert orders.events.empty()


@pytest.mark.usefixtures("hang_up")
def test_a_hang_up_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Orders():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_orders_of_the_parent_do_not_count_as_signals_and_its_death_is_a_stop() -> None:
    reading, writing = os.pipe()
    with Orders(reading) as orders:
        orders.begin()
        os.write(writing, Order.STOP.value + Order.DUMP.value)
        assert [orders.events.get() for _ in range(2)] == [Order.STOP, Order.DUMP]
        signal.raise_signal(signal.SIGTERM)
        assert orders.events.get() is Order.STOP
        os.close(writing)
        assert orders.events.get() is Order.STOP
        assert orders.events.empty()
    os.close(reading)


def test_a_lifeline_is_not_inherited_by_what_the_agent_starts() -> None:
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    with Orders(reading) as orders:
        assert not os.get_inheritable(reading)
        orders.begin()
        os.close(writing)
        assert orders.events.get() is Order.STOP
    os.close(reading)
