"""A room's durable state: a dict or a model, committed with the message or not at all (rows 24 and 50)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
import redis as redis_py
from pydantic import BaseModel, ConfigDict, Field, computed_field

from greenroom import AgentError, Client, Interruption, Kind
from greenroom.actors.agent import inspect_agent
from greenroom.protocol import codec
from greenroom.protocol.keys import Keys
from integration.agents import Director, Run, settled, wait_event, wait_for
from integration.conftest import Running
from integration.replays import BOTH, Stage

TYPED = pytest.mark.parametrize("typed", [False, True], ids=["dict", "model"])


class Line(BaseModel):
    text: str = Field(default="", alias="said")
    words: int = 0


class Talk(BaseModel):
    """Of every type that a state is likely to have."""

    model_config = ConfigDict(strict=True)

    turns: int = Field(default=0, ge=0)
    lines: list[Line] = []
    tags: set[str] = set()
    price: Decimal = Decimal(0)
    since: datetime | None = None
    wait: timedelta = timedelta(0)
    order: UUID | None = None
    by_turn: dict[int, str] = {}
    ratio: float = 0.0
    topic: str = Field(default="", alias="about")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def length(self) -> int:
        return len(self.lines)


def change(state: Any, turns: int) -> None:
    if isinstance(state, Talk):
        state.turns = turns
        state.lines.append(Line(said=f"turn {turns}"))
    else:
        state["turns"] = turns
        state.setdefault("lines", []).append(f"turn {turns}")


def turns_of(state: Any) -> tuple[int, int]:
    """The number that the last committed cycle put there, and how many have put a line there."""
    return (state.turns, len(state.lines)) if isinstance(state, Talk) else (state.get("turns", 0), len(state.get("lines", [])))


def commit(run: Run, act: Callable[[Any], object], client: Client) -> None:
    run.do(lambda cycle: act(cycle.state))
    run.finish()
    assert settled(client, run.room, run.ticket).kind is Kind.REPLY


def dead(running: Running, director: Director, client: Client, act: Callable[[Any], object], **options: Any) -> str:
    """Have a cycle do that, which cannot be committed; answer with which error it failed."""
    running(director.agent(max_attempts=1, **options))
    client.send("1", "wait")
    run = director.run("1")
    run.do(act)
    run.finish()
    error = settled(client, "1", run.ticket).error
    assert error is not None
    return error


# Committed or not at all. ---------------------------------------------------------------------------------------


@TYPED
@BOTH
@pytest.mark.parametrize("how", ["fail", "stop", "crash", "interrupt"])
def test_state_is_that_of_the_last_commit_whatever_ended_the_cycles_after_it(
    how: str, threaded: bool, typed: bool, running: Running, director: Director, client: Client
) -> None:
    stage = Stage(running, director, client, threaded=threaded, State=Talk if typed else None)
    commit(stage.send(), lambda state: change(state, 1), client)
    lost = stage.send()
    lost.do(lambda cycle: change(cycle.state, 2))
    if how == "interrupt":
        client.interrupt("1")
        after = stage.send()
    else:
        after = stage.replay(lost, how)
    assert turns_of(after.do(lambda cycle: cycle.state)) == (1, 1)
    commit(after, lambda state: change(state, 3), client)
    assert turns_of(stage.send().do(lambda cycle: cycle.state)) == (3, 2)


def test_a_model_comes_back_as_it_was_whatever_its_types(running: Running, director: Director, client: Client) -> None:
    talk = Talk(
        turns=3,
        lines=[Line(said="hello", words=1)],
        tags={"a", "b"},
        price=Decimal("2.50"),
        since=datetime(2026, 2, 3, 4, 5, tzinfo=UTC),
        wait=timedelta(seconds=1.5),
        order=UUID(int=7),
        by_turn={1: "hello"},
        ratio=0.5,
        about="parcels",
    )
    running(director.agent(State=Talk))
    client.send("1", "wait")
    first = director.run("1")
    first.do(lambda cycle: setattr(cycle, "state", talk.model_copy(deep=True)))
    first.finish()
    client.send("1", "wait")
    assert director.run("1").do(lambda cycle: cycle.state) == talk


@TYPED
def test_rooms_never_share_a_state_not_even_the_default(
    typed: bool, running: Running, director: Director, client: Client
) -> None:
    running(director.agent(State=Talk if typed else None))
    for room in ("1", "2"):
        client.send(room, "wait")
    one, two = director.run("1"), director.run("2")
    one.do(lambda cycle: change(cycle.state, 1))
    assert turns_of(two.do(lambda cycle: cycle.state)) == (0, 0)
    one.finish()
    settled(client, "1", one.ticket)
    client.send("3", "wait")
    assert turns_of(director.run("3").do(lambda cycle: cycle.state)) == (0, 0)


@TYPED
@BOTH
def test_what_a_leftover_task_or_thread_changes_after_the_commit_leaves_no_trace(
    threaded: bool, typed: bool, running: Running, director: Director, client: Client
) -> None:
    committed, changed = threading.Event(), threading.Event()

    def late(state: Any) -> None:
        wait_for(committed, "the cycle is committed")
        change(state, 99)
        changed.set()

    def leave_behind(cycle: Any) -> None:
        if threaded:
            threading.Thread(target=late, args=(cycle.state,), daemon=True).start()
        else:
            left.append(asyncio.create_task(asyncio.to_thread(late, cycle.state)))

    left: list[asyncio.Task[None]] = []
    running(director.agent(threaded=threaded, State=Talk if typed else None))
    client.send("1", "wait")
    client.send("1", "wait")
    first = director.run("1")
    first.do(leave_behind)
    first.do(lambda cycle: change(cycle.state, 1))
    first.finish()
    second = director.run("1")
    committed.set()
    wait_for(changed, "the leftover has changed what was the state")
    assert turns_of(second.do(lambda cycle: cycle.state)) == (1, 1)
    second.finish()
    client.send("1", "wait")
    assert turns_of(director.run("1").do(lambda cycle: cycle.state)) == (1, 1)


def test_a_hook_gets_the_model_and_what_it_changes_is_checked_as_a_cycles_is(
    running: Running, director: Director, client: Client
) -> None:
    """row 22"""

    def on_interrupt(_: object, told: Interruption, state: Talk) -> None:
        state.turns = 7 if told.reason == "good" else -1

    running(director.agent(State=Talk, on_interrupt=on_interrupt))
    for reason in ("good", "bad"):
        client.send("1", "wait")
        director.run("1")
        client.interrupt("1", reason=reason)
    client.send("1", "wait")
    assert director.run("1").do(lambda cycle: cycle.state.turns) == 7


@TYPED
def test_a_state_that_says_no_more_than_a_new_rooms_leaves_no_key(
    typed: bool, running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """Invariant 10"""
    running(director.agent(State=Talk if typed else None))
    assert client.ask("1", "leaves it as it is") == "leaves it as it is"
    assert not redis.exists(keys.state("1"))
    client.send("1", "wait")
    commit(director.run("1"), lambda state: change(state, 1), client)
    assert redis.exists(keys.state("1"))
    client.send("1", "wait")
    run = director.run("1")
    run.do(lambda cycle: setattr(cycle, "state", Talk() if typed else {}))
    run.finish()
    settled(client, "1", run.ticket)
    assert not redis.exists(keys.state("1"))


# Versions. ------------------------------------------------------------------------------------------------------


def store(redis: redis_py.Redis, keys: Keys, version: int, fields: dict[str, Any]) -> None:
    redis.set(keys.state("1"), codec.encode([version, fields]))


def stored(keys: Keys, redis_url: str) -> Any:
    with redis_py.Redis.from_url(redis_url) as raw:
        return codec.decode(raw.get(keys.state("1")))


class Renamed(BaseModel):
    name: str = ""


def upgrade(_: object, state: dict[str, Any], version: int) -> dict[str, Any]:
    return {"name": f"{state['first']} of version {version}"}


@TYPED
def test_an_older_state_goes_through_upgrade_state_and_is_stored_as_todays_with_the_next_commit(
    typed: bool, running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys, redis_url: str
) -> None:
    store(redis, keys, 1, {"first": "Ann"})
    running(director.agent(State=Renamed if typed else None, state_version=3, upgrade_state=upgrade))
    client.send("1", "wait")
    run = director.run("1")
    got = run.do(lambda cycle: cycle.state)
    assert (got.name if typed else got["name"]) == "Ann of version 1"
    assert stored(keys, redis_url) == [1, {"first": "Ann"}]
    run.finish()
    settled(client, "1", run.ticket)
    assert stored(keys, redis_url) == [3, {"name": "Ann of version 1"}]


@pytest.mark.parametrize("trouble", ["no upgrade", "does not fit"])
def test_a_state_that_cannot_be_read_fails_the_attempt_with_a_clear_error_and_loses_nothing(
    trouble: str,
    running: Running,
    director: Director,
    client: Client,
    redis: redis_py.Redis,
    keys: Keys,
    redis_url: str,
    agent: str,
) -> None:
    cases: dict[str, tuple[int, str, dict[str, Any]]] = {
        "no upgrade": (1, "no upgrade_state method", {}),
        "does not fit": (3, "name: Input should be a valid string", {}),
    }
    version, said, options = cases[trouble]
    store(redis, keys, version, {"name": 5})
    running(director.agent(State=Renamed, state_version=3, max_attempts=2, **options))
    message = client.send("1", "wait")
    wait_event(redis, agent, "cycle.failed", room="1", count=2)
    wait_event(redis, agent, "message.dead", room="1")
    [letter] = client.dead_letters()
    assert (letter.message, letter.attempts, said in letter.error) == (message, 2, True), letter.error
    assert stored(keys, redis_url) == [version, {"name": 5}]
    assert director.runs == []


# What is refused. -----------------------------------------------------------------------------------------------


def assign(value: Any) -> Callable[[Any], None]:
    return lambda cycle: setattr(cycle, "state", value)


def test_a_state_of_another_type_fails_the_attempt(running: Running, director: Director, client: Client) -> None:
    assert "is to be a dict, and is a list" in dead(running, director, client, assign([1]))


def test_a_state_of_another_model_fails_the_attempt(running: Running, director: Director, client: Client) -> None:
    assert "is to be a Talk, and is a dict" in dead(running, director, client, assign({}), State=Talk)


def test_a_value_that_the_model_would_not_read_again_is_not_committed(
    running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """It would fail every message after it."""

    def spoil(cycle: Any) -> None:
        cycle.state.turns = -1

    assert "turns: Input should be greater than" in dead(running, director, client, spoil, State=Talk)
    assert not redis.exists(keys.state("1"))
    assert client.ask("1", "next") == "next"


def test_a_state_larger_than_its_limit_fails_the_attempt(running: Running, director: Director, client: Client) -> None:
    error = dead(running, director, client, lambda cycle: cycle.state.update(text="x" * 200), state_limit=100)
    assert "limit of 100" in error
    client.send("1", "wait")
    commit(director.run("1"), lambda state: state.update(text="x" * 50), client)


class NoDefault(BaseModel):
    name: str


class TwoNames(BaseModel):
    name: str = Field(default="", serialization_alias="nom")


class NotStorable(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    lock: object = object()


@pytest.mark.parametrize(
    ("model", "said"),
    [(NoDefault, "name: Field required"), (TwoNames, "State.name"), (NotStorable, "cannot be stored"), (int, "pydantic model")],
)
def test_a_model_that_cannot_be_a_state_is_refused_when_the_agent_is_made(model: Any, said: str, director: Director) -> None:
    """row 45"""
    with pytest.raises(AgentError, match=said):
        inspect_agent(director.agent(State=model))
