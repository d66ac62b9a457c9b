"""What docs/agents.md shows and lists: its code runs, and its tables are complete."""

from __future__ import annotations

import asyncio
import re
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from greenroom import Agent, Client, Interruption, Kind, Message, Outcome, OutcomeUnknown
from greenroom.actors.agent import _OPTIONS
from greenroom.protocol import codec
from greenroom.protocol.keys import Keys
from integration.agents import wait_for, wait_output
from integration.conftest import Running

PAGE = Path(__file__).resolve().parents[2] / "docs" / "agents.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def names_of(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(block, "agents.md", "exec"), names)  # noqa: S102  # the page's own code
    return names


def agent_of(name: str) -> tuple[type[Agent], dict[str, Any]]:
    """The page's agent of that name, and the other names of its block."""
    [names] = [names_of(block) for block in BLOCKS if f"class {name}(" in block]
    return names[name], names


def test_each_block_of_code_is_run_here() -> None:
    shown = {name for block in BLOCKS for name in re.findall(r"class (\w+)\(Agent\)", block)}
    assert shown == {"Coroutine", "AsyncGenerator", "Function", "Generator", "Remembering", "Shop", "Careful", "Polite"}
    assert len(BLOCKS) == 5


@pytest.mark.parametrize("kind", ["Coroutine", "AsyncGenerator", "Function", "Generator"])
def test_each_kind_of_respond_answers(kind: str, running: Running, client: Client) -> None:
    running(agent_of(kind)[0])
    assert client.ask("1", "hello").strip(" .") == "You said hello"


def test_the_agent_that_remembers_does_and_reads_what_version_1_left(
    running: Running, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    redis.set(keys.state("1"), codec.encode([1, {"turns": 4, "topic": "parcels"}]))
    running(agent_of("Remembering")[0])
    assert client.ask("1", "refunds") == "5: parcels, refunds"
    assert client.ask("2", "refunds") == "1: refunds"


def test_the_shop_charges_once_also_when_the_outcome_is_unknown(running: Running, client: Client) -> None:
    agent_class, names = agent_of("Shop")
    running(agent_class)
    assert client.ask("1", "order") == "Paid 12."

    async def goes_dead(order: dict[str, Any], *, idempotency_key: str) -> None:
        names["BOOKS"][idempotency_key] = 11
        raise OutcomeUnknown("charge")

    names["charge"] = goes_dead
    assert client.ask("1", "order") == "Paid 11."
    assert list(names["BOOKS"].values()) == [12, 11]


def test_the_careful_agent_says_that_it_has_paid(running: Running, client: Client) -> None:
    running(agent_of("Careful")[0])
    assert client.ask("1", "pay") == "Paying … paid. Anything else?"


def test_the_polite_agent_says_what_it_had_been_saying(running: Running, client: Client) -> None:
    agent_class, _ = agent_of("Polite")
    thinking = threading.Event()

    async def think(_: object) -> None:
        thinking.set()
        await asyncio.Event().wait()

    running(type("Thinking", (agent_class,), {"think": think}))
    client.send("1", "go")
    wait_for(thinking, "it thinks")
    assert client.interrupt("1")[0].outcome is Outcome.APPLIED
    wait_output(client, "1", lambda output: output.kind is Kind.ABORTED)
    assert [output.body for output in client.outputs("1")] == ["Let me think ", "Sorry.", None]
    assert client.ask("1", "what?") == "I had been saying: Let me think "


# Tables. --------------------------------------------------------------------------------------------------------


def rows() -> list[list[str]]:
    """The cells of the page's tables."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def text_of(default: Any) -> str:
    """A default as the page writes it."""
    if isinstance(default, timedelta):
        seconds = default.total_seconds()
        return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"
    if isinstance(default, bool) or default is None:
        return f"`{default}`"
    return {"none": '`"none"`', 1024 * 1024: "1 MiB"}.get(default, str(default))


def test_the_options_are_all_there_with_their_defaults() -> None:
    listed: dict[str, str] = {}
    for cells in rows():
        options = re.findall(r"`(\w+)`", cells[0])
        if options and set(options) <= set(_OPTIONS):
            listed.update(zip(options, cells[1].split(", "), strict=True))
    assert listed.pop("retry") == "`Backoff()`"
    assert listed == {option: text_of(getattr(Agent, option)) for option in _OPTIONS if option != "retry"}


def test_what_an_interruption_and_a_message_tell_is_all_there() -> None:
    told = {name for cells in rows() for name in re.findall(r"`(\w+)`", cells[0])}
    assert set(Interruption.model_fields) <= told
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"`{field}`" in page for field in Message.model_fields)


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE.read_text(encoding="utf-8"))
    assert {"../examples/apologises.py", "../examples/resumes.py", "../examples/pays.py"} <= set(links)
    assert all((PAGE.parent / link).exists() for link in links)
