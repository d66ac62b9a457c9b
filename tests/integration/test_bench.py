"""scripts/bench: that every section runs and prints, not what it measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 240


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "scripts")])
    return subprocess.run(
        [sys.executable, "-P", "-m", "benchmarks", *arguments],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


@pytest.mark.timeout(LIMIT_S + 30)
def test_a_quick_bench_prints_every_section_and_writes_its_figures(tmp_path: Path) -> None:
    done = bench("--quick", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for section, what in {
        "a": "50 rooms x 40 ",
        "b": "50 rooms x 40, system / bare loop",
        "c": "interrupt, saturated, to the handler, p99",
        "d": "10,000 idle rooms",
        "e": "replay, another worker, from the kill, max",
        "f": "50 rooms x 100 chunks, as soon as they can",
        "g": "stop to death, ends when told, p99",
        "h": "a worker with nothing to do",
    }.items():
        assert any(line.startswith(f"({section}) {what}") for line in lines), done.stdout
    written = json.loads((tmp_path / "figures.json").read_text())
    assert {figure["section"] for figure in written["figures"]} == {"a", "b", "c", "d", "e", "f", "g", "h"}
    assert {"cpus", "python", "redis"} <= written["machine"].keys()


def test_an_unknown_section_is_refused_in_one_line() -> None:
    done = bench("--only", "a,x")
    assert done.returncode == 2
    assert "--only: want some of a, b, c, d, e, f, g, h, got a,x" in done.stderr
