"""Events in Redis, and listeners in process: who is told of what, and what a listener cannot harm."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from greenroom import ActorSystem, Backoff, Client, Event, EventKind, Outcome, Phase
from greenroom.protocol.keys import Keys
from greenroom.protocol.server import RedisServer
from greenroom.supervisors.service import _RunEnded
from integration.agents import (
    WAIT_S,
    Director,
    abandon,
    blocked,
    events,
    eventually,
    wait_event,
    wait_for,
    wait_heard,
    wait_output,
)
from integration.conftest import Running

SHORT = timedelta(seconds=1)
LATER = Backoff(first=timedelta(hours=1), most=timedelta(hours=1))


class Heard:
    """A listener that remembers what it was told, and on which threads."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.threads: set[str] = set()
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self.threads.add(threading.current_thread().name)
            self._changed.notify_all()

    def wait(self, count: int = 1) -> list[Event]:
        """Wait until it was told of so many; answer all."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.events) >= count, WAIT_S), f"told of {self.events}, want {count}"
            return list(self.events)

    @property
    def messages(self) -> list[int | None]:
        return [event.message for event in self.events]


class Stuck:
    """A listener that hangs until it is let go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()
        self.told = 0

    def __call__(self, _: Event) -> None:
        self.told += 1
        self.reached.set()
        self.go.wait(4 * WAIT_S)

    def wait(self) -> None:
        wait_for(self.reached, "the listener is told")


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    stuck = Stuck()
    yield stuck
    stuck.go.set()


def warned(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if f"event={event}" in record.getMessage().split()]


def asked(client: Client, count: int, room: str = "1") -> list[int]:
    """Have so many messages answered; answer their ids."""
    messages = [client.send(room, number) for number in range(count)]
    wait_output(client, room, lambda output: output.message == messages[-1])
    return messages


# What they are told. ----------------------------------------------------------------------------------


def test_a_listener_is_told_of_its_kind_in_order_and_on_a_thread_of_its_own(
    running: Running, director: Director, client: Client, heard: Heard
) -> None:
    system = running(director.agent())
    system.on("cycle.committed", heard)
    messages = asked(client, 500)
    assert [event.message for event in heard.wait(500)] == messages
    first = heard.events[0]
    assert (first.kind, first.room, first.attempt, first.worker) == (EventKind.CYCLE_COMMITTED, "1", 1, system.name)
    outputs = {output.ticket for output in client.outputs("1")}
    assert {event.ticket for event in heard.events} == outputs
    assert heard.threads == {"greenroom-listeners"}


def test_what_is_registered_before_the_start_listens_from_the_start(
    director: Director, redis_url: str, agent: str, client: Client, heard: Heard
) -> None:
    with ActorSystem(director.agent(), agent=agent, redis=redis_url, name="one"):
        asked(client, 1)
    waiting = client.send("1", "hello")  # it runs as soon as there is a worker
    system = ActorSystem(director.agent(), agent=agent, redis=redis_url, name="one")
    system.on("cycle.committed", heard)
    with system:
        heard.wait()
    assert heard.messages == [waiting]


def test_a_registration_returns_when_its_place_among_the_events_is_certain(
    running: Running, director: Director, client: Client, heard: Heard
) -> None:
    """Also while the worker is busy: the event is written by the client's signal, which does not wait for it."""
    system = running(director.agent(interruptible=False))
    client.send("1", "wait")
    director.run("1")

    def free_the_worker() -> None:
        eventually(lambda: system._control._posted, "the registration is under way")
        busy.close()

    with ExitStack() as busy:
        busy.enter_context(blocked(system._control))
        freeing = threading.Thread(target=free_the_worker)
        freeing.start()
        system.on("signal.deferred", heard)
        client.interrupt("1")
    freeing.join(WAIT_S)
    heard.wait()


def test_a_listener_is_told_from_its_registration_on_also_beside_an_older_one_that_is_behind(
    running: Running, director: Director, client: Client, heard: Heard, stuck: Stuck
) -> None:
    system = running(director.agent())
    asked(client, 3)
    system.on("cycle.committed", stuck)
    asked(client, 3)
    stuck.wait()
    system.on("cycle.committed", heard)
    later = asked(client, 3)
    stuck.go.set()
    heard.wait(3)
    assert heard.messages == later
    assert stuck.told == 6


def test_what_was_removed_is_told_nothing_more_and_may_be_removed_again(
    running: Running, director: Director, client: Client, heard: Heard
) -> None:
    system = running(director.agent())
    first, remove_second = Heard(), system.on("cycle.committed", Heard())
    remove = system.on("cycle.committed", first)
    system.on("cycle.committed", heard)
    asked(client, 1)
    heard.wait()
    remove()
    remove()
    remove_second()
    asked(client, 1)
    heard.wait(2)
    assert len(first.events) == 1


def test_when_the_last_has_gone_the_next_one_begins_anew(
    running: Running, director: Director, client: Client, heard: Heard
) -> None:
    system = running(director.agent())
    for _ in range(3):
        system.on("cycle.committed", heard)()
        asked(client, 1)
    eventually(lambda: system._listeners.seen is None, "nobody listens")
    system.on("cycle.committed", heard)
    assert asked(client, 1) == [event.message for event in heard.wait()]


def test_each_worker_tells_of_its_own_cycles_only(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    heard = {}
    for name in ("one", "two"):
        heard[name] = Heard()
        running(director.agent(), name=name, max_rooms=2).on("cycle.committed", heard[name])
    for number in range(4):
        client.send(f"room-{number}", "wait")
    for run in [director.run() for _ in range(4)]:  # two of each: who has finished one would take a third
        run.finish()
    for name, listener in heard.items():
        wait_event(redis, agent, "cycle.committed", count=2, worker=name)
        assert {event.room for event in listener.wait(2)} == {
            row["room"] for row in events(redis, agent, "cycle.committed", worker=name)
        }
        assert [event.worker for event in listener.events] == [name, name]


# Whose an event is. -----------------------------------------------------------------------------------


def test_a_deferral_is_told_once_with_the_signal_that_waits(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str, heard: Heard
) -> None:
    """row 21: visible in the receipt, in the status and as an event"""
    system = running(director.agent(interruptible=False))
    system.on("signal.deferred", heard)
    message = client.send("1", "wait")
    run = director.run("1")
    assert client.interrupt("1", cid="first")[0].outcome is Outcome.DEFERRED
    assert client.interrupt("1", cid="first")[0].outcome is Outcome.DEFERRED  # sent again
    assert client.interrupt("1", cid="second")[0].outcome is Outcome.ALREADY
    assert client.stop("1", cid="third")[0].outcome is Outcome.DEFERRED  # it holds the room; the interrupt goes on waiting
    [event] = heard.wait()
    assert (event.room, event.message, event.ticket, event.worker) == ("1", message, run.ticket, system.name)
    assert (event.mode, event.details) == ("interrupt", {"cid": "first"})
    assert len(events(redis, agent, "signal.deferred")) == 1
    lapsed = Heard()
    system.on("interrupt.lapsed", lapsed)
    run.finish()
    assert [event.ticket for event in lapsed.wait()] == [run.ticket]


@pytest.mark.parametrize("everywhere", [False, True], ids=["room", "everywhere"])
def test_a_deferred_stop_is_told_too(
    running: Running, director: Director, client: Client, heard: Heard, everywhere: bool
) -> None:
    running(director.agent(interruptible=False)).on("signal.deferred", heard)
    client.send("1", "wait")
    run = director.run("1")
    client.stop(everywhere=True, cid="all") if everywhere else client.stop("1", cid="all")
    [event] = heard.wait()
    assert (event.ticket, event.mode, event.details["cid"]) == (run.ticket, "stop", "all")


ENDS: dict[str, Callable[[Client, Any], object]] = {
    "cycle.committed": lambda client, run: run.finish(),
    "cycle.failed": lambda client, run: run.fail(),
    "cycle.interrupted": lambda client, run: client.interrupt("1"),
    "cycle.stopped": lambda client, run: client.stop("1"),
    "message.dead": lambda client, run: run.fail(),
}


@pytest.mark.parametrize("kind", ENDS)
def test_whichever_way_a_cycle_ends_its_worker_is_told(
    running: Running, director: Director, client: Client, heard: Heard, kind: str
) -> None:
    system = running(director.agent(max_attempts=1))
    system.on(kind, heard)
    message = client.send("1", "wait")
    run = director.run("1")
    ENDS[kind](client, run)
    [event] = heard.wait()
    assert (event.kind, event.room, event.message, event.ticket) == (kind, "1", message, run.ticket)
    assert event.worker == system.name
    if kind in ("cycle.failed", "message.dead"):
        assert event.error == "RuntimeError: told to fail"


def test_a_stop_of_the_system_returns_when_its_listeners_know_how_the_last_cycles_ended(
    running: Running,
    director: Director,
    client: Client,
    redis: redis_py.Redis,
    agent: str,
    heard: Heard,
    stuck: Stuck,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("greenroom.supervisors.listeners.END_S", WAIT_S)
    system = running(director.agent())
    system.on("cycle.committed", stuck)
    system.on("cycle.released", heard)
    asked(client, 1)
    stuck.wait()
    client.send("1", "wait")
    run = director.run("1")
    stopping = threading.Thread(target=system.stop, args=(timedelta(0),))
    stopping.start()
    wait_event(redis, agent, "cycle.released", room="1")
    stuck.go.set()
    stopping.join(WAIT_S)
    assert [(event.ticket, event.worker) for event in heard.events] == [(run.ticket, system.name)]


def test_who_takes_over_a_room_is_told_of_it_and_of_the_cycle_that_died_there(
    running: Running, director: Director, client: Client, heard: Heard
) -> None:
    first = running(director.agent(), lease=SHORT)
    message = client.send("1", "wait")
    run = director.run("1")
    abandon(first)
    crashed = Heard()
    second = ActorSystem(director.agent(), agent=client.agent, redis=first._url, name="second")
    second.on("room.adopted", heard)
    second.on("cycle.crashed", crashed)
    with second:
        [adopted] = heard.wait()
        assert (adopted.room, adopted.worker, adopted.details) == ("1", "second", {"from": first.name})
        [event] = crashed.wait()
        assert (event.message, event.ticket, event.worker) == (message, run.ticket, "second")
        director.run("1").finish()


def test_who_was_told_to_wait_with_a_room_has_it(running: Running, director: Director, client: Client, heard: Heard) -> None:
    """Its message waits for a retry that another worker's cycle has earned; it is this one that hears of the interrupt."""
    first = running(director.agent(retry=LATER))
    message = client.send("1", "fail")
    eventually(lambda: client.status("1").phase is Phase.BACKOFF, "it has failed")
    second = running(director.agent(retry=LATER))
    second.on("cycle.interrupted", heard)
    first.stop()
    eventually(lambda: client.status("1").owner == second.name, "the other worker has it")
    assert client.interrupt("1")[0].outcome is Outcome.APPLIED
    assert [(event.message, event.worker) for event in heard.wait()] == [(message, second.name)]


def test_a_worker_whose_lease_had_run_out_is_told(
    running: Running, director: Director, redis: redis_py.Redis, keys: Keys, heard: Heard
) -> None:
    system = running(director.agent(), lease=SHORT)
    system.on("worker.lapsed", heard)
    redis.delete(keys.worker(system.name))
    assert heard.wait()[0].worker == system.name


def test_what_nobody_has_says_so(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str
) -> None:
    """A message that a stop has kept is no worker's until the next one claims it."""
    system = running(director.agent())
    client.send("1", "wait")
    director.run("1")
    client.stop("1")
    wait_event(redis, agent, "cycle.stopped", room="1")
    system.stop()
    client.play("1")
    assert client.interrupt("1")[0].outcome is Outcome.APPLIED
    assert "worker" not in wait_event(redis, agent, "cycle.interrupted", room="1")


# What they cannot harm. -------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), SystemExit(3)], ids=lambda error: type(error).__name__)
def test_a_listener_that_raises_is_logged_and_goes_on(
    running: Running,
    director: Director,
    client: Client,
    heard: Heard,
    error: BaseException,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def raising(event: Event) -> None:
        heard(event)
        raise error

    system, beside = running(director.agent()), Heard()
    system.on("cycle.committed", raising)
    system.on("cycle.committed", beside)
    messages = asked(client, 3)
    beside.wait(3)
    assert heard.messages == beside.messages == messages
    assert len(warned(caplog, "listener.failed")) == 3


def test_a_listener_that_hangs_holds_up_neither_the_rooms_nor_the_stop_and_is_told_nothing_after_it(
    running: Running, director: Director, client: Client, stuck: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    system = running(director.agent())
    system.on("cycle.committed", stuck)
    asked(client, 1)
    stuck.wait()
    thread = system._listeners._thread
    assert thread is not None
    asked(client, 20)
    wait_heard(system)
    system.stop()
    assert thread.is_alive()
    assert warned(caplog, "listeners.stuck")
    stuck.go.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert stuck.told == 1


def test_a_listener_may_stop_the_system(running: Running, director: Director, client: Client) -> None:
    stopped = threading.Event()

    def stop(_: Event) -> None:
        system.stop()
        stopped.set()

    system = running(director.agent())
    system.on("cycle.committed", stop)
    asked(client, 1)
    wait_for(stopped, "the listener has stopped the system")
    assert system.wait(0)


def test_a_listener_may_register_others_and_remove_itself(
    running: Running, director: Director, client: Client, heard: Heard
) -> None:
    removers: list[Callable[[], None]] = []

    def once(event: Event) -> None:
        removers.pop()()
        system.on("cycle.committed", heard)

    system = running(director.agent())
    removers.append(system.on("cycle.committed", once))
    asked(client, 1)
    eventually(lambda: len(system._listeners._all) == 1 and system._listeners._all[0].listener is heard, "it has registered")
    later = asked(client, 2)
    heard.wait(2)
    assert heard.messages[-2:] == later


def test_a_listener_that_is_outrun_misses_events_and_a_warning_says_so(
    running: Running,
    director: Director,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
    stuck: Stuck,
    heard: Heard,
    caplog: pytest.LogCaptureFixture,
) -> None:
    system = running(director.agent())
    system.on("cycle.committed", stuck)
    system.on("cycle.committed", heard)
    asked(client, 1)
    stuck.wait()
    missed = asked(client, 5)
    redis.xtrim(keys.events, maxlen=1, approximate=False)  # as 10,000 further events do
    kept: Any = redis.xrange(keys.events)
    stuck.go.set()
    later = asked(client, 1)
    heard.wait(3)
    assert heard.messages[1:] == [missed[-1], *later]
    [warning] = warned(caplog, "listeners.outrun")
    assert f"before={kept[0][0]}" in warning


def test_listeners_go_on_when_redis_has_lost_the_last_event_that_they_saw(
    running: Running,
    director: Director,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
    heard: Heard,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As after a fail-over to a replica that lagged, and whose clock does."""
    system = running(director.agent())
    system.on("cycle.committed", heard)
    asked(client, 1)
    heard.wait()
    redis.delete(keys.events)
    redis.xadd(keys.events, {"event": "signal.applied"}, id="5-1")
    eventually(lambda: warned(caplog, "listeners.lost_place"), "it is noticed")
    later = asked(client, 1)
    heard.wait(2)
    assert heard.messages[1:] == later


def test_listeners_survive_what_no_script_has_written(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys, heard: Heard
) -> None:
    system = running(director.agent())
    system.on("cycle.committed", heard)
    redis.xadd(keys.events, {"event": "cycle.committed", "worker": system.name, "message": "seven", b"\xff": b"\xfe"})
    redis.xadd(keys.events, {"nothing": ""})
    messages = asked(client, 1)
    heard.wait(2)
    assert heard.messages == [None, *messages]


def test_listeners_go_on_after_an_outage_with_what_comes_after_the_last_they_were_told_of(
    running: Running, director: Director, server: RedisServer, agent: str, heard: Heard
) -> None:
    """row 40"""
    system = running(director.agent(), redis=server.url)
    system.on("cycle.committed", heard)
    with Client(agent, redis=server.url, timeout=2 * WAIT_S) as client:
        messages = []
        for _ in range(3):
            messages += asked(client, 2)
            server.kill()
            eventually(lambda: not system.ready, "it is noticed")
            server.start()
        messages += asked(client, 2)
        heard.wait(len(messages))
        assert heard.messages == messages


@pytest.mark.parametrize("part", ["control", "listeners"])
def test_listeners_go_on_when_a_part_of_the_worker_is_restarted_and_they_with_it(
    running: Running, director: Director, client: Client, heard: Heard, stuck: Stuck, part: str
) -> None:
    """Also while the thread is at a page: none of it is told twice."""
    system = running(director.agent())
    system.on("cycle.committed", stuck)
    system.on("cycle.committed", heard)
    messages = asked(client, 1)
    stuck.wait()
    root = system._root.proxy()
    before = root.whereis("listeners").get(timeout=WAIT_S)
    root.whereis(part).get(timeout=WAIT_S).tell(_RunEnded(RuntimeError("told to fail")))
    eventually(lambda: root.whereis("listeners").get(timeout=WAIT_S) not in (before, None), "it is restarted")
    messages += asked(client, 2)
    stuck.go.set()
    heard.wait(3)
    messages += asked(client, 1)
    heard.wait(4)
    assert heard.messages == messages


def test_what_is_registered_while_redis_is_away_listens_when_it_is_back(
    running: Running, director: Director, server: RedisServer, agent: str, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("greenroom.supervisors.listeners.PLACE_S", 0.1)
    system = running(director.agent(), redis=server.url)
    server.kill()
    eventually(lambda: not system.ready, "it is noticed")
    system.on("cycle.committed", heard)
    server.start()
    with Client(agent, redis=server.url, timeout=2 * WAIT_S) as client:
        eventually(lambda: system._listeners.seen is not None, "its place is known")
        assert asked(client, 1) == [event.message for event in heard.wait()]


# What they cost. --------------------------------------------------------------------------------------


def test_there_is_a_connection_while_somebody_listens_and_a_thread_from_the_first_event_on(
    running: Running, director: Director, server: RedisServer, agent: str, heard: Heard
) -> None:
    system = running(director.agent(), redis=server.url)
    with Client(agent, redis=server.url) as client, redis_py.Redis.from_url(server.url) as plain:
        asked(client, 1)
        client.stop("nobody")
        wait_heard(system)  # all its connections stand

        def count() -> int:
            return len(plain.client_list())

        before = count()
        removers = [system.on(kind, heard) for kind in ("cycle.committed", "cycle.failed", "cycle.stopped")]
        assert system._listeners._thread is None
        eventually(lambda: count() == before + 1, "one connection more")
        asked(client, 1)
        heard.wait()
        assert count() == before + 1
        for remove in removers:
            remove()
        eventually(lambda: count() == before, "it is closed")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
def test_starts_and_stops_with_listeners_leave_no_file_and_no_thread(
    director: Director, redis_url: str, agent: str, client: Client
) -> None:
    def left() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    def round_trip() -> None:
        heard = Heard()
        system = ActorSystem(director.agent(), agent=agent, redis=redis_url)
        system.on("cycle.committed", heard)
        with system:
            messages = asked(client, 1)
        assert heard.messages == messages

    round_trip()
    before = left()
    for _ in range(20):
        round_trip()
    eventually(lambda: left() <= before, "nothing is left")
