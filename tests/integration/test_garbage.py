"""Row 15: what nobody of greenroom wrote, in every place that is read, harms nothing but what it stands in itself."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgpack
import pytest
import redis as redis_py

from greenroom import Client, Kind
from greenroom.protocol.keys import Keys
from greenroom.protocol.server import RedisServer
from integration.agents import WAIT_S, Director, contents, events, eventually, wait_heard, wait_output
from integration.conftest import Running

SIGNALS, RECORDS = 3000, 7000
ROUNDS = 5  # after each of which the workers are waited for
HEALTHY = ("live", "stopped", "idle")

Write = tuple[bytes | str | int, ...]
Warnings = list[str]


@pytest.fixture
def redis_url(redis_dir: Path) -> Iterator[str]:
    """A server of the test's own: what is written here is nobody else's to find."""
    with RedisServer(redis_dir) as server:
        yield server.url


@pytest.fixture
def warnings() -> Iterator[Warnings]:
    """What the workers log about malformed signals, and of parts of theirs that fail."""
    lines: Warnings = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "signal.malformed" in record.getMessage() or "child." in record.getMessage():
                lines.append(record.getMessage())

    logger, handler = logging.getLogger("greenroom"), Collect()
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.propagate = False  # thousands of lines
    yield lines
    logger.removeHandler(handler)
    logger.propagate = propagates
    logger.setLevel(level)


class Garbage:
    """Makes writes that no greenroom makes, by one seed. Rooms of its own are called junk-…"""

    def __init__(self, keys: Keys, seed: int) -> None:
        self._keys = keys
        self._rng = random.Random(seed)
        self._rooms = 0

    def junk(self) -> bytes:
        rng = self._rng
        kinds: list[Callable[[], bytes]] = [
            lambda: rng.randbytes(rng.randrange(60)),
            lambda: rng.choice(
                [b"", b"0", b"-1", b"1e400", b"nan", b"null", b"{}", b"\x00", b"stop", b"live", b"1-0", b"9" * 400]
            ),
            lambda: rng.choice([b"[", b"{", b"(", b"\x91", b"\x81\x01", b"\xdd"]) * rng.randrange(2000),
            lambda: "größe ١٢ \u202e\u0000".encode(),
            lambda: b"cos\nsystem\n(S'touch /tmp/pickled'\ntR.",
        ]
        return rng.choice(kinds)()

    def body(self) -> bytes:
        """What is no body: broken, too deep, too large, or of a type that is none."""
        rng = self._rng
        packed: bytes = msgpack.packb({"text": "x" * 100, "list": [1, 2, 3]})
        return rng.choice(
            [
                self.junk(),
                packed[: rng.randrange(len(packed))],
                packed + b"\x00",
                b"\x91" * 33 + b"\x01",
                b"\x91" * 100_000,
                b"\xdd\xff\xff\xff\xff",
                b"\xc7\x0c\x05" + bytes(12),
                b"\x81\x91\x01\x01",
                b"",
            ]
        )

    def signal(self) -> dict[bytes, bytes]:
        """An entry of the control stream that is no signal: it has a name that none has, or a mode that is none."""
        names = [b"mode", b"room", b"everywhere", b"message", b"by", b"reason", b"upto", b"outcome", b"cid", b"\xff"]
        fields = {self._rng.choice([*names, self.junk()]): self.junk() for _ in range(self._rng.randrange(1, 7))}
        if fields.get(b"mode") in (b"stop", b"interrupt", b"pause", b"play"):
            fields[b"mode"] = b"!" + self.junk()
        return fields

    def _room(self) -> str:
        self._rooms += 1
        return f"junk-{self._rooms}"

    def record(self) -> list[Write]:
        """The writes that make one record, or one room, which no script made."""
        makers = [self._hash, self._other_type, self._ready, self._worker, self._queue, self._index, self._sent]
        return self._rng.choice(makers)()

    def _hash(self) -> list[Write]:
        """The hash of an unknown room."""
        names = [
            "phase",
            "mode",
            "mode_at",
            "owner",
            "ready",
            "processing",
            "attempt",
            "cycle",
            "retry_at",
            "seq",
            "claimed_at",
        ]
        room = self._room()
        words = [word for name in self._rng.sample(names, 4) for word in (name, self.junk())]
        return [("HSET", self._keys.room(room), *words), ("ZADD", self._keys.rooms, 1, room)]

    def _other_type(self) -> list[Write]:
        """A room that has another type of key where its hash, its queue or its state is to be, and says that it is ready."""
        room = self._room()
        key = self._rng.choice([self._keys.room, self._keys.messages, self._keys.state])(room)
        wrong: Write = self._rng.choice([("SET", key, self.junk()), ("RPUSH", key, self.junk()), ("SADD", key, self.junk())])
        named: list[Write] = [("ZADD", self._keys.rooms, 1, room), ("SADD", self._keys.held, room)]
        return [wrong, *named, ("XADD", self._keys.ready, "*", "room", room)]

    def _ready(self) -> list[Write]:
        """An entry of the ready stream of an unknown room, of several, or of none."""
        words: Write = self._rng.choice(
            [("room", self.junk()), ("rooms", self.junk()), (self.junk(), self.junk()), ("room", "a", "room", "b")]
        )
        return [("XADD", self._keys.ready, "*", *words)]

    def _worker(self) -> list[Write]:
        """A worker that is none, with or without a heartbeat."""
        name = self._rng.choice([self.junk(), b"junk-%d" % self._rng.randrange(100)])
        key = self._keys.worker("").encode() + name
        beats: list[Write] = [("SET", key, self.junk()), ("HSET", key, "incarnation", self.junk(), "beat", self.junk())]
        return [("SADD", self._keys.workers, name), ("DEL", key), self._rng.choice(beats)]

    def _queue(self) -> list[Write]:
        """A room with a message that nobody can read, ready to be run."""
        room, rng = self._room(), self._rng
        good: dict[str, bytes | str] = {"v": "1", "at": "2026-01-02T03:04:05.000Z", "body": msgpack.packb("hello")}
        change: dict[str, Callable[[], Any]] = {
            "body": self.body,
            "at": self.junk,
            "v": lambda: rng.choice([b"2", b"1.5", b"-", b"9" * 30, self.junk() + b"x"]),
        }
        name = rng.choice(list(change))
        if rng.random() < 0.3:
            del good[name]
        else:
            good[name] = change[name]()
        if name == "v" and "v" not in good:
            good["body"] = self.body()
        if rng.random() < 0.2:
            good |= {"room": "live", "error": self.junk(), "attempts": self.junk()}
        words: list[bytes | str] = [word for item in good.items() for word in item]
        # Its hash names its entry in the ready stream: it is a room like any other, but for its message.
        script = "redis.call('HSET', KEYS[1], 'phase', 'queued', 'ready', redis.call('XADD', KEYS[2], '*', 'room', ARGV[1]))"
        begin: Write = ("EVAL", script, 2, self._keys.room(room), self._keys.ready, room)
        return [("XADD", self._keys.messages(room), "*", *words), ("ZADD", self._keys.rooms, 1, room), begin]

    def _index(self) -> list[Write]:
        """A member of a set or an index that names no room."""
        name = self.junk()
        return [
            self._rng.choice(
                [("ZADD", self._keys.rooms, 1, name), ("ZADD", self._keys.processing, 1, name), ("SADD", self._keys.held, name)]
            )
        ]

    def _sent(self) -> list[Write]:
        """Something in an outbox or among the dead letters that is neither."""
        words = [word for name in ("kind", "message", "ticket", "seq", "body") for word in (name, self.junk())]
        return [("XADD", self._rng.choice([self._keys.dead, self._keys.outbox(self._room())]), "*", *words)]


def written(redis: redis_py.Redis, writes: list[Write]) -> list[Any]:
    """The answers to all of them, which are sent together."""
    answers: list[Any] = []
    for start in range(0, len(writes), 1000):
        with redis.pipeline(transaction=False) as pipeline:
            for words in writes[start : start + 1000]:
                pipeline.execute_command(*words)  # type: ignore[no-untyped-call]
            answers += pipeline.execute(raise_on_error=False)
    return answers


def healthy(redis: redis_py.Redis, keys: Keys) -> dict[bytes, Any]:
    """All that Redis holds of the healthy rooms, and the agent's own mode."""
    pattern = {room: keys.room(room) + "*" for room in HEALTHY}
    names: list[Any] = [key for room in HEALTHY for key in redis.scan_iter(pattern[room], count=10_000)]
    found = contents(redis, names)
    found[b"mode"] = redis.hmget(keys.root, "mode", "instance", "version")
    return found


class Scene:
    """Two workers, and three healthy rooms: one in the middle of a message, one that is stopped, one that is idle."""

    def __init__(self, running: Running, director: Director, client: Client) -> None:
        agent_class = director.agent(max_attempts=2, abort_timeout=timedelta(seconds=1))
        self.systems = [running(agent_class) for _ in range(2)]
        self.client, self.director = client, director
        client.stop("stopped")
        client.send("stopped", "kept")
        assert client.ask("idle", "hello") == "hello"
        client.send("live", "wait")
        client.send("live", "next")
        self.run = director.run("live")
        self.run.send("before")

    def still_works(self) -> None:
        """Nothing has happened to the healthy rooms, and signals and messages reach them as ever."""
        client, run = self.client, self.run
        run.send("after")
        assert not run.cancelled.is_set()
        assert client.status("live").ticket == run.ticket
        assert client.ask("idle", "hello again", timeout=WAIT_S) == "hello again"
        client.stop(everywhere=True)
        run.wait_cancelled()
        client.play(everywhere=True)
        self.director.run("live")  # it is replayed: an interrupt before the stop was through would do nothing
        client.interrupt("live")
        wait_output(client, "live", lambda output: output.kind is Kind.REPLY and output.body == "next")
        assert client.status("stopped").waiting == 1
        client.play("stopped")
        wait_output(client, "stopped", lambda output: output.kind is Kind.REPLY and output.body == "kept")


@pytest.fixture
def scene(running: Running, director: Director, client: Client) -> Scene:
    return Scene(running, director, client)


def wait_dispatched(raw: redis_py.Redis, keys: Keys) -> None:
    """Wait until the workers have been handed all that is ready."""

    def place(entry: bytes) -> tuple[int, ...]:
        return tuple(map(int, entry.split(b"-")))

    def all_handed_over() -> bool:
        groups: Any = raw.xinfo_groups(keys.ready)
        last: Any = raw.xrevrange(keys.ready, count=1)
        return not last or place(last[0][0]) <= place(groups[0]["last-delivered-id"])

    eventually(all_handed_over, "all entries of the ready stream are handed over")


def one_round(garbage: Garbage, keys: Keys) -> tuple[list[Write], list[bool]]:
    """Writes of signals among those of records, each kind in its own order, and which of them are signals."""
    signals: list[Write] = []
    for _ in range(SIGNALS // ROUNDS):
        signals.append(("XADD", keys.control, "*", *(word for item in garbage.signal().items() for word in item)))
    records = [words for _ in range(RECORDS // ROUNDS) for words in garbage.record()]
    place = [(n / len(signals), words, True) for n, words in enumerate(signals)]
    place += [(n / len(records), words, False) for n, words in enumerate(records)]
    place.sort(key=lambda row: row[0])
    return [words for _, words, _ in place], [is_signal for _, _, is_signal in place]


def test_ten_thousand_malformed_signals_and_records_harm_no_room_and_end_no_loop(
    scene: Scene, client: Client, redis_url: str, keys: Keys, agent: str, warnings: Warnings
) -> None:
    """row 15"""
    garbage = Garbage(keys, seed=15)
    large = b"x" * 1024 * 1024
    huge: list[dict[Any, Any]] = [{"mode": large}, {large: "1"}, {"mode": "stop", "room": large}, {"mode": "stop", "x": large}]
    with redis_py.Redis.from_url(redis_url) as raw, redis_py.Redis.from_url(redis_url, decode_responses=True) as redis:
        before = healthy(raw, keys)
        ids = [bytes(raw.xadd(keys.control, fields)).decode() for fields in huge]
        for _ in range(ROUNDS):
            writes, is_signal = one_round(garbage, keys)
            ids += [answer.decode() for answer, signal in zip(written(raw, writes), is_signal, strict=True) if signal]
            for system in scene.systems:
                wait_heard(system)
            wait_dispatched(raw, keys)
            assert healthy(raw, keys) == before
        told = [event["entry"] for event in events(redis, agent, "signal.malformed")]
        assert told == ids
        assert not [line for line in warnings if "signal.malformed" not in line]
        assert len(warnings) == len(ids)
        scene.still_works()
        assert all(system.ready and not system.wait(0) for system in scene.systems)
        assert any("greenroom did not write" in (status.last_error or "") for status in client.rooms())
        letters = list(client.dead_letters())
        assert len(letters) > RECORDS / 20
        assert {letter.room.partition("-")[0] for letter in letters} == {"junk"}
