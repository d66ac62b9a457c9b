"""What docs/testing.md shows and lists: its files are a project whose tests pass, and its table is complete."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from greenroom import Agent, AsyncClient, Client
from greenroom.testing import AsyncStage, Stage, running
from integration.agents import eventually
from integration.command import pytest_in
from pages import blocks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def files() -> dict[str, str]:
    """The page's files by their names, which stand in their first lines."""
    named = [re.match(r"# (\w+\.py)\n", block) for block in BLOCKS]
    assert all(named)
    return {name[1]: block for name, block in zip(named, BLOCKS, strict=True) if name}


def test_all_tests_of_the_page_pass(tmp_path: Path) -> None:
    assert len(files()) == len(BLOCKS)
    for name, block in files().items():
        (tmp_path / name).write_text(block)
    done = pytest_in(tmp_path)
    assert f"{len(re.findall('^def test_', TEXT, re.MULTILINE))} passed" in done.stdout, done.stdout + done.stderr


def test_the_first_file_needs_no_other(tmp_path: Path) -> None:
    (tmp_path / "test_echo.py").write_text(BLOCKS[0])
    done = pytest_in(tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_what_a_wait_that_fails_says_begins_as_is_shown() -> None:
    class Shop(Agent):
        max_attempts = 1

        def respond(self, message: Any, cycle: Any) -> Any:
            raise KeyError("order")

    with running(Shop, timeout=0.3) as stage:
        stage.send("42", "hello")
        eventually(lambda: stage.overview().dead == 1, "it is a dead letter")
        with pytest.raises(AssertionError) as late:
            stage.wait_output("42", "reply")
    [shown] = [each.text for each in blocks("docs/testing.md", "text")]
    said = [steady(line) for line in f"AssertionError: {late.value}".splitlines()]
    assert said[:4] == [steady(line) for line in shown.splitlines()[:4]]


def steady(line: str) -> str:
    """Without what differs from one run to the next."""
    return re.sub(r"\d\d:\d\d:[\d.]+|\d{16}|within [\d.]+ s", "…", line)


def test_what_a_reader_types_is_there() -> None:
    """The tests of the page are run above; the wheel is installed by a test of its own."""
    [install, run] = blocks("docs/testing.md", "sh")[0].text.splitlines()
    assert shlex.split(install, comments=True) == ["pip", "install", "greenroom[embedded]", "pytest"]
    assert shlex.split(run) == ["pytest", next(iter(files()))]


@pytest.mark.parametrize(("stage", "client"), [(Stage, Client), (AsyncStage, AsyncClient)])
def test_the_table_has_all_that_a_stage_has_and_a_client_has_not(stage: type, client: type) -> None:
    listed = {
        name for line in TEXT.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)", line.split("|")[1])
    }
    assert listed == {name for name in set(dir(stage)) - set(dir(client)) if name[0] != "_"} | {"agent"}


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", TEXT)
    assert "../examples/test_support_agent.py" in links
    assert all((PAGE.parent / link).exists() for link in links)
