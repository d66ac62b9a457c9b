"""When a failed child is started again, after how long, and when no more."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenroom import AgentError, Backoff
from greenroom.supervisors.restart import Restart, RestartHistory, RestartPolicy

FAST = Backoff(first=timedelta(seconds=1), most=timedelta(seconds=8))


def history(intensity: int = 5, period_s: float = 30.0) -> RestartHistory:
    return RestartHistory(RestartPolicy(intensity=intensity, period=timedelta(seconds=period_s), backoff=FAST))


@pytest.mark.parametrize(
    ("restart", "failure", "again"),
    [
        (Restart.PERMANENT, None, True),
        (Restart.PERMANENT, ValueError(), True),
        (Restart.PERMANENT, SystemExit(), True),
        (Restart.TRANSIENT, None, False),
        (Restart.TRANSIENT, ValueError(), True),
        (Restart.TRANSIENT, SystemExit(), True),
        (Restart.TEMPORARY, None, False),
        (Restart.TEMPORARY, ValueError(), False),
        (Restart.TEMPORARY, SystemExit(), False),
    ],
)
def test_restart_type_against_exit_reason(restart: Restart, failure: BaseException | None, again: bool) -> None:
    assert restart.after(failure) is again


def test_the_budget_is_spent_after_intensity_restarts_within_the_period() -> None:
    tries = history(intensity=3)
    assert [tries.next_delay_s(now) is None for now in (0.0, 1.0, 2.0, 3.0)] == [False, False, False, True]


def test_an_intensity_of_none_allows_no_restart() -> None:
    assert history(intensity=0).next_delay_s(0.0) is None


def test_failures_older_than_the_period_are_forgotten() -> None:
    tries = history(intensity=2, period_s=10)
    assert tries.next_delay_s(0.0) is not None
    assert tries.next_delay_s(1.0) is not None
    assert tries.next_delay_s(10.5) is not None  # the first is out of the period, the second is not
    assert tries.next_delay_s(10.6) is None


def test_waits_double_up_to_the_most_and_are_jittered_within_their_upper_half() -> None:
    tries = history(intensity=100)
    for row, whole in enumerate((1, 2, 4, 8, 8, 8)):
        delay = tries.next_delay_s(float(row))
        assert delay is not None
        assert whole / 2 <= delay <= whole


def test_waits_begin_again_with_the_first_after_a_stable_time() -> None:
    tries = history(intensity=100, period_s=10)
    for now in (0.0, 1.0, 2.0, 3.0):
        tries.next_delay_s(now)
    delay = tries.next_delay_s(13.5)
    assert delay is not None
    assert delay <= 1


def test_no_two_waits_need_be_alike() -> None:
    delays = {Backoff(first=timedelta(seconds=1)).delay_s(1) for _ in range(20)}
    assert len(delays) > 1


def test_a_backoff_of_very_many_tries_neither_overflows_nor_exceeds_its_most() -> None:
    assert 4 <= FAST.delay_s(10_000) <= 8


@pytest.mark.parametrize(
    ("first", "most"),
    [(timedelta(seconds=-1), timedelta(seconds=1)), (timedelta(seconds=2), timedelta(seconds=1)), (1, timedelta(seconds=2))],
)
def test_durations_that_make_no_sense_are_refused(first: timedelta, most: timedelta) -> None:
    with pytest.raises(AgentError, match="Backoff"):
        Backoff(first=first, most=most)


@given(
    st.lists(st.floats(min_value=0, max_value=20), max_size=40),
    st.integers(min_value=0, max_value=5),
    st.timedeltas(timedelta(seconds=0.5), timedelta(seconds=30)),
)
def test_never_more_than_intensity_restarts_in_any_period(gaps: list[float], intensity: int, period: timedelta) -> None:
    period_s = period.total_seconds()
    tries, now, restarts = history(intensity, period_s), 0.0, []
    for gap in gaps:
        now += gap
        if tries.next_delay_s(now) is not None:
            restarts.append(now)
    for start in restarts:
        assert sum(1 for at in restarts if 0 <= at - start <= period_s) <= intensity
    assert tries.total == len(restarts)
