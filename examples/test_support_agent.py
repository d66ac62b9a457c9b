"""Tests of ``support_agent.py``: what its author would write, with pytest. ``docs/testing.md`` says more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import support_agent
from support_agent import Support

from greenroom import Cycle, Message
from greenroom.testing import Stage, running

PARCEL = "Your parcel left our depot this morning and the courier has it on today's round. "


class Stalling(Support):
    """As a model that hangs in the middle of its first answer."""

    stalls = True

    async def respond(self, message: Message, cycle: Cycle) -> AsyncIterator[str]:
        async for word in super().respond(message, cycle):
            yield word
            if word == "parcel " and Stalling.stalls:
                Stalling.stalls = False
                await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def fast_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support_agent, "WORD_S", 0)


@pytest.fixture
def stage() -> Iterator[Stage]:
    """The agent in the middle of an answer to room 42: "Your parcel "."""
    Stalling.stalls = True
    with running(Stalling) as stage:
        stage.send("42", "Where is my parcel?")
        stage.wait_output("42", body="parcel ")
        yield stage


def test_it_answers_word_by_word() -> None:
    with running(Support) as stage:
        outputs = list(stage.ask("42", "Where is my parcel?", stream=True))
    assert [output.body for output in outputs[:3]] == ["Your ", "parcel ", "left "]
    assert outputs[-1].kind == "reply"


def test_it_says_so_when_a_customer_changes_the_subject() -> None:
    with running(Support) as stage:
        assert stage.ask("42", "Where is my parcel?") == PARCEL
        assert stage.ask("42", "And my invoice?").startswith("From the delivery to the invoice: The invoice is on its way")
        assert stage.ask("43", "And my invoice?").startswith("The invoice")


def test_of_an_answer_that_was_interrupted_it_remembers_nothing(stage: Stage) -> None:
    stage.interrupt("42", reason="that is not what I asked")
    stage.wait_output("42", "aborted")
    assert [output.body for output in stage.outputs("42")] == ["Your ", "parcel ", None]
    assert stage.ask("42", "My invoice, please").startswith("The invoice")


def test_a_stopped_answer_is_given_anew_after_play(stage: Stage) -> None:
    stage.stop("42")
    stage.wait_event("cycle.stopped", "42")
    stage.play("42")
    reply = stage.wait_output("42", "reply")
    assert "".join(output.body for output in stage.outputs("42") if output.ticket == reply.ticket and output.body) == PARCEL


def test_a_customer_gets_the_whole_answer_although_the_worker_crashes(stage: Stage) -> None:
    stage.crash()
    stage.restart()
    reply = stage.wait_output("42", "reply")
    assert stage.wait_event("cycle.committed", "42").attempt == 2
    assert "".join(output.body for output in stage.outputs("42") if output.ticket == reply.ticket and output.body) == PARCEL
