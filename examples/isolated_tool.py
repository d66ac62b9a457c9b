"""An agent that runs its users' Python programs in child processes: whatever they do, an interrupt ends them, with all that
they have started, and the worker and its other rooms notice nothing.

That keeps them from being in the way. It is no sandbox: they have the worker's rights and see its files.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from datetime import timedelta

from greenroom import ActorSystem, Agent, Client, Interruption, Message, ThreadCycle
from greenroom.protocol.server import RedisServer

ENDLESS = """
import subprocess, time
subprocess.Popen(["sleep", "3600"])
while True:
    try:
        time.sleep(1)
    except BaseException:
        print("I will not end")
"""


class Tool(Agent):
    isolation = "process"
    max_processes = 2
    max_attempts = 1  # what failed once would fail again
    max_cycle = timedelta(minutes=5)
    abort_timeout = timedelta(seconds=0.2)  # nobody expects these programs to end by themselves

    def respond(self, message: Message, cycle: ThreadCycle) -> str:
        cycle.send(f"started in process {os.getpid()}")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(message.body, {"__name__": "program"})  # noqa: S102  # that is the tool
        return printed.getvalue()

    def on_interrupt(self, interruption: Interruption, state: object) -> str:
        return f"{interruption.code}, and {len(interruption.sent)} line of it was seen"


def run(client: Client, room: str, program: str) -> str:
    """What the program prints, or of what it has died."""
    *_, last = client.ask(room, program, stream=True)
    return last.error or str(last.body).strip()


def wait(client: Client, message: int, words: str) -> str:
    """The first output of the message, in ann's room, that has these words."""
    for output in client.outputs("ann", follow=True):
        if output.message == message and words in str(output.body):
            return str(output.body)
    raise AssertionError("following never ends")


def main(url: str) -> None:
    with ActorSystem(Tool, agent="tool", redis=url), Client("tool", redis=url) as client:
        print("a program:       ", run(client, "ann", "print(6 * 7)"))
        endless = client.send("ann", ENDLESS)
        wait(client, endless, "started in process")
        print("bob, meanwhile:  ", run(client, "bob", "print('hello')"))
        client.interrupt("ann")
        print("an endless one:  ", wait(client, endless, "was seen"))
        print("one that crashes:", run(client, "ann", "import os; os.abort()"))
        print("after all that:  ", run(client, "ann", "print('still here')"))


if __name__ == "__main__":  # a child process imports this program, to find Tool
    with tempfile.TemporaryDirectory() as folder, RedisServer(folder) as server:
        main(server.url)
