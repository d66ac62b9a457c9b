"""An agent whose methods cannot be called as they will be is refused before it has failed a message."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from greenroom import Agent, AgentError
from greenroom.actors.agent import inspect_agent


def agent_with(**methods: Any) -> type[Agent]:
    def respond(self: Agent, message: Any, cycle: Any) -> None: ...

    return type("Support", (Agent,), {"respond": respond, **methods})


async def without_cycle(self: Agent, message: Any) -> None: ...
def too_many(self: Agent, message: Any, cycle: Any, more: Any) -> None: ...
def by_name_only(self: Agent, message: Any, *, cycle: Any) -> None: ...
def hook(self: Agent, interruption: Any) -> None: ...
def upgrade(self: Agent, state: Any) -> None: ...
def with_model(self: Agent, model: Any) -> None: ...


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ({"respond": without_cycle}, r"Support\.respond: want respond\(self, message, cycle\): too many positional"),
        ({"respond": too_many}, r"Support\.respond: .*'more'"),
        ({"respond": by_name_only}, r"Support\.respond: "),
        ({"on_interrupt": hook}, r"Support\.on_interrupt: want on_interrupt\(self, interruption, state\): "),
        ({"on_stop": hook}, r"Support\.on_stop: want on_stop\(self, interruption, state\): "),
        ({"upgrade_state": upgrade}, r"Support\.upgrade_state: want upgrade_state\(self, state, version\): "),
        ({"__init__": with_model}, r"Support\(\): a worker makes its agent without arguments: .*'model'"),
    ],
)
def test_what_cannot_be_called_is_refused_with_what_is_wrong(methods: dict[str, Any], words: str) -> None:
    with pytest.raises(AgentError, match=words):
        inspect_agent(agent_with(**methods))


def any_arguments(self: Agent, *arguments: Any, **more: Any) -> None: ...
@functools.wraps(too_many)
def decorated(self: Agent, *arguments: Any) -> None: ...


def other_names(agent: Agent, m: Any, c: Any = None) -> None: ...
def with_default(self: Agent, model: Any = None) -> None: ...


@pytest.mark.parametrize(
    "methods",
    [
        {"respond": any_arguments},
        {"respond": other_names},
        {"respond": decorated},
        {"respond": staticmethod(lambda message, cycle: None)},
        {"respond": functools.partialmethod(too_many, more=1)},
        {"__init__": with_default},
        {"__init__": any_arguments},
    ],
)
def test_what_can_be_called_by_other_names_or_is_no_plain_function_is_taken(methods: dict[str, Any]) -> None:
    assert inspect_agent(agent_with(**methods)).agent_class.__name__ == "Support"
