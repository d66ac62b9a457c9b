"""``greenroom run --metrics``: where it listens, and what it refuses."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from greenroom import Client, InvalidRequest
from greenroom.running import metrics_words
from integration.agents import eventually
from integration.command import SOURCES, Process
from integration.scraping import Page

APP = """
from greenroom import Agent

class Echo(Agent):
    async def respond(self, message, cycle):
        return message.body
"""

Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path, agent: str, redis_url: str) -> Iterator[Start]:
    (tmp_path / "app.py").write_text(APP)
    started: list[Process] = []

    def start(*arguments: str, **environment: str) -> Process:
        words = ("app:Echo", "--agent", agent, "--redis", redis_url, *arguments)
        started.append(Process(tmp_path, *words, environment=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def pages(process: Process, count: int) -> dict[str, Page]:
    """Where each worker of the process serves its metrics."""
    process.wait_count("worker.started", count)
    lines = process.wait_count("event=metrics.serving", count)
    found = [re.search(r" worker=(\S+) host=(\S+) port=(\d+)", line) for line in lines]
    return {match[1]: Page(int(match[3]), match[2]) for match in found if match}


def test_a_worker_serves_its_metrics_on_the_loopback(start: Start, client: Client) -> None:
    process = start("--name", "w1", "--metrics", "0")
    page = pages(process, 1)["w1"]
    assert page.url.startswith("http://127.0.0.1:")
    client.ask("42", "hello")
    eventually(lambda: page.scrape().said("messages_total", worker="w1", outcome="committed") == 1, "it counts")
    names = {name for name, _, _ in page.scrape().samples}
    assert {"process_resident_memory_bytes", "process_start_time_seconds"} <= names
    assert process.stop() == 0


def test_of_several_workers_each_serves_its_own(start: Start, client: Client) -> None:
    process = start("--name", "w", "--processes", "2", "--metrics", "0")
    found = pages(process, 2)
    for name, page in found.items():
        eventually(lambda page=page, name=name: page.scrape().said("ready", worker=name) == 1, "it is ready")  # type: ignore[misc]
        said = page.scrape()
        assert {labels["worker"] for _, labels, _ in said.samples if "worker" in labels} == {name}
    assert sorted(found) == ["w-1", "w-2"]
    assert process.stop() == 0


def test_workers_have_ports_that_follow_one_another() -> None:
    assert metrics_words(["w-1", "w-2"], None, None) == {"w-1": [], "w-2": []}
    assert metrics_words(["w-1", "w-2"], 9100, None) == {"w-1": ["--metrics", "9100"], "w-2": ["--metrics", "9101"]}
    host = ["--metrics-host", "::1"]
    assert metrics_words(["w-1", "w-2"], 0, "::1") == {"w-1": ["--metrics", "0", *host], "w-2": ["--metrics", "0", *host]}
    assert metrics_words(["w-1"], 65535, None) == {"w-1": ["--metrics", "65535"]}
    with pytest.raises(InvalidRequest, match="2 workers need as many ports, from 65535 on"):
        metrics_words(["w-1", "w-2"], 65535, None)
    with pytest.raises(InvalidRequest, match="--metrics-host is for --metrics"):
        metrics_words(["w-1"], None, "0.0.0.0")  # noqa: S104  # it is refused


def test_another_address_is_a_choice(start: Start) -> None:
    process = start("--name", "w1", "--metrics", "0", "--metrics-host", "localhost")
    page = pages(process, 1)["w1"]
    assert page.url.startswith("http://localhost:")
    assert page.scrape().said("ready") is not None
    assert process.stop() == 0


def test_by_default_nothing_is_served(start: Start, client: Client) -> None:
    process = start()
    process.wait_line()
    assert process.stop() == 0
    assert "metrics" not in process.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--metrics-host", "127.0.0.1"], "--metrics-host is for --metrics"),
        (["--metrics-host", "127.0.0.1", "--processes", "2"], "--metrics-host is for --metrics"),
        (["--metrics", "65536"], "--metrics"),
        (["--metrics", "-1"], "--metrics"),
        (["--metrics", "http"], "--metrics"),
        (["--metrics", "65535", "--processes", "2"], "2 workers need as many ports"),
        (["--metrics", "0", "--metrics-host", "192.0.2.1"], "metrics: cannot listen on 192.0.2.1 port 0: "),
    ],
)
def test_what_cannot_be_served_is_one_line_and_exit_code_2(arguments: list[str], words: str, start: Start) -> None:
    process = start(*arguments)
    assert process.exit_code() == 2
    assert words in process.output
    assert process.output.startswith("greenroom: ")
    assert process.output.count("\n") == 1


def test_a_port_that_is_taken_is_exit_code_2(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start("--metrics", str(port))
        assert process.exit_code() == 2
        assert f"metrics: cannot listen on 127.0.0.1 port {port}: Address already in use" in process.output


def test_without_the_extra_all_but_metrics_works_and_metrics_say_what_to_install(
    start: Start, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "prometheus_client.py").write_text("raise ImportError('it is not there')")
    without = f"{tmp_path / 'without'}:{SOURCES}"
    process = start("--metrics", "0", PYTHONPATH=without)
    assert process.exit_code() == 2
    assert process.output == (
        "greenroom: --metrics: greenroom.metrics needs prometheus-client: pip install 'greenroom[metrics]'\n"
    )
    process = start(PYTHONPATH=without)
    assert client.ask("42", "hello") == "hello"
    assert process.stop() == 0
