"""Metrics: a worker does each thing, and what a scrape over HTTP says of it moves as it should, and nothing else does."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pykka
import pytest
import redis as redis_py
from prometheus_client import CollectorRegistry, generate_latest

from greenroom import ActorSystem, AsyncClient, Backoff, Client, CycleEnded, DeadLettered, RedisRefused
from greenroom.actors.counts import OUTCOMES, PINGS, Histogram, Lag
from greenroom.metrics import Collector
from greenroom.protocol.keys import Keys
from greenroom.protocol.server import RedisServer
from greenroom.supervisors import measures
from greenroom.supervisors.control import ControlListener
from greenroom.supervisors.loop_watch import LoopWatch
from greenroom.supervisors.measures import ROOMS
from greenroom.supervisors.service import Service, _RunEnded
from greenroom.supervisors.worker import WorkerLease
from integration.agents import (
    WAIT_S,
    Director,
    StoreGate,
    abandon,
    blocked,
    events,
    eventually,
    wait_event,
    wait_for,
)
from integration.conftest import Running
from integration.scraping import Page, Scraped, page_of

NO_TIME = timedelta(0)
LONG_LEASE = timedelta(seconds=600)

Paging = Callable[[ActorSystem], Page]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapes wait for Redis, however busy the machine is: that they do not is what ``test_metrics_outage`` is for."""
    monkeypatch.setattr(measures, "PATIENCE_S", WAIT_S)


@pytest.fixture
def running(running: Running) -> Running:
    """Leases that no busy machine lets run out."""
    return lambda agent_class, **options: running(agent_class, **{"lease": LONG_LEASE, **options})


@pytest.fixture
def paging() -> Iterator[Paging]:
    """Serves the metrics of systems until the end of the test."""
    with ExitStack() as stack:
        yield lambda system: stack.enter_context(page_of(system))


def scraped(page: Page, holds: Callable[[Scraped], bool], what: str) -> Scraped:
    """The first scrape for which it holds."""
    found = [page.scrape()]

    def look() -> bool:
        found.append(page.scrape())
        return holds(found[-1])

    eventually(look, what)
    return found[-1]


# How cycles end. --------------------------------------------------------------------------------------


class Watched:
    """A system whose metrics are compared with what they were when it was last asked."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.before = page.scrape()

    def growth(self) -> dict[str, float]:
        return self.page.scrape().changed(self.before)

    def grown(self, expected: dict[str, float]) -> None:
        """Wait until exactly these counters have grown, by so much."""
        found: list[Scraped] = []

        def has() -> bool:
            found.append(self.page.scrape())
            return found[-1].changed(self.before) == expected

        try:
            eventually(has, "exactly these grow")
        except AssertionError:
            raise AssertionError(f"grown: {found[-1].changed(self.before)}, expected: {expected}") from None
        self.before = found[-1]


CYCLE = {"cycle_seconds_count": 1.0}
HEARD = {"signal_delay_seconds_count": 1.0}


def test_each_way_in_which_a_cycle_can_end_is_counted_once_and_nothing_else_is(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str, paging: Paging
) -> None:
    system = running(director.agent(max_attempts=2))
    watched = Watched(paging(system))

    client.ask("1", "hello")
    watched.grown({"messages_total committed": 1, **CYCLE})

    client.send("1", "fail")
    wait_event(redis, agent, "message.dead")
    watched.grown({"messages_total failed": 2, "messages_total dead": 1, "restarts_total failed": 2, "cycle_seconds_count": 2})

    client.send("1", "wait")
    director.run("1")
    client.interrupt("1")
    watched.grown({"messages_total interrupted": 1, "signals_heard_total interrupt applied": 1, **HEARD, **CYCLE})

    client.send("1", "wait")
    director.run("1")
    client.stop("1")
    watched.grown({"messages_total stopped": 1, "signals_heard_total stop applied": 1, **HEARD, **CYCLE})

    client.play("1")
    director.run("1")
    watched.grown({"signals_heard_total play applied": 1, **HEARD})
    system.stop(NO_TIME)
    watched.grown({"messages_total released": 1, **CYCLE})


def test_a_crash_is_counted_by_the_worker_that_finds_it_and_so_is_what_it_died_of(
    running: Running, director: Director, client: Client, paging: Paging
) -> None:
    crashed = running(director.agent(max_attempts=1), name="w1")
    client.send("1", "wait")
    client.send("1", "next")
    director.run("1")
    abandon(crashed)
    finds = paging(running(director.agent(max_attempts=1), name="w1"))
    said = scraped(finds, lambda said: said.said("messages_total", outcome="committed") == 1, "the next one is committed")
    assert said.said("messages_total", outcome="crashed") == 1
    assert said.said("messages_total", outcome="dead") == 1
    assert said.said("cycle_seconds_count") == 1


def test_the_counts_are_those_of_the_events(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, agent: str, paging: Paging
) -> None:
    """Whatever happens in between: signals at random over many rooms, and at the end all is over."""
    pages = [paging(running(director.agent(max_attempts=2))) for _ in range(2)]
    assert client.ask("each", "hello") == "hello"
    with pytest.raises(DeadLettered):
        client.ask("each", "fail")
    client.send("each", "wait")
    director.run("each")
    client.interrupt("each")
    rooms = [f"room-{number}" for number in range(12)]
    for turn in range(5):
        for number, room in enumerate(rooms):
            client.send(room, ("hello", "fail", "wait")[(turn + number) % 3])
        client.interrupt(*rooms[turn::3])
        client.stop(*rooms[turn::4])
        client.play(everywhere=True)
        client.play(*rooms)

    def over() -> bool:
        client.interrupt(everywhere=True)
        return not any(client.status(room).waiting for room in rooms)

    eventually(over, "all messages have ended")
    happened = Counter(OUTCOMES[kind] for kind in OUTCOMES for _ in events(redis, agent, kind))
    assert {"committed", "failed", "dead", "interrupted"} <= set(happened)

    def counted() -> bool:
        found: Counter[str] = Counter()
        for page in pages:
            said = page.scrape()
            found.update({word: int(said.said("messages_total", outcome=word) or 0) for word in OUTCOMES.values()})
        # A message that an interrupt finds between two cycles is consumed by its client's request, not by a worker's.
        assert found["interrupted"] <= happened["interrupted"]
        return +found == +Counter({**happened, "interrupted": found["interrupted"]})

    eventually(counted, "the workers have counted what the events say")


def test_cycles_in_flight_and_how_long_they_ran(running: Running, director: Director, client: Client, paging: Paging) -> None:
    page = paging(running(director.agent()))
    for room in "123":
        client.send(room, "wait")
    runs = [director.run(room) for room in "123"]
    said = scraped(page, lambda said: said.said("cycles_in_flight") == 3, "three are in flight")
    assert said.said("cycle_seconds_count") == 0
    runs[0].finish()
    client.interrupt("2")
    scraped(page, lambda said: said.said("cycles_in_flight") == 1, "one is left")
    said = page.scrape()
    assert said.said("cycle_seconds_count") == 2
    assert 0 < (said.said("cycle_seconds_sum") or 0) < 2 * WAIT_S
    assert said.said("cycle_seconds_bucket", le="+Inf") == 2


def test_cycles_whose_code_was_left_behind(running: Running, director: Director, client: Client, paging: Paging) -> None:
    page = paging(running(director.agent(abort_timeout=NO_TIME)))
    client.send("1", "wait")
    run, go, reached = director.run("1"), threading.Event(), threading.Event()

    def hang(_: object) -> None:
        reached.set()
        go.wait(WAIT_S)

    run.begin(hang)
    wait_for(reached, "the handler hangs")
    client.interrupt("1")
    scraped(page, lambda said: said.said("cycles_detached_total") == 1, "it is left behind")
    scraped(page, lambda said: said.said("cycles_in_flight") == 0, "it counts no more")
    go.set()
    run.wait_ended()


# Signals. ---------------------------------------------------------------------------------------------


def test_signals_are_counted_by_mode_and_outcome_by_every_worker_that_hears_them(
    running: Running, director: Director, client: Client, paging: Paging
) -> None:
    client.stop("before")  # before there is a worker
    client.play("before")
    systems = [running(director.agent()) for _ in range(2)]
    pages = [paging(system) for system in systems]
    client.send("live", "wait")
    director.run("live")
    client.interrupt("idle")
    client.stop("other", "live")
    client.stop("other")
    client.interrupt("other")
    client.pause("third")
    client.play("third", "fourth", cid="once")
    client.play("third", "fourth", cid="once")
    client.pause(everywhere=True)
    client.play(everywhere=True)
    for page in pages:
        cycle = {"cycle_seconds_count", "messages_total stopped"}
        heard = {
            "signals_heard_total interrupt idle": 1,
            "signals_heard_total interrupt held": 1,
            "signals_heard_total stop applied": 2,
            "signals_heard_total stop already": 1,
            "signals_heard_total pause applied": 2,
            "signals_heard_total play applied": 2,
            "signals_heard_total play already": 1,
            "signal_delay_seconds_count": 10,
        }
        scraped(page, lambda said: {name: by for name, by in said.since_start().items() if name not in cycle} == heard, "all")  # noqa: B023


def test_a_shielded_cycle_defers_and_a_signal_by_hand_counts_once(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys, paging: Paging
) -> None:
    watched = Watched(paging(running(director.agent(interruptible=False))))
    client.send("1", "wait")
    run = director.run("1")
    client.interrupt("1")
    redis.xadd(keys.control, {"mode": "interrupt", "room": "1"})
    watched.grown(
        {
            "signals_heard_total interrupt deferred": 1,
            "signals_heard_total interrupt already": 1,
            "signal_delay_seconds_count": 2,
        }
    )
    run.finish()


def test_what_is_read_once_more_is_not_counted_once_more(
    running: Running, director: Director, client: Client, paging: Paging
) -> None:
    """As after a fail-over to a replica that has not seen the last entry."""
    system = running(director.agent())
    watched = Watched(paging(system))
    client.stop("1")
    watched.grown({"signals_heard_total stop applied": 1, **HEARD})
    system._worker.control_seen = "99999999999999-0"
    fail(system, ControlListener)
    parts = started_with(system, "control")
    watched.grown({"restarts_total part": parts, "reconnects_total control": 1, "reconnects_total ready": 1})
    client.play("1")
    watched.grown({"signals_heard_total play applied": 1, **HEARD})


def test_the_delay_of_a_signal_is_how_long_it_lay_in_the_control_stream(
    running: Running, director: Director, client: Client, paging: Paging
) -> None:
    system = running(director.agent())
    page = paging(system)
    heard = threading.Event()
    with blocked(system._control):
        client.stop("1")
        heard.wait(1.0)  # how long the listener is kept from reading: it is what is measured
    said = scraped(page, lambda said: said.said("signal_delay_seconds_count") == 1, "it is heard")
    assert 0.3 < (said.said("signal_delay_seconds_sum") or 0) < WAIT_S


# What goes wrong. -------------------------------------------------------------------------------------


def fail(system: ActorSystem, part: type[Service]) -> None:
    """Have a part of the worker fail."""
    [ref] = [ref for ref in pykka.ActorRegistry.get_by_class(part) if loop_of(ref) is system._control]
    ref.tell(_RunEnded(RuntimeError("told to fail")))


def started_with(system: ActorSystem, part: str) -> int:
    """How many parts are started again when this one is."""
    root = system._root._actor_weakref()
    assert root is not None
    names = [child.name for child in root.children()]
    return len(names) - names.index(part)


def loop_of(ref: pykka.ActorRef[Any]) -> object:
    actor = ref._actor_weakref()
    return actor.loop if actor is not None else None


def test_restarts_by_reason(running: Running, director: Director, client: Client, paging: Paging) -> None:
    system = running(director.agent())
    watched = Watched(paging(system))
    gate = StoreGate.of(system)
    for reason, error in (("crashed", RuntimeError("a bug")), ("redis", RedisRefused("not now"))):
        hold = gate.before("claim")
        client.send(reason, "hello")
        hold.wait()
        hold.release(error)
        watched.grown({f"restarts_total {reason}": 1, "messages_total committed": 1, **CYCLE})
    fail(system, LoopWatch)
    watched.grown({"restarts_total part": started_with(system, "loop_watch")})


def test_a_lost_lease_and_the_effects_that_are_fenced_then(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys, paging: Paging
) -> None:
    """It is taken away, as if the worker had been suspended: another worker takes the room."""
    loses = running(director.agent(), lease=LONG_LEASE)
    lost = Watched(paging(loses))
    client.send("1", "wait")
    run = director.run("1")
    redis.delete(keys.worker(loses.name))
    page = paging(running(director.agent()))
    replay = director.run("1")
    assert page.scrape().said("messages_total", outcome="crashed") == 1
    with pytest.raises((CycleEnded, asyncio.CancelledError)):  # whichever reaches it first
        run.send("too late")
    run.wait_ended()
    lost.grown({"fenced_effects_total": 1, **CYCLE})
    fail(loses, WorkerLease)  # it beats when it is started again
    eventually(lambda: lost.growth().get("leases_lost_total") == 1, "it is noticed")
    replay.finish()


def test_a_commit_that_comes_too_late_is_a_fenced_effect(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys, paging: Paging
) -> None:
    loses = running(director.agent(), lease=LONG_LEASE)
    lost = Watched(paging(loses))
    client.send("1", "wait")
    run = director.run("1")
    redis.delete(keys.worker(loses.name))
    running(director.agent())
    replay = director.run("1")
    run.finish("too late")
    lost.grown({"fenced_effects_total": 1, **CYCLE})
    replay.finish()


def test_connections_that_were_opened_again(director: Director, redis_dir: Path, agent: str, paging: Paging) -> None:
    with (
        RedisServer(redis_dir) as server,
        ActorSystem(director.agent(), agent=agent, redis=server.url, name="w1") as system,
        redis_py.Redis.from_url(server.url) as admin,
    ):
        watched = Watched(paging(system))
        admin.client_kill_filter(_type="normal", skipme=True)
        again = {f"reconnects_total {connection}": 1.0 for connection in ("scripts", "control", "ready")}
        watched.grown(again)


def test_the_lag_of_a_loop_that_is_blocked_shows_while_it_is(running: Running, director: Director, paging: Paging) -> None:
    """The agent cannot hold up the scrape."""
    system = running(director.agent())
    page = paging(system)

    def lag(said: Scraped) -> float:
        return said.said("user_loop_lag_seconds") or 0.0

    with blocked(system._user):
        scraped(page, lambda said: lag(said) > 1.0, "it shows")
        assert page.scrape().said("ready") == 1
    scraped(page, lambda _: system._counts.lag._asked_s is None, "it answers")
    assert lag(page.scrape()) > 1.0  # for the next minute


def test_the_lag_is_the_longest_of_the_last_pings_and_of_the_one_that_is_owed() -> None:
    lag = Lag()
    assert lag.most_s() == 0.0
    lag.asked()
    lag._asked_s = (lag._asked_s or 0.0) - 5.0
    assert 5.0 <= lag.most_s() < WAIT_S
    lag.answered()
    assert 5.0 <= lag.most_s() < WAIT_S
    for _ in range(PINGS):
        lag.asked()
        lag.answered()
    assert lag.most_s() < 5.0
    lag.asked()
    lag.forget()
    lag.answered()
    assert lag.most_s() < 5.0


def test_an_observation_counts_in_the_first_bucket_that_it_fits_and_one_beyond_all_in_the_last() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 7.0):
        histogram.observe(value)
    assert (histogram.counts, histogram.total) == ([2, 1, 1], 10.0)


# How much work there is. ------------------------------------------------------------------------------


def test_rooms_by_phase_waiting_messages_and_dead_letters(
    running: Running, director: Director, client: Client, paging: Paging
) -> None:
    page = paging(running(director.agent(max_attempts=2, retry=Backoff(first=LONG_LEASE, most=LONG_LEASE)), max_rooms=2))

    def becomes(**wanted: float) -> None:
        def of(said: Scraped, name: str) -> float | None:
            if name in ("waiting", "waiting_held"):
                return said.said("waiting_messages", held=str(name.endswith("held")).lower())
            return said.said("dead_letters") if name == "dead" else said.said("rooms", phase=name)

        scraped(page, lambda said: all(of(said, name) == value for name, value in wanted.items()), str(wanted))

    becomes(queued=0, processing=0, backoff=0, held=0, idle=0, waiting=0, waiting_held=0, dead=0)
    client.send("fails", "fail")
    becomes(backoff=1, waiting=1)
    for room in ("live-1", "live-2"):
        client.send(room, "wait")
    runs = [director.run(room) for room in ("live-1", "live-2")]
    client.send("live-1", "next")
    for number in range(5):
        client.send(f"line-{number % 3}", "hello")
    client.stop("held")
    for _ in range(4):
        client.send("held", "hello")
    client.stop("nothing")
    becomes(queued=3, processing=2, backoff=1, held=1, idle=1, waiting=1 + 1 + 5, waiting_held=4, dead=0)
    client.interrupt("fails")
    client.play("held", "nothing")
    for run in runs:
        run.finish()
    becomes(queued=0, processing=0, backoff=0, held=0, idle=0, waiting=0, waiting_held=0, dead=0)


def test_dead_letters_until_they_are_put_back(running: Running, director: Director, client: Client, paging: Paging) -> None:
    page = paging(running(director.agent(max_attempts=1)))
    client.send("1", "fail")
    scraped(page, lambda said: said.said("dead_letters") == 1, "it is dead")
    client.stop("1")
    [letter] = client.dead_letters()
    client.requeue(letter.id)
    said = page.scrape()
    assert (said.said("dead_letters"), said.said("waiting_messages", held="true")) == (0, 1)


def test_whether_the_agent_is_held_and_how(running: Running, director: Director, client: Client, paging: Paging) -> None:
    page = paging(running(director.agent()))

    def held() -> tuple[float | None, float | None]:
        said = page.scrape()
        return said.said("agent_held", mode="stop"), said.said("agent_held", mode="pause")

    assert held() == (0, 0)
    client.pause(everywhere=True)
    assert held() == (0, 1)
    client.stop(everywhere=True)
    assert held() == (1, 0)
    client.play(everywhere=True)
    assert held() == (0, 0)


def test_the_age_of_the_oldest_is_of_messages_that_wait_not_of_those_at_work(
    running: Running, director: Director, client: Client, redis_url: str, keys: Keys, paging: Paging
) -> None:
    page = paging(running(director.agent()))

    def oldest() -> tuple[float | None, float | None]:
        said = page.scrape()
        return said.said("oldest_waiting_seconds", held="false"), said.said("oldest_waiting_seconds", held="true")

    def age(room: str, by_s: float) -> None:
        """Have the room's only message be older than it is."""
        with redis_py.Redis.from_url(redis_url) as raw:
            [(entry, row)] = raw.xrange(keys.messages(room))
            raw.delete(keys.messages(room))
            raw.xadd(keys.messages(room), row, id=f"{int(entry.partition(b'-')[0]) - int(by_s * 1e6)}-0")

    client.send("live", "wait")
    director.run("live")
    assert oldest() == (0, 0)
    client.stop("held")
    client.send("held", "hello")
    age("held", 5000)
    client.stop("held-2")
    client.send("held-2", "hello")
    waiting, held = oldest()
    assert waiting == 0
    assert held == pytest.approx(5000, abs=WAIT_S)
    client.send("live", "next")
    assert 0 < (oldest()[0] or 0) < WAIT_S
    with redis_py.Redis.from_url(redis_url) as raw:  # a room that waits behind a cycle that runs for long
        ms, us = raw.time()
        first, second = (f"{ms * 1_000_000 + us - ago_s * 1_000_000}-0" for ago_s in (9000, 7000))
        for entry in (first, second):
            raw.xadd(keys.messages("behind"), {"body": b"\xc0"}, id=entry)
        raw.hset(keys.room("behind"), mapping={"processing": first, "cycle": "1"})
        raw.sadd(keys.held, "behind")
    assert oldest()[1] == pytest.approx(7000, abs=WAIT_S)


def test_a_scrape_looks_at_few_rooms_however_many_there_are_and_estimates_the_rest(
    director: Director, redis_dir: Path, agent: str, paging: Paging
) -> None:
    with (
        RedisServer(redis_dir) as server,
        Client(agent, redis=server.url) as client,
        ActorSystem(director.agent(), agent=agent, redis=server.url, name="w1", max_rooms=1) as system,
        redis_py.Redis.from_url(server.url) as admin,
    ):
        client.send("live", "wait")
        director.run("live")
        asyncio.run(fill(server.url, agent, 1500))
        client.stop(*[f"held-{number}" for number in range(500)])
        page = paging(system)
        admin.config_resetstat()
        said = page.scrape()
        asked: Any = admin.info("commandstats")
        assert asked["cmdstat_xlen"]["calls"] <= 2 + 3 * ROOMS
        assert (said.said("rooms", phase="queued"), said.said("rooms", phase="held")) == (1500, 500)
        assert said.said("waiting_messages", held="false") == pytest.approx(2 * 1500, rel=0.01)
        assert said.said("waiting_messages", held="true") == pytest.approx(2 * 500, rel=0.01)
        assert (said.said("oldest_waiting_seconds", held="false") or 0) > 0
        client.stop(everywhere=True)


async def fill(url: str, agent: str, count: int) -> None:
    """Put two messages into each of so many rooms, and into a third as many that are to be held."""
    async with AsyncClient(agent, redis=url) as client:
        rooms = [f"line-{number}" for number in range(count)] + [f"held-{number}" for number in range(count // 3)]
        for _ in range(2):
            await asyncio.gather(*(client.send(room, "hello") for room in rooms))


def test_large_bodies_are_not_all_read_for_the_age_of_the_oldest(
    director: Director, redis_dir: Path, agent: str, paging: Paging
) -> None:
    """What is read of them has a bound; how many they are is an estimate then."""
    with (
        RedisServer(redis_dir) as server,
        Client(agent, redis=server.url) as client,
        ActorSystem(director.agent(), agent=agent, redis=server.url, name="w1") as system,
        redis_py.Redis.from_url(server.url) as admin,
    ):
        for number in range(20):
            client.stop(f"room-{number}")
            client.send(f"room-{number}", "x" * 1_000_000)
        page = paging(system)
        admin.config_resetstat()
        said = page.scrape()
        asked: Any = admin.info("commandstats")
        assert asked["cmdstat_xrange"]["calls"] < 10
        assert (said.said("rooms", phase="held"), said.said("waiting_messages", held="true")) == (20, 20)


# Where a collector is used. ---------------------------------------------------------------------------


def test_a_host_registers_systems_in_its_own_registry(running: Running, director: Director, client: Client, agent: str) -> None:
    systems = [running(director.agent(), name=name) for name in ("w1", "w2")]
    systems.append(running(director.agent(), agent=f"{agent}-other", name="w1"))
    registry = CollectorRegistry(auto_describe=True)
    registry.register(Collector(*systems))
    client.ask("1", "hello")

    def said() -> Scraped:
        return Scraped(generate_latest(registry).decode())

    eventually(lambda: sum(value for name, _, value in said().samples if name == "greenroom_messages_total") == 1, "it counts")
    names = [(name, *sorted(labels.items())) for name, labels, _ in said().samples]
    assert len(names) == len(set(names)), "each sample is there once"
    workers = {(labels["agent"], labels["worker"]) for name, labels, _ in said().samples if name == "greenroom_ready"}
    assert workers == {(agent, "w1"), (agent, "w2"), (f"{agent}-other", "w1")}
    with pytest.raises(ValueError, match="greenroom_messages"):
        registry.register(Collector())


def test_a_system_that_has_not_started_or_has_ended_is_scraped_all_the_same(
    director: Director, redis_url: str, agent: str, paging: Paging
) -> None:
    system = ActorSystem(director.agent(), agent=agent, redis=redis_url, name="w1")
    page = paging(system)
    said = page.scrape()
    assert (said.said("ready"), said.said("messages_total", outcome="committed")) == (0, 0)
    assert said.said("dead_letters") is None
    with system, Client(agent, redis=redis_url) as client:
        client.ask("1", "hello")
        scraped(page, lambda said: said.said("messages_total", outcome="committed") == 1, "it counts")
        assert (page.scrape().said("ready"), page.scrape().said("dead_letters")) == (1, 0)
    said = page.scrape()
    assert (said.said("ready"), said.said("messages_total", outcome="committed")) == (0, 1)
    assert said.said("dead_letters") is None


def test_no_metric_has_a_room_or_a_message_for_a_label_and_all_have_their_worker(
    running: Running, director: Director, client: Client, paging: Paging
) -> None:
    system = running(director.agent(max_attempts=1))
    page = paging(system)
    for room in ("room-xyz-1", "room-xyz-2"):
        client.send(room, "fail")
        client.stop(room)
    text = page.text()
    assert "room-xyz" not in text
    allowed = {"agent", "worker", "outcome", "mode", "reason", "connection", "phase", "held", "le"}
    for name, labels, _ in Scraped(text).samples:
        if name.startswith("greenroom_"):
            assert set(labels) <= allowed
            assert "agent" in labels


def test_a_user_who_may_not_ask_for_the_backlog_is_told_so_once_and_the_rest_is_there(
    director: Director, redis_dir: Path, agent: str, paging: Paging, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer(redis_dir) as server, redis_py.Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", "few", "on", ">pw", "~*", "&*", "+@all", "-srandmember")
        url = server.url.replace("redis://", "redis://few:pw@")
        with ActorSystem(director.agent(), agent=agent, redis=url, name="w1") as system:
            page = paging(system)
            for _ in range(3):
                said = page.scrape()
                assert (said.said("ready"), said.said("dead_letters")) == (1, None)
    assert sum("event=metrics.refused" in record.getMessage() for record in caplog.records) == 1
