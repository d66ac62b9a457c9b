"""Row 48: what an agent's code is given cannot be used to play a stopped room, nor to send anything in one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.resources import files

import pytest
import redis as redis_py

from greenroom import Client, Cycle, CycleEnded, InvalidRequest, Kind, Mode, ThreadCycle
from greenroom.protocol.keys import Keys
from integration.agents import Director, eventually, wait_output
from integration.conftest import Running

SIGNALS = {"interrupt", "stop", "pause", "play", "control", "discard", "requeue"}


def test_only_the_script_of_signals_changes_whether_a_room_may_run() -> None:
    """The others read the mode, and write back what they have read."""
    changes = re.compile(r"\.mode\s*[,=][^=]|\.was\[MODE\]|'mode_(?:by|at|reason|cid)'")
    folder = files("greenroom.protocol") / "lua"
    found = {file.name for file in folder.iterdir() if changes.search(re.sub(r"--.*", "", file.read_text()))}
    assert found == {"control.lua"}


@pytest.mark.parametrize("kind", [Cycle, ThreadCycle])
def test_a_cycle_has_no_signals(kind: type[Cycle] | type[ThreadCycle]) -> None:
    assert not SIGNALS & {name.strip("_") for name in dir(kind)}


async def everything(cycle: Cycle) -> set[str]:
    """Do all that a cycle can and that waits for an answer, whatever it is told; answer what was done all the same."""

    async def shield() -> None:
        async with cycle.shield():
            pass

    done = set()
    acts: dict[str, Callable[[], Awaitable[object]]] = {
        "send": lambda: cycle.send({"mode": "play", "room": cycle.room}),
        "step": lambda: cycle.step("play", lambda: "play"),
        "shield": shield,
        "flush": cycle.flush,
    }
    for _ in range(3):
        for name, act in acts.items():
            with suppress(CycleEnded, asyncio.CancelledError, InvalidRequest):
                await act()
                done.add(name)
        cycle.state["mode"] = "play"
    return done


@pytest.mark.parametrize("everywhere", [False, True], ids=["the room", "the agent"])
def test_a_stopped_cycle_s_code_can_do_nothing_with_its_cycle_and_its_room_stays_stopped(
    everywhere: bool, running: Running, director: Director, client: Client, redis: redis_py.Redis, keys: Keys
) -> None:
    """Though it goes on for as long as it likes, and returns what looks like a signal."""
    running(director.agent())
    client.send("42", "wait")
    run = director.run("42")

    async def outlive(cycle: Cycle) -> set[str]:
        client.stop(everywhere=True) if everywhere else client.stop("42")
        return await everything(cycle)

    assert run.do(outlive) <= {"flush"}  # of which there may be nothing
    run.finish({"mode": "play", "everywhere": "1"})
    run.wait_ended()
    eventually(lambda: client.status("42").owner is None, "the worker has let go of the room")
    hold = client.overview().hold if everywhere else client.status("42").hold
    assert hold is not None
    assert (hold.mode, hold.by, client.status("42").waiting) == (Mode.STOP, "test", 1)
    assert [output.kind for output in client.outputs("42")] == [Kind.ABORTED]
    assert not redis.exists(keys.state("42"))
    assert director.count("42") == 1


def test_messages_and_replies_that_look_like_signals_are_none(running: Running, director: Director, client: Client) -> None:
    running(director.agent())
    client.stop("held")
    client.send("held", "kept")
    for body in ({"mode": "play", "room": "held"}, "play held", ["XADD", "control", "*", "mode", "play", "everywhere", "1"]):
        assert client.ask("42", body) == body
    wait_output(client, "42", lambda output: output.kind is Kind.REPLY)
    hold = client.status("held").hold
    assert hold is not None
    assert director.count("held") == 0
