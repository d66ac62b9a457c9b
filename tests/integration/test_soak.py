"""scripts/soak: a small one, as people run it; and that it says what has not come back."""

from __future__ import annotations

import dataclasses
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 400


def soak(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "scripts")])}
    command = [sys.executable, "-P", "-m", "soak_kit", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=DEADLINE_S)


@pytest.mark.timeout(DEADLINE_S + 30)
def test_redis_and_worker_are_back_where_they_were_after_a_small_soak() -> None:
    """row 47"""
    done = soak("--messages", "4000", "--rooms", "40")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4,000 messages in " in done.stdout
    assert done.stdout.endswith("Redis and the workers are back where they were\n")


def test_a_number_of_messages_that_is_none_is_refused_in_one_line() -> None:
    done = soak("--messages", "0")
    assert done.returncode == 2
    assert "--messages: want 1 or more, got 0" in done.stderr


WORKER = {"rss_kib": 50_000, "objects": 50_000, "rooms": 0, "tasks": 10, "cycles": 1}
AGENT_KEYS = {"": 1, "ready": 1, "events": 1}

Grow = Callable[[Any], Any]


def worker(**more: int) -> Grow:
    return lambda before: dataclasses.replace(before, workers=[{**WORKER, **more}])


@pytest.mark.parametrize(
    ("grow", "told"),
    [
        (lambda before: dataclasses.replace(before, used_mib=10.0), "Redis has 8.00 MiB more than before"),
        (
            lambda before: dataclasses.replace(before, keys={**AGENT_KEYS, "room:state": 3}),
            "3 keys of kind room:state are left",
        ),
        (worker(rss_kib=90_000), "worker 1 has 40000 rss_kib more than before"),
        (worker(objects=60_000), "worker 1 has 10000 objects more than before"),
        (worker(tasks=20), "worker 1 has 10 tasks more than before"),
        (worker(rooms=2), "worker 1 has 2 rooms"),
    ],
    ids=["memory of Redis", "keys", "memory", "objects", "tasks", "rooms"],
)
def test_what_has_not_come_back_is_told(monkeypatch: pytest.MonkeyPatch, grow: Grow, told: str) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    measure: Any = importlib.import_module("soak_kit.measure")
    before = measure.Holdings(2.0, AGENT_KEYS, [WORKER])
    assert measure.differences(before, before) == []
    [line] = measure.differences(before, grow(before))
    assert line.startswith(told)
