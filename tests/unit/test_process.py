"""Which exit code says what."""

from __future__ import annotations

import pytest

import greenroom
from greenroom import GreenroomError
from greenroom.protocol import errors
from greenroom.supervisors.process import ExitCode, complain, exit_code

ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GreenroomError)]


@pytest.mark.parametrize("kind", [*ERRORS, greenroom.BudgetSpent], ids=lambda kind: kind.__name__)
def test_the_exit_code_says_who_must_act(kind: type[GreenroomError]) -> None:
    expected = ExitCode.FAILED
    if issubclass(kind, errors.InvalidRequest | errors.AgentError):
        expected = ExitCode.USAGE
    elif kind is errors.Superseded:
        expected = ExitCode.SUPERSEDED
    elif issubclass(kind, errors.RedisError):
        expected = ExitCode.REDIS
    assert exit_code(kind("why")) is expected


def test_no_error_is_fine_and_any_other_error_has_failed() -> None:
    assert exit_code(None) is ExitCode.OK
    assert exit_code(RuntimeError()) is ExitCode.FAILED
    assert [int(code) for code in ExitCode] == [0, 1, 2, 3, 4]


def test_a_complaint_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    complain("one\ntwo\r\nthree")
    assert capsys.readouterr() == ("", "greenroom: one two three\n")
