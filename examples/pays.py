"""An agent that must not be interrupted while it pays, and must not pay twice: a shield, a step, its idempotency key, and what
to do when nobody knows whether the payment happened.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from greenroom import ActorSystem, Agent, Client, Cycle, Kind, Message, OutcomeUnknown
from greenroom.protocol.server import RedisServer


class Bank:
    """Stands for a payment service: it charges once a key, and finds a charge by its key. A folder is its books."""

    def __init__(self, books: Path) -> None:
        self._books = books

    async def charge(self, order: dict[str, Any], *, idempotency_key: str) -> str:
        """Charge the card.

        Raises:
            OutcomeUnknown: the line went dead before the bank had answered.
        """
        with (self._books / idempotency_key).open("x") as charge:
            charge.write(order["id"])
        if order["card"] == "the line goes dead":
            raise OutcomeUnknown("pay")  # a time-out, say: it may have happened or not, so it must not count as failed
        await asyncio.sleep(3600 if order["card"] == "the bank is slow" else 1.5)
        return f"receipt {idempotency_key[:8]}"

    async def find_or_charge(self, order: dict[str, Any], *, idempotency_key: str) -> str:
        """What became of a charge that nobody knows of; if nothing, charge."""
        if (self._books / idempotency_key).exists():
            return f"receipt {idempotency_key[:8]}, found"
        return await self.charge(order, idempotency_key=idempotency_key)

    def charges(self) -> list[str]:
        return sorted(file.read_text() for file in self._books.iterdir())


class Checkout(Agent):
    bank: Bank

    async def respond(self, message: Message, cycle: Cycle) -> AsyncIterator[str]:
        async with cycle.shield():  # an interrupt or a stop waits for the end of this block: its receipt says deferred
            yield "Paying … "
            yield f"paid, {await self.pay(cycle, message.body)}. "
        yield "Your parcel leaves today."  # this may be interrupted again

    async def pay(self, cycle: Cycle, order: dict[str, Any]) -> Any:
        try:
            return await cycle.step("pay", self.bank.charge, order)
        except OutcomeUnknown:  # in this try or in one before: a worker died in the middle
            return await cycle.step("pay", self.bank.find_or_charge, order, if_unknown="again")


def worker(url: str, books: str) -> None:
    Checkout.bank = Bank(Path(books))
    with ActorSystem(Checkout, agent="shop", redis=url, name="till") as system:
        system.wait()


def start_worker(url: str, books: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, url, str(books)])


def said(client: Client, room: str) -> str:
    """All that the customer heard, once that has ended."""
    for output in client.outputs(room, follow=True):
        if output.kind in (Kind.REPLY, Kind.ABORTED):
            break
    return "".join(output.body or f"({output.kind}) " for output in client.outputs(room) if output.kind is not Kind.REPLY)


def wait_for_charge(bank: Bank, order: str) -> None:
    while order not in bank.charges():
        time.sleep(0.01)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder, "redis")) as server:
        books = Path(folder, "books")
        books.mkdir()
        bank, till = Bank(books), start_worker(server.url, books)
        try:
            with Client("shop", redis=server.url) as client:
                client.send("ann", {"id": "interrupted", "card": "good"})
                wait_for_charge(bank, "interrupted")
                print("the interrupt was:  ", client.interrupt("ann")[0].outcome)
                print("ann heard:          ", said(client, "ann"))

                print("bob heard:          ", client.ask("bob", {"id": "dead line", "card": "the line goes dead"}))

                client.send("cid", {"id": "killed", "card": "the bank is slow"})
                wait_for_charge(bank, "killed")
                till.kill()  # the charge is in the bank's books, and its step has no result
                till.wait()
                till = start_worker(server.url, books)
                print("cid heard:          ", said(client, "cid"))
                print("charged:            ", ", ".join(bank.charges()))
        finally:
            till.kill()
            till.wait()


if __name__ == "__main__":
    worker(*sys.argv[1:]) if sys.argv[1:] else main()
