"""The examples of patterns, run as a reader would run them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from integration.command import pytest_in

ROOT = Path(__file__).resolve().parents[2]


def lines_of(example: str) -> dict[str, str]:
    """What the example printed: by the words before the colon, what stands after it."""
    command = [sys.executable, str(ROOT / "examples" / example)]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, env=env, capture_output=True, encoding="utf-8", timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return {what: said.strip() for what, _, said in (line.partition(":") for line in done.stdout.splitlines())}


def test_an_agent_that_apologises_remembers_exactly_what_the_customer_has_heard() -> None:
    """row 22"""
    said = lines_of("apologises.py")
    assert said["and then"] == "Sorry, I was saying something. Please go on."
    assert said["the customer heard"].startswith("A refund takes three working days")
    assert said["asked what it said"] == f"I had been saying: {said['the customer heard']}"


def test_an_agent_resumes_over_an_interrupt_where_its_listener_was_and_over_a_stop_and_a_crash_where_its_steps_were() -> None:
    """rows 24 and 25"""
    said = lines_of("resumes.py")
    heard = [int(word) for what in ("at first", "then") for word in said[what].replace(",", "").split() if word.isdecimal()]
    assert len(heard) >= 6
    assert heard == list(range(1, len(heard) + 1))
    cycles = [sections.split(", ") for what, sections in said.items() if what.startswith("a cycle sent")]
    assert len(cycles[-1]) == 10
    for sections in cycles:  # the same words, written by the same process at the same moment
        assert sections == cycles[-1][: len(sections)]


def test_an_agent_that_pays_is_not_interrupted_and_charges_once_whatever_happens() -> None:
    """rows 21 and 25"""
    said = lines_of("pays.py")
    assert said["the interrupt was"] == "deferred"
    assert said["ann heard"].startswith("Paying … paid, receipt")
    assert said["ann heard"].endswith("(aborted)")
    assert "found. Your parcel leaves today." in said["bob heard"]
    assert said["cid heard"].startswith("Paying … (failed) Paying … paid, receipt")
    assert "found. Your parcel leaves today." in said["cid heard"]
    assert said["charged"] == "dead line, interrupted, killed"


def test_a_tool_that_hangs_or_crashes_in_its_child_process_is_in_nobodys_way() -> None:
    """row 28"""
    assert lines_of("isolated_tool.py") == {
        "a program": "42",
        "bob, meanwhile": "hello",
        "an endless one": "killed, and 1 line of it was seen",
        "one that crashes": "its process was ended by SIGABRT",
        "after all that": "still here",
    }


def test_the_tests_of_the_support_agent_pass_in_a_project_of_its_own(tmp_path: Path) -> None:
    for name in ("support_agent.py", "test_support_agent.py"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    done = pytest_in(tmp_path)
    assert "5 passed" in done.stdout, done.stdout + done.stderr
