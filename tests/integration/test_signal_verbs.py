"""Each verb, by every way there is to send it, does what its name says and none of what the others do."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import redis as redis_py

from greenroom import AsyncClient, Client, Kind, Mode, Receipt
from greenroom.protocol.keys import Keys
from greenroom.protocol.server import find_cli
from integration.agents import Director, Run, events, wait_event, wait_output
from integration.conftest import Running

VERBS = pytest.mark.parametrize("verb", list(Mode))


@dataclass(frozen=True)
class Senders:
    """Every way to send a signal: to one room, or (``room`` None) everywhere."""

    agent: str
    redis_url: str

    def client(self, verb: Mode, room: str | None) -> Receipt | None:
        with Client(self.agent, redis=self.redis_url) as client:
            call = getattr(client, verb)
            receipts: list[Receipt] = call(room) if room else call(everywhere=True)
            return receipts[0]

    def room_handle(self, verb: Mode, room: str | None) -> Receipt | None:
        assert room is not None
        with Client(self.agent, redis=self.redis_url) as client:
            receipt: Receipt = getattr(client.room(room), verb)()
            return receipt

    def async_client(self, verb: Mode, room: str | None) -> Receipt | None:
        async def send() -> Receipt:
            async with AsyncClient(self.agent, redis=self.redis_url) as client:
                call = getattr(client, verb)
                receipts: list[Receipt] = await (call(room) if room else call(everywhere=True))
                return receipts[0]

        return asyncio.run(send())

    def async_room_handle(self, verb: Mode, room: str | None) -> Receipt | None:
        async def send() -> Receipt:
            async with AsyncClient(self.agent, redis=self.redis_url) as client:
                receipt: Receipt = await getattr(client.room(room), verb)()  # type: ignore[arg-type]  # it names one
                return receipt

        return asyncio.run(send())

    def xadd(self, verb: Mode, room: str | None) -> Receipt | None:
        with redis_py.Redis.from_url(self.redis_url) as redis:
            redis.xadd(Keys(self.agent).control, {"mode": str(verb), **({"room": room} if room else {"everywhere": "1"})})
        return None

    def redis_cli(self, verb: Mode, room: str | None) -> Receipt | None:
        target = ["room", room] if room else ["everywhere", "1"]
        run_redis_cli(self.redis_url, "XADD", Keys(self.agent).control, "*", "mode", str(verb), *target)
        return None


ALL = pytest.mark.parametrize("way", ["client", "room_handle", "async_client", "async_room_handle", "xadd", "redis_cli"])
OF_AN_AGENT = pytest.mark.parametrize("way", ["client", "async_client", "xadd", "redis_cli"])


def run_redis_cli(url: str, *words: str) -> str:
    """What the real redis-cli prints."""
    cli = find_cli()
    if cli is None:
        pytest.skip("no redis-cli on this machine")
    return subprocess.run([cli, "-u", url, *words], check=True, capture_output=True, text=True, timeout=30).stdout.strip()


@pytest.fixture
def senders(agent: str, redis_url: str) -> Senders:
    return Senders(agent, redis_url)


@dataclass
class Scene:
    """A room in the middle of its first message, with a second one waiting."""

    director: Director
    client: Client
    redis: redis_py.Redis
    agent: str
    first: int
    second: int
    run: Run

    def outcomes(self) -> list[tuple[Kind, int, Any]]:
        return [(output.kind, output.message, output.mode or output.body) for output in self.client.outputs("1")]

    def applied(self) -> list[str]:
        """The modes of all signals that were applied to this agent."""
        return [event["mode"] for event in events(self.redis, self.agent, "signal.applied")]

    def wait_reply(self, message: int) -> None:
        wait_output(self.client, "1", lambda output: output.kind is Kind.REPLY and output.message == message)

    def pass_by(self) -> None:
        """Everything the worker was told so far has reached its rooms (unless all rooms are held)."""
        assert self.client.ask("passer-by", "hello") == "hello"


@pytest.fixture
def scene(running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str) -> Scene:
    running(director.agent())
    first, second = client.send("1", "wait"), client.send("1", "next")
    return Scene(director, client, redis, agent, first, second, director.run("1"))


def hold_of(scene: Scene, everywhere: bool) -> Mode | None:
    hold = scene.client.overview().hold if everywhere else scene.client.status("1").hold
    other = scene.client.status("1").hold if everywhere else scene.client.overview().hold
    assert other is None, "the other of room and agent is not held"
    return hold.mode if hold else None


def interrupted(scene: Scene, everywhere: bool) -> None:
    scene.run.wait_cancelled()
    scene.wait_reply(scene.second)
    assert hold_of(scene, everywhere) is None
    assert scene.outcomes() == [(Kind.ABORTED, scene.first, "interrupt"), (Kind.REPLY, scene.second, "next")]
    assert scene.director.bodies("1") == ["wait", "next"]


def stopped(scene: Scene, everywhere: bool) -> None:
    scene.run.wait_cancelled()
    wait_event(scene.redis, scene.agent, "cycle.stopped", room="1")
    if not everywhere:
        scene.pass_by()
    assert hold_of(scene, everywhere) is Mode.STOP
    assert scene.outcomes() == [(Kind.ABORTED, scene.first, "stop")]
    assert scene.client.status("1").waiting == 2, "the message is kept"
    assert scene.director.bodies("1") == ["wait"]


def paused(scene: Scene, everywhere: bool) -> None:
    scene.run.send("goes on")
    scene.run.finish("done")
    scene.wait_reply(scene.first)
    if not everywhere:
        scene.pass_by()
    assert not scene.run.cancelled.is_set()
    assert hold_of(scene, everywhere) is Mode.PAUSE
    assert scene.outcomes() == [(Kind.CHUNK, scene.first, "goes on"), (Kind.REPLY, scene.first, "done")]
    assert scene.client.status("1").waiting == 1
    assert scene.director.bodies("1") == ["wait"]


def played(scene: Scene, everywhere: bool) -> None:
    scene.run.send("goes on")
    scene.run.finish("done")
    scene.wait_reply(scene.second)
    assert not scene.run.cancelled.is_set()
    assert hold_of(scene, everywhere) is None
    assert [kind for kind, _, _ in scene.outcomes()] == [Kind.CHUNK, Kind.REPLY, Kind.REPLY]
    assert scene.director.bodies("1") == ["wait", "next"]


EFFECT: dict[Mode, Callable[[Scene, bool], None]] = {
    Mode.INTERRUPT: interrupted,
    Mode.STOP: stopped,
    Mode.PAUSE: paused,
    Mode.PLAY: played,
}


@VERBS
@ALL
def test_a_verb_does_what_it_says_to_a_running_room_and_nothing_else(
    way: str, verb: Mode, scene: Scene, senders: Senders
) -> None:
    """rows 5 and 19"""
    receipt = getattr(senders, way)(verb, "1")
    wait_event(scene.redis, scene.agent, "signal.applied", mode=str(verb))
    if receipt is not None:
        assert (receipt.mode, receipt.room, receipt.message) == (verb, "1", scene.first)
    EFFECT[verb](scene, False)
    assert scene.applied() == [verb]


@VERBS
@OF_AN_AGENT
def test_a_verb_does_what_it_says_to_a_whole_agent_and_nothing_else(
    way: str, verb: Mode, scene: Scene, senders: Senders
) -> None:
    """rows 5, 14 and 19"""
    receipt = getattr(senders, way)(verb, None)
    wait_event(scene.redis, scene.agent, "signal.applied", mode=str(verb))
    if receipt is not None:
        assert (receipt.mode, receipt.room) == (verb, None)
    EFFECT[verb](scene, True)
    assert scene.applied() == [verb]


@ALL
@pytest.mark.parametrize("hold", [Mode.STOP, Mode.PAUSE])
def test_play_ends_a_hold_by_every_way_and_a_hold_is_not_turned_into_the_other_kind(
    way: str, hold: Mode, scene: Scene, senders: Senders
) -> None:
    """row 5"""
    getattr(senders, way)(hold, "1")
    wait_event(scene.redis, scene.agent, "signal.applied", mode=str(hold))
    EFFECT[hold](scene, False)
    getattr(senders, way)(Mode.INTERRUPT, "1")
    wait_event(scene.redis, scene.agent, "signal.applied", mode="interrupt")
    assert hold_of(scene, False) is hold
    scene.pass_by()
    assert scene.director.bodies("1") == ["wait"]

    getattr(senders, way)(Mode.PLAY, "1")
    if hold is Mode.STOP:
        scene.director.run("1").finish("done")
    scene.wait_reply(scene.second)
    assert hold_of(scene, False) is None
    assert scene.applied() == [hold, Mode.INTERRUPT, Mode.PLAY]


@ALL
def test_a_pause_of_a_stopped_room_leaves_it_stopped_and_a_stop_of_a_paused_room_stops_it(
    way: str, scene: Scene, senders: Senders
) -> None:
    """row 5: a stop is the stronger of the two"""
    send = getattr(senders, way)
    send(Mode.PAUSE, "1")
    wait_event(scene.redis, scene.agent, "signal.applied", mode="pause")
    send(Mode.STOP, "1")
    wait_event(scene.redis, scene.agent, "signal.applied", mode="stop")
    stopped(scene, False)
    send(Mode.PAUSE, "1")
    wait_event(scene.redis, scene.agent, "signal.applied", mode="pause", count=2)
    assert hold_of(scene, False) is Mode.STOP


def test_what_redis_cli_writes_beside_the_mode_is_kept_as_who_and_why(scene: Scene, redis_url: str) -> None:
    """row 19"""
    control = Keys(scene.agent).control
    entry = run_redis_cli(redis_url, "XADD", control, "*", "mode", "stop", "room", "1", "by", "ops", "reason", "too loud")
    wait_event(scene.redis, scene.agent, "signal.applied", cid=entry)
    hold = scene.client.status("1").hold
    assert hold is not None
    assert (hold.mode, hold.by, hold.reason, hold.cid) == (Mode.STOP, "ops", "too loud", entry)


@pytest.mark.parametrize("form", ["{}", "{}-0"])
def test_redis_cli_can_interrupt_one_message_and_no_other(form: str, scene: Scene, redis_url: str) -> None:
    """rows 8 and 19"""
    control = Keys(scene.agent).control
    words = ("XADD", control, "*", "mode", "interrupt", "room", "1", "message")
    run_redis_cli(redis_url, *words, form.format(scene.second))
    wait_event(scene.redis, scene.agent, "signal.applied", mode="interrupt")
    scene.run.send("unharmed")
    run_redis_cli(redis_url, *words, form.format(scene.first))
    scene.run.wait_cancelled()
    scene.wait_reply(scene.second)
    assert scene.director.bodies("1") == ["wait", "next"]
