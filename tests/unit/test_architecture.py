"""The layers that pyproject.toml declares."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[2]


def test_imports_go_from_supervisors_to_actors_to_protocol_and_never_up(capsys: pytest.CaptureFixture[str]) -> None:
    loggers = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    silent = {logger for logger in loggers if logger.disabled}
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    for logger in loggers:  # it configures logging for itself, and silences all that were there before
        logger.disabled = logger in silent
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out
