"""Every code block of README.md and docs/ is run by a test: which, stands here. And every link leads somewhere."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from greenroom import ActorSystem, Client
from greenroom.protocol.server import RedisServer, find_cli
from integration.agents import Director, eventually
from integration.command import SOURCES, WAIT_S, wrapped
from integration.conftest import Running
from integration.receiver import Relaying
from pages import PAGES, ROOT, Block, blocks, rows

ALL = ""  # each block of that language: the test takes them all and fails for one that it does not know
HERE = "tests/integration/test_pages.py"
README, CLI = "tests/integration/test_readme.py", "tests/integration/test_redis_cli_page.py"
TESTING = "tests/integration/test_testing_page.py"
AGENTS, EMBEDDING = "tests/integration/test_agents_page.py", "tests/integration/test_embedding_page.py"

# Page, language and first line of blocks, and the tests that run them.
RUN_BY = {
    ("README.md", "python", "# support.py"): f"{README}::test_the_first_agent_answers_when_it_is_embedded_as_printed",
    ("README.md", "python", "from greenroom import ActorSystem, Client"): (
        f"{README}::test_the_first_agent_answers_when_it_is_embedded_as_printed"
    ),
    ("README.md", "python", "from datetime import timedelta"): f"{README}::test_the_careful_example_streams_through_its_shield",
    ("README.md", "sh", ALL): f"{README}::test_each_line_that_a_reader_types_is_of_a_kind_that_is_run_here",
    ("docs/agents.md", "python", ALL): f"{AGENTS}::test_each_block_of_code_is_run_here",
    ("docs/embedding.md", "python", ALL): f"{EMBEDDING}::test_each_program_is_known_here",
    ("docs/isolation.md", "python", "import subprocess"): f"{HERE}::test_the_tool_of_the_page_on_child_processes_runs_programs",
    ("docs/operations.md", "json", ALL): f"{HERE}::test_a_record_has_the_fields_that_the_example_has",
    (
        "docs/operations.md",
        "text",
        "rediss://user:password@",
    ): ("tests/integration/test_tls.py::test_the_url_that_the_page_on_operations_shows_is_one"),
    ("docs/operations.md", "text", "event=loop.blocked"): f"{HERE}::test_a_record_has_the_fields_that_the_example_has",
    (
        "docs/operations.md",
        "sh",
        "redis-cli -u redis://redis.example:6379 --rdb",
    ): f"{HERE}::test_a_backup_is_taken_as_the_page_shows",
    ("docs/operations.md", "sh", "# with REDISCLI_AUTH"): f"{HERE}::test_users_are_made_as_the_page_shows",
    ("docs/operations.md", "sh", "# what is kept of this agent"): f"{HERE}::test_what_is_kept_is_told_as_the_page_shows",
    ("docs/pictures.md", "mermaid", ALL): (
        "tests/integration/test_pictures_page.py::test_each_picture_is_of_a_kind_and_each_of_its_lines_a_statement"
    ),
    ("docs/redis-cli.md", "sh", ALL): f"{CLI}::test_each_line_of_the_page_answers_as_is_printed_below_it",
    ("docs/redis-cli.md", "text", ALL): f"{CLI}::test_each_line_of_the_page_answers_as_is_printed_below_it",
    ("docs/relay.md", "python", "from greenroom import Output, Reject, Relay"): (
        "tests/integration/test_relay_command.py::test_the_page_about_relays_shows_what_runs"
    ),
    ("docs/relay.md", "sh", "greenroom relays"): f"{HERE}::test_a_relay_is_listed_and_forgotten_as_the_page_shows",
    ("docs/testing.md", "python", ALL): f"{TESTING}::test_all_tests_of_the_page_pass",
    ("docs/testing.md", "sh", "pip install"): f"{TESTING}::test_what_a_reader_types_is_there",
    ("docs/testing.md", "text", "AssertionError"): f"{TESTING}::test_what_a_wait_that_fails_says_begins_as_is_shown",
    ("docs/supervision.md", "python", "import pykka"): (
        "tests/unit/test_supervise_any_actor.py::test_the_page_about_supervision_shows_what_runs"
    ),
}


def every_block() -> list[Block]:
    return [found for page in PAGES for found in blocks(str(page.relative_to(ROOT)))]


def is_run(found: Block) -> bool:
    return any(
        (page, language) == (found.page, found.language) and found.first.startswith(first) for page, language, first in RUN_BY
    )


def test_each_block_of_each_page_is_run_by_a_test() -> None:
    assert [f"{found.page}: {found.language}: {found.first}" for found in every_block() if not is_run(found)] == []


@pytest.mark.parametrize("claim", RUN_BY, ids=lambda claim: " ".join(claim)[:60])
def test_what_is_said_to_run_is_there_and_so_is_the_test(claim: tuple[str, str, str]) -> None:
    page, language, first = claim
    found = [each for each in blocks(page, language) if each.first.startswith(first)]
    assert found if first == ALL else len(found) == 1
    file, _, name = RUN_BY[claim].partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_stands_in_fences_that_name_its_language(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^```(.*)$", text, re.MULTILINE)
    assert all(fences[::2]), "each begins with its language"
    assert not any(fences[1::2])
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"(?:^|\n)\n {4,}\S.*", outside) == [], "indented code is run by nobody"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def anchors(file: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# The blocks that no other file runs. --------------------------------------------------------------------------


def typed(script: str, folder: Path, env: dict[str, str]) -> str:
    """What a shell prints that is given these lines."""
    words = ["sh", "-ec", script]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def redis_cli(folder: Path, url: str, drop: int = 0) -> dict[str, str]:
    cli = find_cli()
    assert cli is not None
    return wrapped(folder, "redis-cli", str(cli), "-u", url, drop=drop)


def sh(page: str, start: str) -> str:
    [found] = [each.text for each in blocks(page, "sh") if each.first.startswith(start)]
    return found


def test_the_tool_of_the_page_on_child_processes_runs_programs(tmp_path: Path, redis_url: str, agent: str) -> None:
    [tool] = blocks("docs/isolation.md", "python")
    (tmp_path / "tool.py").write_text(tool.text)
    (tmp_path / "main.py").write_text(
        f"""
from greenroom import ActorSystem, Client
from tool import Tool

if __name__ == "__main__":
    with ActorSystem(Tool, agent="{agent}", redis="{redis_url}"), Client("{agent}", redis="{redis_url}") as client:
        print(client.ask("42", ["echo", "it runs"]))
"""
    )
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    assert typed(shlex.join([sys.executable, "main.py"]), tmp_path, environment) == "it runs\n\n"


def test_a_record_has_the_fields_that_the_example_has() -> None:
    [record] = blocks("docs/operations.md", "json")
    [blocked] = [each for each in blocks("docs/operations.md", "text") if each.first.startswith("event=loop.blocked")]
    lines = [line for line in blocked.text.splitlines() if line.startswith("event=")]
    records = [json.loads(record.text), *(dict(word.split("=", 1) for word in shlex.split(line)) for line in lines)]
    assert [each["event"] for each in records] == ["cycle.failed", "loop.blocked", "loop.free"]
    listed = {cells[0].strip("`"): set(re.findall(r"`(\w+)`", cells[2])) for cells in rows("docs/operations.md", "Logs")}
    stamped = {"timestamp", "level"}
    for each in records:
        fields = listed[each["event"]] | {"event", "agent", "worker"}
        assert set(each) - stamped == fields - ({"stack"} if stamped.isdisjoint(each) else set())  # logfmt has it below


def test_a_backup_is_taken_as_the_page_shows(redis_server: RedisServer, tmp_path: Path) -> None:
    typed(sh("docs/operations.md", "redis-cli -u"), tmp_path, redis_cli(tmp_path, redis_server.url, drop=2))
    assert (tmp_path / "greenroom.rdb").read_bytes().startswith(b"REDIS")


def test_users_are_made_as_the_page_shows(redis_dir: Path, tmp_path: Path, director: Director) -> None:
    (tmp_path / "users.acl").touch()
    with RedisServer(redis_dir, extra=("--aclfile", str(tmp_path / "users.acl"))) as server:
        redis_cli(tmp_path, server.url, drop=2)
        env = wrapped(tmp_path, "greenroom", sys.executable, "-P", "-m", "greenroom") | {"PYTHONPATH": SOURCES}
        lines = sh("docs/operations.md", "# with REDISCLI_AUTH") + 'echo "$GREENROOM_REDIS_URL"\n'
        url = typed(lines, tmp_path, env).splitlines()[-1]
        assert url.endswith("@redis.example:6379/0")
        url = url.replace("redis.example:6379", f"127.0.0.1:{server.port}")
        with ActorSystem(director.agent(), agent="support", redis=url), Client("support", redis=url) as client:
            assert client.ask("42", "hello") == "hello"
        assert (tmp_path / "users.acl").read_text().count("user greenroom-support-") == 3


def test_what_is_kept_is_told_as_the_page_shows(
    running: Running, director: Director, client: Client, redis_url: str, agent: str, tmp_path: Path
) -> None:
    running(director.agent(max_attempts=1))
    client.send("42", "fail")
    eventually(lambda: client.overview().dead == 1, "it is a dead letter")
    lines = sh("docs/operations.md", "# what is kept").replace("{support}", f"{{{agent}}}")
    *kept, by, dead, rooms = typed(lines, tmp_path, redis_cli(tmp_path, redis_url)).splitlines()
    assert kept == ["1000", "604800", "10000", "10000", "86400", "100000", ""]
    assert [by] == [str(worker.incarnation) for worker in client.workers()]
    assert (dead, rooms) == ("1", "0")


def test_a_relay_is_listed_and_forgotten_as_the_page_shows(
    client: Client, relaying: Relaying, redis_url: str, agent: str, tmp_path: Path
) -> None:
    relaying(name="chat").stop()
    env = wrapped(tmp_path, "greenroom", sys.executable, "-P", "-m", "greenroom")
    env |= {"PYTHONPATH": SOURCES, "GREENROOM_REDIS_URL": redis_url}
    lists, forgets = sh("docs/relay.md", "greenroom relays").replace("--agent support", f"--agent {agent}").splitlines()
    header, row = typed(lists, tmp_path, env).splitlines()
    assert dict(zip(header.split("\t"), row.split("\t"), strict=True))["relay"] == "chat"
    typed(forgets.partition("#")[0] + "--yes", tmp_path, env)
    assert client.relays() == []
