"""Steps: done once for a message, however often it is replayed; and what is not known is said to be so (row 25)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from greenroom import Agent, Client, Cycle, InvalidBody, Message, OutcomeUnknown, ThreadCycle, idempotent
from integration.agents import AT_ONCE, WAIT_S, StoreGate, eventually
from integration.conftest import Running
from integration.replays import BOTH, Calls, Hanging, Stage, step

REPLAYS = pytest.mark.parametrize("how", ["stop", "crash", "fail"])


@BOTH
@REPLAYS
def test_a_step_that_is_done_answers_a_replay_without_being_called_again(how: str, threaded: bool, stage: Stage) -> None:
    calls = Calls()
    run = stage.send()
    assert step(run, "charge", calls.charge, 7) == "charged 7"
    again = stage.replay(run, how)
    assert step(again, "charge", calls.charge, 8) == "charged 7"
    assert step(again, "more", calls.charge, 9) == "charged 9"
    third = stage.replay(again, "stop")
    assert [step(third, name, calls.charge, 0) for name in ("charge", "more")] == ["charged 7", "charged 9"]
    assert calls.made == [7, 9]


def kinds(calls: Calls) -> list[type[Agent]]:
    """An agent of each kind whose handler fails once, after its first step."""

    def fail_once(message: Message) -> None:
        if message.attempt == 1:
            raise RuntimeError("once")

    class Coroutine(Agent):
        async def respond(self, message: Message, cycle: Cycle) -> Any:
            first = await cycle.step("first", calls.charge, 1)
            fail_once(message)
            return [first, await cycle.step("second", calls.charge, 2)]

    class AsyncGenerator(Agent):
        async def respond(self, message: Message, cycle: Cycle) -> AsyncIterator[Any]:
            first = await cycle.step("first", calls.charge, 1)
            fail_once(message)
            yield [first, await cycle.step("second", calls.charge, 2)]

    class Function(Agent):
        def respond(self, message: Message, cycle: ThreadCycle) -> Any:
            first = cycle.step("first", calls.charge, 1)
            fail_once(message)
            return [first, cycle.step("second", calls.charge, 2)]

    class Generator(Agent):
        def respond(self, message: Message, cycle: ThreadCycle) -> Iterator[Any]:
            first = cycle.step("first", calls.charge, 1)
            fail_once(message)
            yield [first, cycle.step("second", calls.charge, 2)]

    return [Coroutine, AsyncGenerator, Function, Generator]


@pytest.mark.parametrize("kind", range(4), ids=["coroutine", "async generator", "function", "generator"])
def test_agents_of_every_kind_have_steps(kind: int, running: Running, client: Client) -> None:
    calls = Calls()
    agent_class = kinds(calls)[kind]
    agent_class.retry = AT_ONCE
    running(agent_class)
    reply = client.ask("1", "go")
    assert (reply if kind in (0, 2) else reply[0]) == ["charged 1", "charged 2"]
    assert calls.made == [1, 2]


# Begun, and the outcome is not known. ---------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("how", ["stop", "crash"])
def test_a_step_that_did_not_live_to_say_how_it_ended_is_unknown_to_every_replay_and_never_taken_for_not_begun(
    how: str, threaded: bool, stage: Stage
) -> None:
    calls, hanging = Calls(), Hanging(threaded)
    run = stage.send()
    hanging.begin(run)
    again = stage.replay(run, how, hanging.go.set)
    with pytest.raises(OutcomeUnknown, match="charge") as caught:
        step(again, "charge", calls.charge, 7)
    assert (caught.value.step, [caught.value.idempotency_key]) == ("charge", hanging.keys)
    third = stage.replay(again, "fail")
    with pytest.raises(OutcomeUnknown):
        step(third, "charge", calls.charge, 7, if_unknown="raise")
    assert calls.made == []


@BOTH
def test_a_step_of_unknown_outcome_is_done_again_by_its_name_when_the_agent_says_so(threaded: bool, stage: Stage) -> None:
    calls, hanging = Calls(), Hanging(threaded)
    run = stage.send()
    hanging.begin(run)
    again = stage.replay(run, "stop", hanging.go.set)
    with pytest.raises(OutcomeUnknown):
        step(again, "charge", calls.keyed, 7)
    assert step(again, "charge", calls.keyed, 7, if_unknown="again") == "charged 7"
    third = stage.replay(again, "fail")
    assert step(third, "charge", calls.keyed, 8, if_unknown="again") == "charged 7"
    assert calls.made == hanging.keys


class Shop:
    def __init__(self) -> None:
        self.calls = Calls()

    @idempotent
    def method(self) -> Any:
        return self.calls.charge(7)

    @idempotent
    async def coroutine(self) -> Any:
        return self.calls.charge(7)

    @idempotent
    @staticmethod
    def static(calls: Calls) -> Any:
        return calls.charge(7)


@pytest.mark.parametrize("of", ["function", "method", "coroutine", "partial", "static"])
def test_a_step_of_unknown_outcome_is_done_again_when_its_function_is_marked_idempotent(of: str, stage: Stage) -> None:
    shop, hanging = Shop(), Hanging(threaded=False)
    functions: dict[str, Callable[..., Any]] = {
        "function": idempotent(lambda: shop.calls.charge(7)),
        "method": shop.method,
        "coroutine": shop.coroutine,
        "partial": partial(shop.method),
        "static": partial(shop.static, shop.calls),
    }
    run, function = stage.send(), functions[of]
    hanging.begin(run)
    again = stage.replay(run, "stop")
    with pytest.raises(OutcomeUnknown):
        step(again, "charge", function, if_unknown="raise")
    assert step(again, "charge", function) == "charged 7"
    assert shop.calls.made == [7]


@BOTH
def test_a_step_is_unknown_when_its_worker_dies_between_its_end_and_the_record(threaded: bool, stage: Stage) -> None:
    calls, gate = Calls(), StoreGate.of(stage.system)
    run = stage.send()

    def charge() -> str:
        holds.append(gate.before("step"))  # the one that is to record this
        return calls.charge(7)

    holds: list[Any] = []
    run.begin(lambda cycle: cycle.step("charge", charge))
    eventually(lambda: holds, "the step has been called")[0].wait()
    again = stage.replay(run, "crash")
    with pytest.raises(OutcomeUnknown):
        step(again, "charge", calls.charge, 7)
    assert calls.made == [7]


@BOTH
def test_an_outcome_that_the_function_itself_does_not_know_is_unknown_in_this_cycle_and_in_the_next(
    threaded: bool, stage: Stage
) -> None:
    calls = Calls()

    def lost(idempotency_key: str) -> None:
        calls.made.append(idempotency_key)
        raise OutcomeUnknown("the line went dead")

    run = stage.send()
    for function in (lost, calls.charge):  # the second is not called
        with pytest.raises(OutcomeUnknown) as caught:
            step(run, "charge", function)
        assert (caught.value.step, [caught.value.idempotency_key]) == ("charge", calls.made)
    again = stage.replay(run, "fail")
    with pytest.raises(OutcomeUnknown):
        step(again, "charge", lost)
    assert len(calls.made) == 1
    assert step(again, "charge", lambda: "found", if_unknown="again") == "found"


def test_a_step_that_the_handler_cancels_is_unknown_and_may_be_done_again_in_the_same_cycle(stage: Stage) -> None:
    calls, hanging = Calls(), Hanging(threaded=False)
    run = stage.send()

    async def impatient(cycle: Cycle) -> None:
        task = asyncio.create_task(cycle.step("charge", hanging.function))
        await asyncio.to_thread(hanging.begun.wait, WAIT_S)
        task.cancel()
        await asyncio.wait([task])

    run.do(impatient)
    with pytest.raises(OutcomeUnknown):
        step(run, "charge", calls.charge, 7)
    assert step(run, "charge", calls.charge, 7, if_unknown="again") == "charged 7"


def test_a_step_that_is_cancelled_before_its_function_was_called_may_be_begun_again(stage: Stage) -> None:
    calls, gate = Calls(), StoreGate.of(stage.system)
    run = stage.send()
    hold = gate.after("step")

    async def impatient(cycle: Cycle) -> None:
        task = asyncio.create_task(cycle.step("charge", calls.charge, 6))
        await asyncio.to_thread(hold.wait)
        task.cancel()
        await asyncio.wait([task])

    run.do(impatient)
    hold.release()
    assert step(run, "charge", calls.charge, 7) == "charged 7"
    assert calls.made == [7]


@BOTH
def test_a_result_that_cannot_be_stored_is_an_error_and_its_outcome_unknown(threaded: bool, stage: Stage) -> None:
    calls = Calls()
    run = stage.send()
    for result in (object(), "x" * 2_000_000):
        with pytest.raises(InvalidBody):
            step(run, f"make-{type(result).__name__}", lambda result=result: result)
    with pytest.raises(OutcomeUnknown):
        step(stage.replay(run, "fail"), "make-str", calls.charge, 7)
    assert calls.made == []
