"""Agents that resume where they were: over an interrupt, by the state that ``on_interrupt`` writes; over a stop and a crash of
the worker, by steps, of which each is done once.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from pydantic import BaseModel

from greenroom import ActorSystem, Agent, Client, Cycle, Interruption, Kind, Message, Output, idempotent
from greenroom.protocol.server import RedisServer

TALE = [f"part {number}," for number in range(1, 101)]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October"]


# Over an interrupt: by state. ----------------------------------------------------------------------------------


class Bookmark(BaseModel):
    told: int = 0


class Storyteller(Agent):
    """Tells its tale from the bookmark on; "continue" goes on, anything else begins anew."""

    State = Bookmark

    async def respond(self, message: Message, cycle: Cycle) -> AsyncIterator[str]:
        if message.body != "continue":
            cycle.state.told = 0
        for part in TALE[cycle.state.told :]:
            await asyncio.sleep(0.05)
            yield part
            cycle.state.told += 1  # committed with the whole tale; what an interrupt commits, the hook says

    async def on_interrupt(self, interruption: Interruption, state: Bookmark) -> None:
        before = state.told if interruption.message.body == "continue" else 0
        state.told = before + len(interruption.sent)


def over_an_interrupt(url: str) -> None:
    with ActorSystem(Storyteller, agent="tales", redis=url), Client("tales", redis=url) as client:
        print("at first:           ", *listen(client, "Tell me a tale"))
        print("then:               ", *listen(client, "continue"))


def listen(client: Client, body: str) -> list[str]:
    """Send that, interrupt the answer after three parts, and answer all that was heard."""
    message, heard = client.send("ann", body), list[str]()
    for output in client.outputs("ann", follow=True):
        if output.message == message and output.kind is Kind.ABORTED:
            break
        if output.message == message:
            heard.append(output.body)
            if len(heard) == 3:
                client.interrupt("ann", message=message)
    return heard


# Over a stop and a crash: by steps. ----------------------------------------------------------------------------


@idempotent  # to write it twice harms nobody: if a worker dies in the middle, it is written again
def write(month: str) -> str:
    time.sleep(0.2)  # stands for the model; plain functions run in threads, also those of async agents
    return f"{month} (process {os.getpid()} at {time.time():.3f})"


class Reporter(Agent):
    """Writes a report, section by section. What is on record is not written again, whatever happened in between."""

    async def respond(self, message: Message, cycle: Cycle) -> AsyncIterator[str]:
        for month in MONTHS:
            yield await cycle.step(month, write, month)


def worker(url: str) -> None:
    with ActorSystem(Reporter, agent="reports", redis=url, name="writer") as system:
        system.wait()


def start_worker(url: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, url])


def over_a_stop_and_a_crash(url: str) -> None:
    process = start_worker(url)
    try:
        with Client("reports", redis=url) as client:
            client.send("2026", "Write the report")
            wait_for_section(client, 2)
            client.stop("2026", reason="lunch")
            client.play("2026")
            wait_for_section(client, 4)
            process.kill()
            process.wait()
            process = start_worker(url)  # under the same name, so it takes its rooms back at once
            report = the_reply(client)
        for cycle in dict.fromkeys(output.ticket for output in report):
            sections = [output.body for output in report if output.ticket == cycle and output.kind is Kind.CHUNK]
            print(f"a cycle sent {len(sections):2}:    ", ", ".join(sections))
    finally:
        process.kill()
        process.wait()


def wait_for_section(client: Client, number: int) -> None:
    for output in client.outputs("2026", follow=True):
        if str(output.body).startswith(MONTHS[number - 1]):
            return


def the_reply(client: Client) -> list[Output]:
    heard: list[Output] = []
    for output in client.outputs("2026", follow=True):
        heard.append(output)
        if output.kind is Kind.REPLY:
            break
    return heard


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder)) as server:
        over_an_interrupt(server.url)
        over_a_stop_and_a_crash(server.url)


if __name__ == "__main__":
    worker(sys.argv[1]) if sys.argv[1:] else main()
