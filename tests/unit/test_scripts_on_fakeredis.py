"""The scripts also run on fakeredis, so that users can test their agents' rooms without a server."""

from __future__ import annotations

import json
from typing import Any

import fakeredis
import pytest

from greenroom.protocol.keys import Keys
from greenroom.protocol.scripts import scripts

TERMS = ("3", "")  # max attempts; not shielded
WORKER = "worker-1"


class Fake:
    """One agent on a fakeredis, with one worker."""

    def __init__(self, agent: str) -> None:
        self.keys = Keys(agent)
        # Any: redis-py's types do not know that answers are decoded here.
        self.redis: Any = fakeredis.FakeStrictRedis(version=(7,), decode_responses=True)
        self.shas = {name: self.redis.script_load(script.text) for name, script in scripts().items()}
        self.incarnation = self.run("heartbeat", WORKER, "", 10_000, "instance")[1]

    def run(self, script: str, *args: str | int) -> Any:
        """The script's answer, by EVALSHA."""
        return self.redis.evalsha(self.shas[script], 1, self.keys.root, *args)

    def enqueue(self, body: str, room: str = "42") -> str:
        """The id of the message's entry."""
        word, entry, _ = self.run("enqueue", room, f"key-{body}", 60, 100, body)
        assert word == "ok"
        return str(entry)

    def deliver(self) -> str:
        """The id of the ready entry that the worker is handed next."""
        [[_, [[ready, _]]]] = self.redis.xreadgroup("supervisors", WORKER, {self.keys.ready: ">"}, count=1)
        return str(ready)

    def claim(self, ready: str, request: str = "request-1") -> Any:
        """The answer to the worker's claim of room 42."""
        return self.run("claim", "42", WORKER, self.incarnation, ready, request, *TERMS)

    def signal(self, mode: str, cid: str, *rooms: str) -> list[str]:
        """The outcomes of a signal, one a room."""
        word, receipt = self.run("control", mode, cid, "", "tester", "", "", len(rooms), *rooms)
        assert word == "ok"
        return [outcome for _, outcome, _ in json.loads(receipt)["receipts"]]

    def outputs(self) -> list[tuple[str, str]]:
        """Kind and body of all that room 42 sent."""
        return [(entry["kind"], entry["body"]) for _, entry in self.redis.xrange(self.keys.outbox("42"))]


@pytest.fixture
def fake(agent: str) -> Fake:
    return Fake(agent)


def test_redis_knows_each_script_by_the_hash_that_greenroom_computes(fake: Fake) -> None:
    assert fake.shas == {name: script.sha for name, script in scripts().items()}


def test_a_message_is_claimed_answered_and_committed_and_the_next_one_granted(fake: Fake) -> None:
    first, second = fake.enqueue("one"), fake.enqueue("two")
    word, message, ticket, attempt, abort, _, entry, state = fake.claim(fake.deliver())
    assert (word, message, attempt, abort, entry[-1], state) == ("grant", first, "1", "", "one", None)
    assert fake.run("emit", "42", ticket, 1, "chunk")[0] == "ok"
    granted = fake.run("commit", "42", ticket, "1", *TERMS, "+state", "reply")
    assert granted[:2] == ["grant", second]
    assert fake.run("commit", "42", granted[2], "", *TERMS, "=", "bye")[0] == "released"
    assert fake.outputs() == [("chunk", "chunk"), ("reply", "reply"), ("reply", "bye")]
    assert fake.redis.get(fake.keys.state("42")) == "state"
    assert fake.redis.xlen(fake.keys.messages("42")) == 0


def test_a_request_that_is_sent_again_gets_the_same_answer(fake: Fake) -> None:
    assert fake.enqueue("one") == fake.enqueue("one")
    ready = fake.deliver()
    grant = fake.claim(ready)
    assert fake.claim(ready) == grant
    for _ in range(2):
        assert fake.run("commit", "42", grant[2], "", *TERMS, "=", "reply")[0] == "released"
    assert fake.outputs() == [("reply", "reply")]


def test_a_room_is_not_granted_to_a_worker_that_was_not_handed_it(fake: Fake) -> None:
    fake.enqueue("one")
    assert fake.claim("1-1")[0] == "lost"


def test_a_stop_refuses_what_the_cycle_sends_and_play_replays_its_message(fake: Fake) -> None:
    message = fake.enqueue("one")
    grant = fake.claim(fake.deliver())
    assert fake.signal("stop", "signal-1", "42") == ["applied"]
    assert fake.run("emit", "42", grant[2], 1, "late")[0] == "stop"
    assert fake.run("commit", "42", grant[2], "1", *TERMS, "=", "late")[0] == "stop"
    assert fake.run("settle", "42", grant[2], "release", "1", *TERMS, "=", "", "", 0, "")[0] == "held"
    assert fake.redis.smembers(fake.keys.held) == {"42"}
    assert fake.signal("play", "signal-2", "42") == ["applied"]
    again = fake.claim(fake.deliver(), "request-2")
    assert (again[0], again[1], again[3]) == ("grant", message, "1")
    assert ("chunk", "late") not in fake.outputs()


def test_an_interrupt_consumes_the_message_in_flight_and_the_next_is_granted(fake: Fake) -> None:
    fake.enqueue("one")
    second = fake.enqueue("two")
    grant = fake.claim(fake.deliver())
    assert fake.signal("interrupt", "signal-1", "42") == ["applied"]
    assert fake.run("settle", "42", grant[2], "consume", "1", *TERMS, "=", "", "", 0, "")[:2] == ["grant", second]


def test_a_stop_of_the_agent_holds_rooms_that_do_not_exist_yet(fake: Fake) -> None:
    assert fake.signal("stop", "signal-1") == ["applied"]
    fake.enqueue("one")
    assert not fake.redis.xlen(fake.keys.ready)
    assert fake.signal("play", "signal-2") == ["applied"]
    assert fake.claim(fake.deliver())[0] == "grant"


def test_steps_shields_failures_and_dead_letters_run_too(fake: Fake) -> None:
    message = fake.enqueue("one")
    ticket = fake.claim(fake.deliver())[2]
    assert fake.run("step", "42", ticket, "lookup", "begin")[0] == "run"
    assert fake.run("step", "42", ticket, "lookup", "done", "result")[0] == "ok"
    assert fake.run("step", "42", ticket, "lookup", "begin") == ["done", "result"]
    assert fake.run("shield", "42", ticket, "1")[0] == "ok"
    assert fake.signal("stop", "signal-1", "42") == ["deferred"]
    assert fake.run("shield", "42", ticket, "")[0] == "stop"
    assert fake.signal("play", "signal-2", "42") == ["applied"]
    granted = fake.run("settle", "42", ticket, "release", "1", *TERMS, "=", "", "", 0, "")
    assert fake.run("settle", "42", granted[2], "reject", "1", *TERMS, "=", "", "never", 0, "")[0] == "empty"
    [[letter, entry]] = fake.redis.xrange(fake.keys.dead)
    assert (entry["message"], entry["error"]) == (message, "never")
    assert fake.run("requeue", letter, "request-9", 60)[:2] == ["ok", "42"]
    assert fake.run("drop", letter, "request-10", 60, "tester")[0] == "unknown"


def test_a_worker_that_leaves_gives_back_what_it_has_not_begun(fake: Fake) -> None:
    fake.enqueue("one")
    handed_out = fake.deliver()
    assert fake.run("leave", WORKER, fake.incarnation)[0] == "ok"
    assert fake.deliver() != handed_out


def test_a_cycle_of_a_worker_that_has_left_is_adopted(fake: Fake) -> None:
    fake.enqueue("one")
    ready = fake.deliver()
    fake.claim(ready)
    assert fake.run("leave", WORKER, fake.incarnation)[0] == "ok"
    other = fake.run("heartbeat", "worker-2", "", 10_000, "instance")[1]
    assert int(fake.run("adopt", "worker-2", 10)[1]) == 1
    granted = fake.run("claim", "42", "worker-2", other, ready, "request-2", *TERMS)
    assert (granted[0], granted[3]) == ("grant", "2")


def _given(fake: Fake, *done: str) -> tuple[str, str]:
    """Id, and body or else kind, of what relay "relay" is to hand over next in room 42; the word that grants nothing."""
    answer = fake.run("deliver", "relay", "token", "42", *(done or ("",)), "")
    if answer[0] != "output":
        return ("", answer[0])
    row = dict(zip(answer[2][::2], answer[2][1::2], strict=True))
    return (answer[1], row["body"] or row["kind"])


def test_a_relay_is_given_what_is_sent_and_nothing_of_an_interrupted_cycle_but_its_last_word(fake: Fake) -> None:
    assert fake.run("relay", "relay", "token", 10_000)[0] == "ok"
    assert fake.run("relay", "relay", "another", 10_000) == ["taken", "token"]
    fake.enqueue("one")
    ticket = fake.claim(fake.deliver())[2]
    fake.run("emit", "42", ticket, 1, "a", "b")
    first, body = _given(fake)
    assert body == "a"
    assert fake.signal("interrupt", "signal-1", "42") == ["applied"]
    assert _given(fake, first) == ("", "empty")
    fake.run("settle", "42", ticket, "consume", "", *TERMS, "=", "sorry", "", 0)
    closing, body = _given(fake)
    assert body == "sorry"
    ending, body = _given(fake, closing)
    assert (ending, body) == _given(fake, closing)
    assert body == "aborted"
    assert _given(fake, ending) == ("", "empty")
    assert fake.run("forget_relay", "relay", "request-1", 60) == ["runs", "token"]
    assert fake.run("relay", "relay", "token", "")[0] == "ok"
    assert _given(fake) == ("", "lost")
    for _ in range(2):
        assert fake.run("forget_relay", "relay", "request-1", 60) == ["ok", ""]
    assert fake.run("forget_relay", "relay", "request-2", 60) == ["unknown", ""]
    assert not [key for key in fake.redis.scan_iter() if "relay" in key or "undelivered" in key or "aborted" in key]


def test_more_withheld_chunks_than_one_call_passes_over_are_passed_over_in_several(fake: Fake) -> None:
    fake.run("relay", "relay", "token", 10_000)
    fake.enqueue("one")
    ticket = fake.claim(fake.deliver())[2]
    fake.run("emit", "42", ticket, 1, *map(str, range(250)))
    fake.signal("interrupt", "signal-1", "42")
    fake.run("settle", "42", ticket, "consume", "", *TERMS, "=", "", "", 0)
    answers = [_given(fake)[1] for _ in range(3)]
    assert answers == ["more", "more", "aborted"]


def test_an_idle_room_is_forgotten_and_a_dead_letter_over_the_limit_dropped(fake: Fake) -> None:
    assert fake.run("retain", WORKER, fake.incarnation, "idle_rooms_s", 3600, "dead", 1) == ["ok", ""]
    fake.redis.set(fake.keys.state("42"), "state")
    fake.redis.zadd(fake.keys.rooms, {"42": 1})
    for message in ("1-0", "2-0"):
        fake.redis.xadd(fake.keys.dead, {"room": "43", "message": message, "error": "no"})
    oldest = fake.redis.xrange(fake.keys.dead, count=1)[0][0]
    assert fake.run("sweep", 0) == ["ok", 0, [oldest, "43", "1-0", "no"], 1]
    assert fake.run("sweep", 0) == ["ok", 0, [], 0]
    assert not fake.redis.exists(fake.keys.state("42"), fake.keys.rooms)
