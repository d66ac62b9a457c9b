"""The dashboard and the alert rules of ``deploy/``, and the table of the docs: they say what is exported, and nothing else."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from greenroom.actors.counts import Counts
from greenroom.metrics import Collector
from greenroom.protocol.store import Backlog
from greenroom.supervisors.measures import Measures

ROOT = Path(__file__).parents[2]
OF_PROMETHEUS = {"instance", "job", "le"}
OF_THE_PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds"}
OPEN = {"agent", "worker", "le"}  # labels whose values are not a fixed few

PHASES = ("queued", "processing", "backoff", "held", "idle")
MEASURES = Measures(
    agent="support",
    worker="web-1",
    ready=True,
    counts=Counts(),
    detached=0,
    reconnects={"scripts": 0, "control": 0, "ready": 0},
    restarts=0,
    backlog=Backlog("", dict.fromkeys(PHASES, 0), 0, (0, 0), (0.0, 0.0)),
    refused="",
)


def exported() -> dict[str, dict[str, set[str]]]:
    """The names of all samples, with their labels and the values of these."""
    system: Any = SimpleNamespace(measures=lambda: MEASURES)
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for metric in Collector(system).collect():
        for sample in metric.samples:
            for label, value in sample.labels.items():
                found[sample.name][label].add(value)
    return found


EXPORTED = exported()


# What is asked. ---------------------------------------------------------------------------------------


def alerts() -> dict[str, list[str]]:
    """The lines of each alert, by its name."""
    parts = re.split(r"^ {6}- alert: (\w+)\n", (ROOT / "deploy" / "alerts.yml").read_text(), flags=re.MULTILINE)
    return {name: body.splitlines() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def expression(lines: list[str]) -> str:
    """What an alert asks: on the line of ``expr:``, or below it, further in."""
    [(place, first)] = [(place, line) for place, line in enumerate(lines) if line.startswith(" " * 8 + "expr: ")]
    words = [first.removeprefix(" " * 8 + "expr: ")]
    if words == ["|"]:
        words = []
        for line in lines[place + 1 :]:
            if not line.startswith(" " * 10):
                break
            words.append(line.strip())
    return " ".join(words)


def dashboard() -> Any:
    return json.loads((ROOT / "deploy" / "grafana.json").read_text())


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    for name, lines in alerts().items():
        yield name, expression(lines)
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("where", "asked"), list(expressions()))
def test_an_expression_asks_for_what_is_exported(where: str, asked: str) -> None:
    bare = re.sub(r'"[^"]*"', '""', asked)
    names = re.findall(r"\b((?:greenroom|process)_\w+)", bare)
    assert names, where
    assert set(names) <= set(EXPORTED) | OF_THE_PROCESS
    labels = {label for name in names for label in EXPORTED.get(name, ())} | OF_PROMETHEUS
    for group in re.findall(r"\b(?:by|on|group_left) \(([^)]*)\)", bare):
        assert {label.strip() for label in group.split(",")} <= labels
    for name, matchers in re.findall(r"\b(greenroom_\w+)\{([^}]*)\}", asked):
        for label, operator, wanted in re.findall(r'(\w+)(=~|!=|!~|=)"([^"]*)"', matchers):
            assert label in EXPORTED[name], f"{name} has no label {label}"
            if label not in OPEN:
                values = wanted.split("|") if "~" in operator else [wanted]
                assert set(values) <= EXPORTED[name][label]


@pytest.mark.parametrize(("where", "asked"), list(expressions()))
def test_an_expression_is_whole_and_takes_no_sum_of_what_all_workers_say(where: str, asked: str) -> None:
    for opening, closing in ("()", "[]", "{}"):
        assert asked.count(opening) == asked.count(closing), where
    assert asked.count('"') % 2 == 0
    of_all = [name for name, labels in EXPORTED.items() if "worker" not in labels] + ["greenroom_signals_heard_total"]
    for name in of_all:
        for call in re.findall(rf"(\w+)(?: by \([^)]*\))? \((?:rate\(|delta\(|deriv\()?{name}\b", asked):
            assert call == "max", f"{where}: {call} of {name}, of which each worker says the same"


# Alerts. ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(alerts()))
def test_an_alert_says_how_bad_it_is_what_there_is_and_what_to_do(name: str) -> None:
    text = "\n".join(alerts()[name])
    for part in ("severity: ", "summary: ", "description: "):
        assert text.count(part) == 1
    known = {label for labels in EXPORTED.values() for label in labels} | OF_PROMETHEUS
    said = set(re.findall(r"\$labels\.(\w+)", text))
    assert said <= known
    groups = re.findall(r"\bby \(([^)]*)\)", expression(alerts()[name]))
    if groups:  # what is not in a group is not there to be said
        assert said <= {label.strip() for label in groups[0].split(",")}


def test_alerts_of_different_things_have_different_names() -> None:
    text = (ROOT / "deploy" / "alerts.yml").read_text()
    names = re.findall(r"alert: (\w+)", text)
    assert len(names) == len(set(names)) == len(alerts())
    assert {
        "GreenroomNothingEnds",
        "GreenroomLeaseLost",
        "GreenroomDeadLetters",
        "GreenroomAgentHeld",
        "GreenroomLoopLag",
        "GreenroomOldestWaiting",
    } <= set(names)


# The dashboard. ---------------------------------------------------------------------------------------


def test_the_dashboard_shows_every_metric() -> None:
    asked = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in EXPORTED}
    assert {name for name in families if name not in asked} == set()


def test_the_panels_say_what_they_show_and_lie_beside_one_another() -> None:
    taken = set[tuple[int, int]]()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    for panel in panels():
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
    numbers = [panel["id"] for panel in dashboard()["panels"]]
    assert len(numbers) == len(set(numbers))


def test_each_of_its_expressions_is_for_the_agents_that_were_chosen() -> None:
    for panel in panels():
        for target in panel["targets"]:
            assert 'agent=~"$agent"' in target["expr"], panel["title"]


# The docs. --------------------------------------------------------------------------------------------


def test_the_docs_list_every_metric_with_its_type_and_labels() -> None:
    rows = re.findall(
        r"^\| `(greenroom_\w+)` \| (\w+) \|([^|]*)\|", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE
    )
    listed = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert len(listed) == len(rows)
    expected = {}
    for metric in Collector().describe():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        labels = set(metric._labelnames) - {"agent", "worker"}  # type: ignore[attr-defined]  # of each family
        expected[name] = (metric.type, labels)
    assert listed == expected


def test_the_docs_say_which_are_the_whole_agents() -> None:
    """The last five."""
    of_agent = [metric.name for metric in Collector().describe() if "worker" not in metric._labelnames]  # type: ignore[attr-defined]
    assert len(of_agent) == 5
    rows = re.findall(r"^\| `(greenroom_\w+)` \|", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    assert rows[-5:] == of_agent
