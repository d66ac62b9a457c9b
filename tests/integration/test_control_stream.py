"""What people write into the control stream by hand: good signals are applied, and anything else does no harm."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest
import redis as redis_py

from greenroom import Client, Kind, Mode
from greenroom.protocol.keys import Keys
from integration.agents import Director, Run, contents, events, eventually, wait_event, wait_heard, wait_output
from integration.conftest import Running

Fields = dict[bytes, bytes]

MEGABYTE = b"x" * 1024 * 1024
DEEP = b"[" * 100_000
BINARY = bytes(range(256))

MALFORMED: dict[str, Fields] = {
    "no mode": {b"room": b"1"},
    "nothing that is known": {b"hello": b"world"},
    "empty names and values": {b"": b""},
    "unknown mode": {b"mode": b"explode", b"room": b"1"},
    "empty mode": {b"mode": b"", b"room": b"1"},
    "mode in capitals": {b"mode": b"STOP", b"room": b"1"},
    "mode with a space": {b"mode": b"stop ", b"room": b"1"},
    "binary mode": {b"mode": BINARY, b"room": b"1"},
    "mode with a null": {b"mode": b"stop\0", b"room": b"1"},
    "no room": {b"mode": b"stop"},
    "empty room": {b"mode": b"stop", b"room": b""},
    "room with a space": {b"mode": b"stop", b"room": b"1 2"},
    "room with a new line": {b"mode": b"stop", b"room": b"1\n"},
    "room that is too long": {b"mode": b"stop", b"room": b"1" * 257},
    "room that is not UTF-8": {b"mode": b"stop", b"room": b"\xff\xfe"},
    "room and everywhere": {b"mode": b"stop", b"room": b"1", b"everywhere": b"1"},
    "everywhere that says no": {b"mode": b"stop", b"everywhere": b"0"},
    "everywhere that says nothing": {b"mode": b"stop", b"everywhere": b""},
    "unknown field": {b"mode": b"stop", b"room": b"1", b"rooms": b"1"},
    "field of a script": {b"mode": b"stop", b"room": b"1", b"upto": b"1"},
    "cid of one's own": {b"mode": b"stop", b"room": b"1", b"cid": b"mine"},
    "script's entry with a clock that is none": {b"mode": b"stop", b"room": b"1", b"upto": b"soon", b"outcome": b"applied"},
    "script's entry with an unknown mode": {b"mode": b"explode", b"room": b"1", b"upto": b"1", b"outcome": b"applied"},
    "script's entry with binary in it": {b"mode": BINARY, b"room": BINARY, b"upto": BINARY, b"outcome": b"applied"},
    "message on a stop": {b"mode": b"stop", b"room": b"1", b"message": b"1"},
    "message everywhere": {b"mode": b"interrupt", b"everywhere": b"1", b"message": b"1"},
    "message that is no number": {b"mode": b"interrupt", b"room": b"1", b"message": b"first"},
    "message below zero": {b"mode": b"interrupt", b"room": b"1", b"message": b"-1"},
    "message in other digits": {b"mode": b"interrupt", b"room": b"1", b"message": "١٢".encode()},
    "message of many digits": {b"mode": b"interrupt", b"room": b"1", b"message": b"1" * 5000},
    "a megabyte in the mode": {b"mode": MEGABYTE, b"room": b"1"},
    "a megabyte in the room": {b"mode": b"stop", b"room": MEGABYTE},
    "a megabyte in the reason": {b"mode": b"stop", b"room": b"1", b"reason": MEGABYTE},
    "a megabyte for a name": {MEGABYTE: b"1"},
    "ten thousand fields": {f"field {n}".encode(): b"1" for n in range(10_000)},
    "deep nesting": {b"mode": b"stop", b"room": DEEP},
    "deep nesting in an unknown field": {b"mode": b"stop", b"room": b"1", b"json": b'{"a":' * 20_000},
    "all of msgpack's types": {b"mode": b"\x81\xa4mode\xa4stop", b"room": b"\x01"},
    "a pickle": {b"mode": b"stop", b"room": b"1", b"pickle": b"cos\nsystem\n(S'true'\ntR."},
    "binary names": {BINARY: BINARY, b"\xff": b"\xff"},
}


def snapshot(redis_url: str, keys: Keys) -> dict[bytes, Any]:
    """All that Redis holds for the agent, but what is written about signals, and the leases of workers."""
    with redis_py.Redis.from_url(redis_url) as raw:
        apart = {keys.control.encode(), keys.events.encode()}
        names = [name for name in raw.scan_iter(f"{keys.root}*", count=1000) if name not in apart]
        found = contents(raw, [name for name in names if b":worker" not in name])
        found[keys.root.encode()] = {
            field: value for field, value in raw.hgetall(keys.root).items() if field != b"control_cursor"
        }
        return found


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The lines that were logged about malformed signals."""
    lines: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == logging.WARNING and "signal.malformed" in record.getMessage():
                lines.append(record.getMessage())

    handler = Collect()
    logger = logging.getLogger("greenroom")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


class Scene:
    """Two workers that read, a room in the middle of a message, one that is stopped and one that is idle."""

    def __init__(
        self, running: Running, director: Director, client: Client, redis: redis_py.Redis, redis_url: str, keys: Keys
    ) -> None:
        self.systems = [running(director.agent()) for _ in range(2)]
        self.director, self.client, self.redis, self.redis_url, self.keys = director, client, redis, redis_url, keys
        client.stop("stopped")
        client.send("stopped", "hello")
        client.send("1", "wait")
        client.send("1", "next")
        self.run: Run = director.run("1")
        assert client.ask("idle", "hello") == "hello"

    def write(self, fields: Fields) -> str:
        entry: Any = self.redis.xadd(self.keys.control, fields)  # type: ignore[arg-type]  # its dict is invariant
        return str(entry)

    def all_heard(self) -> None:
        for system in self.systems:
            wait_heard(system)

    def told_once(self, entries: list[str], warnings: list[str]) -> None:
        """One event and one warning for each entry, whoever of the workers read it first."""
        told = [event["entry"] for event in events(self.redis, self.keys.agent, "signal.malformed")]
        assert told == entries
        assert len(warnings) == len(entries)
        for entry in entries:
            assert sum(f"entry={entry} " in line for line in warnings) == 1
        assert max(len(line) for line in warnings) < 1000

    def still_works(self) -> None:
        """Nothing happened to the cycle, and both listeners apply and hear what comes next."""
        self.run.send("unharmed")
        assert not self.run.cancelled.is_set()
        self.write({b"mode": b"interrupt", b"room": b"1"})
        self.run.wait_cancelled()
        wait_output(self.client, "1", lambda output: output.kind is Kind.REPLY and output.body == "next")
        self.write({b"mode": b"play", b"room": b"stopped"})
        wait_output(self.client, "stopped", lambda output: output.kind is Kind.REPLY)
        self.all_heard()
        assert self.director.bodies("1") == ["wait", "next"]


@pytest.fixture
def scene(running: Running, director: Director, client: Client, redis: redis_py.Redis, redis_url: str, keys: Keys) -> Scene:
    return Scene(running, director, client, redis, redis_url, keys)


@pytest.mark.parametrize("fields", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_entry_changes_nothing_and_leaves_one_event_and_one_warning(
    fields: Fields, scene: Scene, warnings: list[str]
) -> None:
    """row 15"""
    before = snapshot(scene.redis_url, scene.keys)
    entry = scene.write(fields)
    scene.all_heard()
    assert snapshot(scene.redis_url, scene.keys) == before
    scene.told_once([entry], warnings)
    scene.still_works()


def generated(rng: random.Random) -> Fields:
    """An entry of a few fields that is no signal: it has a name that none has, or a mode that is none."""
    names = [b"mode", b"room", b"everywhere", b"message", b"by", b"reason", b"upto", b"outcome", b"cid", b"\xff", b"rooms"]
    values = [b"stop", b"interrupt", b"1", b"", b"0", b"-1", b"1-0", b"applied", b"yes", b"\x00", b"{}", b"null", b"nan"]

    def junk() -> bytes:
        return rng.choice([rng.randbytes(rng.randrange(40)), rng.choice(values), b"(" * rng.randrange(5000)])

    fields = {rng.choice([*names, junk()]): junk() for _ in range(rng.randrange(1, 8))}
    if fields.get(b"mode") in (b"stop", b"interrupt", b"pause", b"play"):
        fields[b"mode"] = b"!" + junk()
    return fields


@pytest.mark.parametrize("seed", range(2))
def test_hundreds_of_generated_entries_change_nothing_and_leave_one_event_and_one_warning_each(
    seed: int, scene: Scene, warnings: list[str]
) -> None:
    """row 15"""
    rng = random.Random(seed)
    before = snapshot(scene.redis_url, scene.keys)
    entries = [scene.write(generated(rng)) for _ in range(300)]
    scene.all_heard()
    assert snapshot(scene.redis_url, scene.keys) == before
    scene.told_once(entries, warnings)
    scene.still_works()


def test_good_signals_among_garbage_are_applied_in_their_order(scene: Scene, warnings: list[str]) -> None:
    """rows 15 and 9"""
    good = [b"stop", b"play", b"pause", b"stop", b"interrupt", b"play", b"stop", b"play", b"pause"]
    entries = []
    for n, mode in enumerate(good):
        entries.append(scene.write(list(MALFORMED.values())[n * 4]))
        scene.write({b"mode": mode, b"room": b"2"})
        entries.append(scene.write({b"mode": mode + b"!", b"room": b"2"}))
    scene.all_heard()
    scene.told_once(entries, warnings)
    applied = [event["mode"] for event in events(scene.redis, scene.keys.agent, "signal.applied", rooms="2")]
    assert applied == [mode.decode() for mode in good]
    hold = scene.client.status("2").hold
    assert hold is not None
    assert hold.mode is Mode.PAUSE
    scene.still_works()


def test_garbage_that_was_written_while_no_worker_ran_is_told_once_by_those_that_start(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys, warnings: list[str]
) -> None:
    """rows 15 and 16: and a stop among it holds"""
    entries = [str(redis.xadd(keys.control, {"mode": "explode", "room": "1"})) for _ in range(150)]
    redis.xadd(keys.control, {"mode": "stop", "room": "1"})
    client.send("1", "hello")
    systems = [running(director.agent()) for _ in range(2)]
    for system in systems:
        wait_heard(system)
    told = [event["entry"] for event in events(redis, keys.agent, "signal.malformed")]
    assert told == entries
    assert len(warnings) == 150
    wait_event(redis, keys.agent, "signal.applied", mode="stop")
    hold = client.status("1").hold
    assert hold is not None
    assert hold.mode is Mode.STOP


@pytest.mark.parametrize("upto", ["0", "999999999", "-5"])
@pytest.mark.parametrize("mode", ["stop", "interrupt", "pause", "play"])
def test_an_entry_that_looks_like_a_script_s_own_changes_no_state_and_its_message_is_answered(
    mode: str, upto: str, scene: Scene
) -> None:
    """row 15: whoever forges one can at the most have a cycle begin anew"""
    names = {b"mode": mode.encode(), b"room": b"1", b"cid": b"x", b"upto": upto.encode(), b"outcome": b"applied"}
    scene.write(names)
    scene.all_heard()
    client = scene.client
    assert client.status("1").hold is None
    run = scene.run
    if run.cycle.cancelled or client.status("1").ticket != run.ticket:
        run = scene.director.run("1")
        assert run.attempt == 1
    run.finish("done")
    wait_output(client, "1", lambda output: output.kind is Kind.REPLY and output.body == "next")
    replies = [output.body for output in client.outputs("1") if output.kind is Kind.REPLY]
    assert replies == ["done", "next"]


def test_a_listener_goes_on_where_it_was_when_its_connections_are_killed_again_and_again(scene: Scene) -> None:
    """row 15: with signals written all the while, none is lost and none applied twice"""
    for n in range(20):
        scene.write({b"mode": (b"stop", b"play")[n % 2], b"room": b"2"})
        scene.redis.client_kill_filter(_type="normal", skipme=True)
    wait_event(scene.redis, scene.keys.agent, "signal.applied", rooms="2", count=20)
    scene.all_heard()
    applied = [event["mode"] for event in events(scene.redis, scene.keys.agent, "signal.applied", rooms="2")]
    assert applied == ["stop", "play"] * 10
    eventually(lambda: scene.client.status("1").ticket == scene.run.ticket, "the cycle is still the live one")
    scene.still_works()
