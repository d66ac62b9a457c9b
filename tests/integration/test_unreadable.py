"""Records that greenroom did not write: what becomes of each, one by one. Row 15's thousands are in test_garbage."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgpack
import pytest
import redis as redis_py

from greenroom import ActorSystem, Client, Conflict, Kind, NewerVersion, NotFound, Outcome, RedisRefused, Retention
from greenroom.protocol.connect import connect
from greenroom.protocol.keys import Keys
from greenroom.protocol.server import RedisServer
from greenroom.protocol.store import Backlog, Store
from greenroom.supervisors import housekeeper
from integration.agents import Director, events, eventually, wait_event, wait_logged, wait_output
from integration.agents import run as run_on_loop
from integration.conftest import Running

AT = "2026-01-02T03:04:05.000Z"
HELLO = msgpack.packb("hello")
READY = "redis.call('HSET', KEYS[1], 'phase', 'queued', 'ready', redis.call('XADD', KEYS[2], '*', 'room', ARGV[1]))"


def begin(redis: redis_py.Redis, keys: Keys, room: str, fields: dict[str, Any]) -> None:
    """Put a message into a room's queue, as no client does, and make the room ready."""
    redis.xadd(keys.messages(room), fields)  # type: ignore[arg-type]  # its dict is invariant
    redis.eval(READY, 2, keys.room(room), keys.ready, room)


# Messages. ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"v": "1", "at": AT}, "no body"),
        ({"v": "1", "body": HELLO}, "no at"),
        ({"v": "one", "at": AT, "body": HELLO}, "version is no number"),
        ({"v": "1", "at": "yesterday", "body": HELLO}, "isoformat"),
        ({"v": "1", "at": AT, "body": b"\xc1"}, "not msgpack"),
        ({"v": "1", "at": AT, "body": b""}, "not msgpack"),
        ({"v": "1", "at": AT, "body": b"\x91" * 40 + b"\x01"}, "deeper than 32"),
        ({"v": "1", "at": AT, "body": b"\x91" * 100_000}, "not msgpack"),
        ({"v": "1", "at": AT, "body": msgpack.packb("x" * 1024 * 1024)}, "more than the limit"),
    ],
)
def test_a_message_that_nobody_can_read_is_a_dead_letter_that_says_why_and_the_room_goes_on(
    fields: dict[str, Any], words: str, running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """row 15: at once, as no further try would help"""
    running(director.agent())
    begin(redis, keys, "42", fields)
    wait_output(client, "42", lambda output: output.kind is Kind.DEAD)
    assert client.ask("42", "next") == "next"
    [letter] = client.dead_letters()
    assert (letter.room, letter.attempts) == ("42", 1)
    assert words in letter.error
    assert director.bodies("42") == ["next"]


def test_a_message_of_an_older_greenroom_is_read(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """row 50: one without a version"""
    running(director.agent())
    begin(redis, keys, "42", {"at": AT, "body": HELLO})
    wait_output(client, "42", lambda output: output.kind is Kind.REPLY and output.body == "hello")


def test_a_dead_letter_that_nobody_can_read_is_listed_with_its_bytes_and_can_be_requeued(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """row 15"""
    running(director.agent())
    begin(redis, keys, "42", {"v": "1", "at": AT, "body": b"\xc1garbage"})
    wait_output(client, "42", lambda output: output.kind is Kind.DEAD)
    [letter] = client.dead_letters()
    assert letter.body == b"\xc1garbage"
    assert client.requeue(letter.id)[0] == "42"
    wait_event(redis, keys.agent, "message.dead", count=2)


def test_a_message_cannot_say_of_itself_what_its_dead_letter_says(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """row 15: nor be put back into another room; and it may have more fields than Redis takes"""
    running(director.agent())
    forged = {"room": "other", "error": "all is well", "attempts": "0", "message": "1-0"}
    begin(redis, keys, "42", {"v": "1", **forged, "at": AT, "body": b"\xc1"})
    begin(redis, keys, "43", {"v": "1", "at": AT, "body": b"\xc1", **{f"field {n}": "x" for n in range(10_000)}})
    for room in ("42", "43"):
        wait_output(client, room, lambda output: output.kind is Kind.DEAD)
    first, second = sorted(client.dead_letters(), key=lambda letter: letter.room)
    assert (first.room, second.room) == ("42", "43")
    assert "not msgpack" in first.error
    assert client.requeue(first.id)[0] == "42"


def test_a_dead_letter_without_a_room_is_passed_over_and_not_requeued(
    client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    letter: Any = redis.xadd(keys.dead, {"what": "ever"})
    assert list(client.dead_letters()) == []
    with pytest.raises(NotFound):
        client.requeue(letter)


# State, outbox, hashes. -----------------------------------------------------------------------------


@pytest.mark.parametrize("state", [b"\xc1", b"", b"\x01", msgpack.packb([1, {"a": [[[[1]]]]}])[:-1], b"\x91" * 50_000])
def test_a_state_that_nobody_can_read_fails_its_messages_and_no_other_room(
    state: bytes, running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """row 15"""
    running(director.agent(max_attempts=1))
    redis.set(keys.state("42"), state)
    client.send("42", "hello")
    assert client.ask("43", "hello") == "hello"
    dead = wait_output(client, "42", lambda output: output.kind is Kind.DEAD)
    assert "the stored state is not what greenroom writes" in str(dead.error)
    assert director.count("42") == 0
    redis.delete(keys.state("42"))
    assert client.ask("42", "again") == "again"


def test_readers_pass_over_what_is_no_output(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """row 15: also one who waits for a reply"""
    running(director.agent())
    client.send("42", "wait")
    run = director.run("42")
    for fields in ({"what": "ever"}, {"kind": "shout", "message": "1-0"}, {"kind": "reply", "message": "x", "body": b"\xc1"}):
        redis.xadd(keys.outbox("42"), fields)  # type: ignore[arg-type]  # its dict is invariant
    run.finish("done")
    wait_output(client, "42", lambda output: output.body == "done")
    assert client.ask("42", "hello") == "hello"
    assert [output.body for output in client.outputs("42")] == ["done", "hello"]


def test_a_room_whose_hash_greenroom_did_not_write_is_listed_as_that_and_refused_by_itself(
    client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """row 15"""
    client.send("good", "hello")
    redis.hset(keys.room("hash"), mapping={"phase": "dancing", "attempt": "many"})
    redis.hset(keys.room("mode"), mapping={"mode": "explode"})
    redis.hset(keys.room("id"), mapping={"processing": "now"})
    redis.set(keys.room("text"), "x")
    bad = ("hash", "mode", "id", "text")
    redis.zadd(keys.rooms, dict.fromkeys(bad, 1))
    listed = {status.room: status for status in client.rooms()}
    assert listed["good"].waiting == 1
    assert all(listed[room].last_error for room in bad)
    for room in bad:
        with pytest.raises(RedisRefused):
            client.status(room)


def test_an_agent_whose_mode_is_none_is_refused_with_a_clear_error(client: Client, redis: redis_py.Redis, keys: Keys) -> None:
    """row 15: and a signal sets it right"""
    redis.hset(keys.root, "mode", "explode")
    with pytest.raises(RedisRefused, match="mode"):
        client.overview()
    client.stop(everywhere=True)
    client.play(everywhere=True)
    assert client.overview().hold is None


# Signals. -------------------------------------------------------------------------------------------


def poison(redis: redis_py.Redis, keys: Keys, room: str) -> None:
    """A room that no script can do anything with, which is ready and held."""
    redis.set(keys.room(room), "no hash")
    redis.xadd(keys.ready, {"room": room})
    redis.sadd(keys.held, room)


def test_what_is_refused_for_a_broken_room_has_changed_nothing(client: Client, redis: redis_py.Redis, keys: Keys) -> None:
    died: dict[Any, Any] = {"attempts": 1, "error": "e", "died_at": "2026-01-01T00:00:00.000Z"}
    redis.xadd(keys.dead, {"room": "bad", "message": "1-0", **died, "body": b"\xa1x"})
    [dead] = client.dead_letters()
    redis.set(keys.room("bad"), "no hash")
    waiting = client.send("good", 1)
    for refused in (
        lambda: client.send("bad", 1),
        lambda: client.requeue(dead.id),
        lambda: client.stop("good", "bad", cid="mine"),
    ):
        with pytest.raises(RedisRefused, match="not of the type"):
            refused()
    assert redis.xlen(keys.messages("bad")) == 0
    assert client.status("good").hold is None
    redis.delete(keys.room("bad"))
    room, message = client.requeue(dead.id)
    assert room == "bad"
    assert message > waiting
    assert [receipt.outcome for receipt in client.stop("good", "bad", cid="mine")] == [Outcome.APPLIED] * 2


@pytest.mark.parametrize("by_hand", [False, True], ids=["client", "redis-cli"])
def test_a_signal_to_all_reaches_every_room_beside_one_that_is_broken(
    by_hand: bool, running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """rows 14 and 15"""

    def signal(mode: str) -> None:
        if by_hand:
            redis.xadd(keys.control, {"mode": mode, "everywhere": "1"})
        else:
            {"stop": client.stop, "play": client.play, "interrupt": client.interrupt}[mode](everywhere=True)

    running(director.agent())
    for room in ("a", "z"):
        client.send(room, "wait")
    runs = [director.run("a"), director.run("z")]
    poison(redis, keys, "m")
    signal("stop")
    for run in runs:
        run.wait_cancelled()
    eventually(lambda: all(client.status(room).phase == "held" for room in ("a", "z")), "both are held")
    signal("play")
    runs = [director.run("a"), director.run("z")]
    signal("interrupt")
    for run in runs:
        run.wait_cancelled()
    wait_event(redis, keys.agent, "room.unreadable", room="m")


def test_a_hand_written_signal_to_a_broken_room_is_one_event_and_the_listener_lives(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    """row 15: however many of them"""
    systems = [running(director.agent()) for _ in range(2)]
    redis.set(keys.room("broken"), "no hash")
    entries = [redis.xadd(keys.control, {"mode": "stop", "room": "broken"}) for _ in range(20)]
    redis.xadd(keys.control, {"mode": "stop", "room": "42"})
    wait_event(redis, keys.agent, "signal.applied", rooms="42")
    assert [event["entry"] for event in events(redis, keys.agent, "signal.malformed")] == entries
    assert len(wait_logged(caplog, "signal.malformed", len(entries))) == len(entries)
    with pytest.raises(RedisRefused, match="WRONGTYPE"):
        client.stop("broken")
    assert all(system.ready and not system.wait(0) for system in systems)


@pytest.mark.parametrize("cursor", ["garbage", "", "9" * 400, "1-"])
def test_a_cursor_that_is_none_is_no_cursor(
    cursor: str, running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """row 15"""
    running(director.agent()).stop(timedelta(0))
    redis.hset(keys.root, "control_cursor", cursor)
    running(director.agent())
    redis.xadd(keys.control, {"mode": "stop", "room": "42"})
    wait_event(redis, keys.agent, "signal.applied", rooms="42")
    assert client.status("42").hold is not None


# Workers. -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda redis, key: redis.set(key, "no hash"),
        lambda redis, key: redis.hset(key, "incarnation", "first"),
        lambda redis, key: redis.hset(key, "incarnation", ""),
        lambda redis, key: redis.hdel(key, "incarnation"),
    ],
    ids=["no hash", "no number", "empty", "none"],
)
def test_a_heartbeat_that_is_none_does_not_end_the_worker_that_it_belongs_to(
    write: Callable[[Any, str], object],
    running: Running,
    director: Director,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
) -> None:
    """row 15"""
    system = running(director.agent(), name="worker", lease=timedelta(seconds=1))
    client.send("42", "wait")
    run = director.run("42")
    write(redis, keys.worker("worker"))
    assert client.ask("43", "hello") == "hello"
    own = str(system._worker.context.incarnation)

    def renewed() -> bool:
        return bool(redis.type(keys.worker("worker")) == "hash" and redis.hget(keys.worker("worker"), "incarnation") == own)

    eventually(renewed, "the lease is renewed")
    run.finish("done")
    wait_output(client, "42", lambda output: output.body == "done")
    assert not system.wait(0)


def test_a_room_that_redis_refuses_is_asked_about_ever_less_often_and_holds_up_no_stop(
    redis_dir: Path, director: Director, agent: str
) -> None:
    """row 15: and it works again when its record is mended"""
    with (
        RedisServer(redis_dir) as server,
        redis_py.Redis.from_url(server.url, decode_responses=True) as redis,
        Client(agent, redis=server.url) as client,
    ):
        keys = Keys(agent)
        system = ActorSystem(director.agent(), agent=agent, redis=server.url).start()
        client.send("42", "hello")
        wait_output(client, "42", lambda output: output.kind is Kind.REPLY)
        poison(redis, keys, "broken")
        eventually(lambda: system._worker.rooms is not None and refusals(system, "broken") >= 2, "it was refused twice")
        began = time.monotonic()
        system.stop(timedelta(seconds=30))
        assert time.monotonic() - began < 15
        redis.delete(keys.room("broken"))
        client.send("broken", "hello")
        with ActorSystem(director.agent(), agent=agent, redis=server.url):
            wait_output(client, "broken", lambda output: output.body == "hello")


def refusals(system: ActorSystem, room: str) -> int:
    rooms = system._worker.rooms
    supervisor = rooms._actor_weakref() if rooms is not None else None
    child = supervisor._children.get(room) if supervisor is not None else None
    return child.refusals if child is not None else 0


@pytest.mark.parametrize(
    "write",
    [
        lambda redis, keys: redis.set(keys.room("broken"), "no hash"),
        lambda redis, keys: redis.set(keys.messages("broken"), "no stream"),
        lambda redis, keys: redis.hset(keys.room("broken"), "cycle", "5"),
        lambda redis, keys: redis.xadd(keys.messages("broken"), {"body": "x"}, id="5-7"),
        lambda redis, keys: redis.xadd(keys.messages("broken"), {"body": "x"}),  # its id is the time in ms, not in µs
    ],
    ids=["no hash", "no stream", "no message", "another id", "an id of Redis' own"],
)
def test_what_waits_is_told_beside_a_room_that_cannot_be_read(
    write: Callable[[Any, Keys], object], client: Client, redis: redis_py.Redis, redis_url: str, keys: Keys
) -> None:
    """row 15: metrics were absent for its sake, or said that its message had waited since 1970"""
    client.send("42", "hello")
    client.stop("43")
    client.send("43", "hello")
    write(redis, keys)
    redis.xadd(keys.ready, {"room": "broken"})
    redis.sadd(keys.held, "broken")
    found = backlog(redis_url, keys)
    assert (found.phases["queued"], found.phases["held"]) == (2, 2)
    assert min(found.waiting) >= 1
    assert 0 < max(found.oldest_s) < 3600


def backlog(url: str, keys: Keys) -> Backlog:
    found: list[Backlog] = []

    async def ask() -> None:
        store = Store(connect(url), keys)
        found.append(await store.backlog(100))
        await store.close()

    run_on_loop(ask)
    return found[0]


def test_a_room_that_is_in_line_many_times_is_listed_once(client: Client, redis: redis_py.Redis, keys: Keys) -> None:
    """As one is that moves while the rooms are read, page by page."""
    client.send("42", "hello")
    for _ in range(300):
        redis.xadd(keys.ready, {"room": "42"})
    assert [room.room for room in client.rooms(phase="queued")] == ["42"]


@pytest.mark.parametrize("field", ["keep_by", "clock", "control_cursor"])
@pytest.mark.parametrize("value", ["many", "", "-1", "1e3", "9" * 400])
def test_a_number_of_the_agent_s_that_is_none_keeps_no_worker_from_its_work(
    field: str, value: str, running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """row 15: a worker did not start for its sake, and ids were no numbers"""
    redis.hset(keys.root, field, value)
    running(director.agent(), retention=Retention(outbox=7))
    assert client.ask("42", "hello") == "hello"
    assert client.ask("42", "again") == "again"
    assert client.stop("42")[0].outcome is Outcome.APPLIED
    assert redis.hget(keys.root, "keep_outbox") == "7"


@pytest.mark.parametrize("score", ["inf", "-inf", "-5e300", "5e300"])
def test_an_agent_is_looked_at_beside_a_ticket_that_is_none(
    score: str, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """row 15"""
    redis.zadd(keys.processing, {"broken": score})
    assert client.overview().processing == 1


def test_a_version_of_more_digits_than_a_number_has_is_a_newer_one(client: Client, redis: redis_py.Redis, keys: Keys) -> None:
    """row 50"""
    redis.xadd(keys.dead, {"v": "9" * 5000, "room": "42"})
    with pytest.raises(NewerVersion):
        list(client.dead_letters())


def test_an_answer_on_record_that_is_none_is_its_caller_s_trouble_only(
    client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """row 15"""
    redis.set(f"{keys.root}:signal:mine", "no json")
    with pytest.raises((RedisRefused, Conflict)):
        client.stop("42", cid="mine")
    assert client.stop("42", cid="other")[0].room == "42"


def test_the_sweep_goes_on_beside_what_it_cannot_read(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """row 15: of workers that are none, and rooms that are broken"""
    monkeypatch.setattr(housekeeper, "ROUND_S", 0.05)
    poison(redis, keys, "broken")
    redis.set(keys.worker("text"), "no hash")
    redis.hset(keys.worker("for ever"), "incarnation", "1")
    redis.sadd(keys.workers, "text", "for ever")
    redis.zadd(keys.rooms, {"broken": 1, "idle": 2})
    redis.set(keys.state("idle"), b"\x01")
    for n in range(1200):
        redis.xadd(keys.control, {"mode": "none", "n": n})
    running(director.agent(), retention=Retention(control=100, idle_rooms=timedelta(seconds=1)))
    wait_event(redis, keys.agent, "room.forgotten", room="idle")
    eventually(lambda: redis.xlen(keys.control) < 400, "the control stream is trimmed")


@pytest.mark.parametrize("value", ["many", "", "-1", "nan", "1e3", " 5", "9" * 18, "9" * 400])
def test_a_limit_that_is_no_number_is_the_default(value: str, client: Client, redis: redis_py.Redis, keys: Keys) -> None:
    """row 15: it keeps no signal and no message from going through"""
    redis.hset(
        keys.root, mapping={f"keep_{what}": value for what in ("outbox", "outbox_s", "events", "control", "receipts_s", "dead")}
    )
    client.send("42", "hello")
    assert client.stop("42")[0].outcome is Outcome.APPLIED
    client.discard("42", client.send("42", "dropped"))
    assert 86_000 < redis.ttl(f"{keys.root}:signal:{client.stop('43')[0].cid}") <= 86_400
