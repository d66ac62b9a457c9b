"""An agent that is interrupted apologises, and remembers what it had been saying: what ``on_interrupt`` returns is the last
that is heard of its answer, and what it changes in the state is committed with the interrupt.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from pydantic import BaseModel

from greenroom import ActorSystem, Agent, Client, Cycle, Interruption, Kind, Message
from greenroom.protocol.server import RedisServer

RULES = "A refund takes three working days, unless the parcel is late, or broken, or lost, or not yours;"


class Memory(BaseModel):
    """What the agent keeps of a conversation. Every field wants a default: a new room begins with that."""

    was_saying: str = ""


class Talkative(Agent):
    """Explains the rules of refunds, for ever: it has to be interrupted."""

    State = Memory

    async def respond(self, message: Message, cycle: Cycle) -> AsyncIterator[str]:
        if cycle.state.was_saying:
            yield f"I had been saying: {cycle.state.was_saying}"
            cycle.state.was_saying = ""
            return
        for word in itertools.cycle(RULES.split()):
            await asyncio.sleep(0.02)  # stands for the model
            yield f"{word} "

    async def on_interrupt(self, interruption: Interruption, state: Memory) -> str:
        state.was_saying = "".join(interruption.sent)  # what the customer has heard, and nothing else
        return "Sorry, I was saying something. Please go on."


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        RedisServer(Path(folder)) as server,
        ActorSystem(Talkative, agent="support", redis=server.url),
        Client("support", redis=server.url) as client,
    ):
        client.send("42", "How long does a refund take?")
        heard: list[str] = []
        for output in client.outputs("42", follow=True):
            if output.kind is Kind.ABORTED:
                break
            heard.append(output.body)
            if len(heard) == 8:
                client.interrupt("42", reason="the customer speaks")
        print("the customer heard: ", "".join(heard[:-1]))
        print("and then:           ", heard[-1])
        print("asked what it said: ", client.ask("42", "What did you say?"))


if __name__ == "__main__":
    main()
