"""docs/pictures.md: each picture can be drawn, and what it shows is so."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from datetime import timedelta

import pykka
import pytest
import redis as redis_py

from greenroom import ActorSystem, Backoff, Client, Kind, Mode, Output, Phase
from greenroom.protocol.keys import Keys
from greenroom.protocol.scripts import scripts
from integration.agents import Director, eventually, live_run
from integration.conftest import Running
from pages import PAGES, ROOT, Block, blocks

PAGE = "docs/pictures.md"
HOUR = timedelta(hours=1)
NAME, TEXT, LABEL = r"\w+", r'[^"\[\]{}|;#]+', r'"[^"]+"'
# Every line of a picture is one of these: the part of Mermaid that this project uses.
STATEMENTS = {
    "flowchart TB": (
        rf"subgraph {NAME}\[{LABEL}\]|end",
        rf"(?:{NAME}(?:\[{LABEL}\]|\[\({LABEL}\)\])?)(?: -->(?:\|{LABEL}\|)? (?:{NAME}(?:\[{LABEL}\]|\[\({LABEL}\)\])?))?",
    ),
    "stateDiagram-v2": (rf"(?:{NAME}|\[\*\]) --> (?:{NAME}|\[\*\])(?:: {TEXT})?",),
    "sequenceDiagram": (rf"participant {NAME}", rf"{NAME}--?>>{NAME}: {TEXT}", rf"Note over {NAME}: {TEXT}"),
}


def pictures() -> list[Block]:
    return [picture for page in PAGES for picture in blocks(str(page.relative_to(ROOT)), "mermaid")]


@pytest.mark.parametrize("picture", pictures(), ids=lambda picture: picture.first.split()[0])
def test_each_picture_is_of_a_kind_and_each_of_its_lines_a_statement(picture: Block) -> None:
    assert picture.first in STATEMENTS
    lines = [line.strip() for line in picture.text.splitlines()[1:]]
    for line in lines:
        assert any(re.fullmatch(form, line) for form in STATEMENTS[picture.first]), line
    assert sum(line.startswith("subgraph") for line in lines) == lines.count("end")
    if picture.first == "sequenceDiagram":
        said = {name for line in lines for name in re.findall(r"^(\w+)--?>>(\w+)", line) for name in name}
        assert said == {line.removeprefix("participant ") for line in lines if line.startswith("participant")}


def arrows(picture: Block) -> dict[tuple[str, str], set[str]]:
    """The arrows of a diagram of states, each with what makes it."""
    found: dict[tuple[str, str], set[str]] = {}
    for start, end, why in re.findall(r"^ +(\S+) --> ([^\s:]+)(?:: (.+))?$", picture.text, re.MULTILINE):
        found.setdefault((start, end), set()).update(filter(None, why.split(", ")))
    return found


def states(picture: Block) -> set[str]:
    return {state for arrow in arrows(picture) for state in arrow} - {"[*]"}


def room_and_message() -> tuple[Block, Block]:
    room, message = [each for each in blocks(PAGE, "mermaid") if each.first == "stateDiagram-v2"]
    return room, message


def test_a_room_has_the_phases_that_there_are() -> None:
    assert states(room_and_message()[0]) == set(Phase)


def test_a_message_ends_with_the_outputs_that_are_final() -> None:
    picture = room_and_message()[1]
    finals = {kind for kind in Kind if Output(id="1-0", kind=kind, message=1, ticket=1, seq=1, mode=Mode.INTERRUPT).final}
    assert {start for start, end in arrows(picture) if end == "[*]"} == set(finals)
    assert states(picture) == set(finals) | {"waiting", "processing"}


@pytest.mark.parametrize("picture", [each for each in pictures() if each.first == "sequenceDiagram"])
def test_what_is_said_to_redis_are_scripts(picture: Block) -> None:
    asked = re.findall(r"->>Redis: (\w+)", picture.text)
    assert asked
    assert set(asked) <= set(scripts())


class Watched:
    """Rooms whose changes of phase are noted, each with what has made it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.seen: dict[tuple[str, str], set[str]] = {}

    def phase(self, room: str) -> str:
        return self._client.status(room).phase or "[*]"

    def change(self, room: str, why: str, then: str, act: Callable[[], object]) -> None:
        before = self.phase(room)
        act()
        eventually(lambda: self.phase(room) == then, f"{room} is {then} after {why}")
        self.seen.setdefault((before, then), set()).add(why)


@pytest.fixture
def watched(client: Client) -> Watched:
    return Watched(client)


def test_each_arrow_of_a_rooms_life_is_there_and_no_other(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys, watched: Watched
) -> None:
    agent = director.agent(max_attempts=2, retry=Backoff(first=HOUR, most=HOUR))
    without_a_worker(client, watched)
    systems: list[ActorSystem] = []
    watched.change("a", "claim", "processing", lambda: systems.append(running(agent)))
    with_a_worker(director, client, watched)
    change = watched.change
    client.send("h", "wait")
    change("h", "fail", "backoff", director.run("h").fail)
    client.send("i", "wait")
    director.run("i")
    change("i", "shutdown", "queued", lambda: systems[0].stop(timedelta(0)))
    redis.hset(keys.room("h"), "retry_at", "2020-01-01T00:00:00.000Z")  # an hour later
    change("h", "retry", "processing", lambda: running(agent))
    change("h", "dead", "[*]", live_run(director, client, "h").fail)
    assert watched.seen == arrows(room_and_message()[0])


def without_a_worker(client: Client, watched: Watched) -> None:
    change = watched.change
    change("a", "send", "queued", lambda: client.send("a", "wait"))
    message = client.send("b", "wait")
    change("b", "stop", "held", lambda: client.stop("b"))
    change("b", "play", "queued", lambda: client.play("b"))
    change("b", "pause", "held", lambda: client.pause("b"))
    change("b", "discard", "[*]", lambda: client.discard("b", message))
    change("b", "send to a held room", "held", lambda: client.send("b", "wait"))
    message = client.send("c", "wait")
    change("c", "discard", "[*]", lambda: client.discard("c", message))


def with_a_worker(director: Director, client: Client, watched: Watched) -> None:
    change = watched.change
    first = director.run("a")
    client.send("a", "wait")
    change("a", "commit with more to do", "processing", first.finish)
    change("a", "commit", "[*]", director.run("a").finish)
    client.send("d", "wait")
    client.send("d", "wait")
    director.run("d")
    change("d", "stop", "held", lambda: client.stop("d"))
    client.play("d")
    again = director.run("d")

    def pause() -> None:
        client.pause("d")
        again.finish()

    change("d", "pause", "held", pause)
    client.send("e", "wait")
    director.run("e")
    change("e", "interrupt", "[*]", lambda: client.interrupt("e"))
    client.send("f", "wait")
    change("f", "fail", "backoff", director.run("f").fail)
    change("f", "stop", "held", lambda: client.stop("f"))
    change("f", "play", "backoff", lambda: client.play("f"))
    change("f", "pause", "held", lambda: client.pause("f"))
    client.play("f")
    change("f", "interrupt", "[*]", lambda: client.interrupt("f"))
    message = client.send("g", "wait")
    change("g", "fail", "backoff", director.run("g").fail)
    change("g", "discard", "[*]", lambda: client.discard("g", message))


def test_the_house_has_the_threads_and_actors_that_are_drawn(running: Running, director: Director, client: Client) -> None:
    running(director.agent())
    client.send("1", "wait")
    director.run("1")
    [house] = [picture for picture in pictures() if picture.first.startswith("flowchart")]
    drawn = set(re.findall(r"thread (greenroom-\w+)", house.text))
    assert drawn == {"greenroom-control", "greenroom-user"} <= {thread.name for thread in threading.enumerate()}
    actors = {ref.actor_class.__name__ for ref in pykka.ActorRegistry.get_all()}
    named = set(re.findall(r'\["([A-Z]\w+)"\]', house.text)) | {"Room"}
    assert len(named) == 6
    assert named <= actors
    asked = re.search(r'room -->\|"([^"]+)"\| redis', house.text)
    assert asked
    assert set(asked[1].split(", ")) <= set(scripts())
