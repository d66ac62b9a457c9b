"""Only type-checks: what an ask answers, and what it streams, of both clients and of their rooms."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import Any, assert_type

from greenroom import AsyncClient, Client, Output


async def asynchronous(client: AsyncClient) -> None:
    reply = await client.ask("42", "hi")
    assert_type(reply, Any)
    assert_type(await client.ask("42", "hi", stream=False, timeout=None), Any)
    async for output in client.ask("42", "hi", stream=True):
        assert_type(output, Output)
        assert_type(output.final, bool)
    async with aclosing(client.ask("42", "hi", stream=True, key="mine")) as outputs:
        assert_type(outputs, AsyncGenerator[Output, None])
    assert_type(await client.room("42").ask("hi"), Any)
    async for output in client.room("42").ask("hi", stream=True):
        assert_type(output, Output)


def sync(client: Client) -> None:
    assert_type(client.ask("42", "hi"), Any)
    for output in client.ask("42", "hi", stream=True):
        assert_type(output, Output)
    assert_type(client.ask("42", "hi", stream=True, timeout=1), Generator[Output, None, None])
    assert_type(client.room("42").ask("hi"), Any)
    for output in client.room("42").ask("hi", stream=True):
        assert_type(output, Output)


async def misused(client: AsyncClient) -> None:
    await client.ask("42", "hi", stream=True)  # type: ignore[misc]  # a stream is iterated
    async for _ in client.ask("42", "hi"):  # type: ignore[attr-defined]  # a reply is awaited
        pass
