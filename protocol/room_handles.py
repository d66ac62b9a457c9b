"""One room of an agent, with the client's verbs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, Literal, overload

from .records import Output, Receipt, RoomStatus

if TYPE_CHECKING:
    from .client import AsyncClient
    from .sync_client import Client


class AsyncRoomHandle:
    """One room, with the client's verbs, as ``room`` of the client answers it. A signal answers one receipt.

    Attributes:
        id: the room's.
    """

    def __init__(self, client: AsyncClient, room: str) -> None:
        self._client = client
        self.id = room

    async def send(self, body: Any, *, key: str | None = None) -> int:
        return await self._client.send(self.id, body, key=key)

    @overload
    def ask(
        self, body: Any, *, stream: Literal[False] = False, timeout: float | None = 30.0, key: str | None = None
    ) -> Coroutine[Any, Any, Any]: ...
    @overload
    def ask(
        self, body: Any, *, stream: Literal[True], timeout: float | None = 30.0, key: str | None = None
    ) -> AsyncGenerator[Output, None]: ...
    def ask(
        self, body: Any, *, stream: bool = False, timeout: float | None = 30.0, key: str | None = None
    ) -> Coroutine[Any, Any, Any] | AsyncGenerator[Output, None]:
        if stream:
            return self._client.ask(self.id, body, stream=True, timeout=timeout, key=key)
        return self._client.ask(self.id, body, timeout=timeout, key=key)

    def outputs(self, *, after: str | None = None, follow: bool = False) -> AsyncIterator[Output]:
        return self._client.outputs(self.id, after=after, follow=follow)

    async def interrupt(
        self, *, message: int | None = None, reason: str = "", by: str | None = None, cid: str | None = None
    ) -> Receipt:
        return (await self._client.interrupt(self.id, message=message, reason=reason, by=by, cid=cid))[0]

    async def stop(self, *, reason: str = "", by: str | None = None, cid: str | None = None) -> Receipt:
        return (await self._client.stop(self.id, reason=reason, by=by, cid=cid))[0]

    async def pause(self, *, reason: str = "", by: str | None = None, cid: str | None = None) -> Receipt:
        return (await self._client.pause(self.id, reason=reason, by=by, cid=cid))[0]

    async def play(self, *, reason: str = "", by: str | None = None, cid: str | None = None) -> Receipt:
        return (await self._client.play(self.id, reason=reason, by=by, cid=cid))[0]

    async def discard(self, message: int) -> None:
        await self._client.discard(self.id, message)

    async def status(self) -> RoomStatus:
        return await self._client.status(self.id)

    async def last_output(self) -> Output | None:
        return await self._client.last_output(self.id)


class RoomHandle:
    """One room, with the client's verbs, as ``room`` of the client answers it. A signal answers one receipt.

    Attributes:
        id: the room's.
    """

    def __init__(self, client: Client, room: str) -> None:
        self._client = client
        self.id = room

    def send(self, body: Any, *, key: str | None = None) -> int:
        return self._client.send(self.id, body, key=key)

    @overload
    def ask(
        self, body: Any, *, stream: Literal[False] = False, timeout: float | None = 30.0, key: str | None = None
    ) -> Any: ...
    @overload
    def ask(
        self, body: Any, *, stream: Literal[True], timeout: float | None = 30.0, key: str | None = None
    ) -> Generator[Output, None, None]: ...
    def ask(self, body: Any, *, stream: bool = False, timeout: float | None = 30.0, key: str | None = None) -> Any:
        if stream:
            return self._client.ask(self.id, body, stream=True, timeout=timeout, key=key)
        return self._client.ask(self.id, body, timeout=timeout, key=key)

    def outputs(self, *, after: str | None = None, follow: bool = False) -> Iterator[Output]:
        return self._client.outputs(self.id, after=after, follow=follow)

    def interrupt(
        self, *, message: int | None = None, reason: str = "", by: str | None = None, cid: str | None = None
    ) -> Receipt:
        return self._client.interrupt(self.id, message=message, reason=reason, by=by, cid=cid)[0]

    def stop(self, *, reason: str = "", by: str | None = None, cid: str | None = None) -> Receipt:
        return self._client.stop(self.id, reason=reason, by=by, cid=cid)[0]

    def pause(self, *, reason: str = "", by: str | None = None, cid: str | None = None) -> Receipt:
        return self._client.pause(self.id, reason=reason, by=by, cid=cid)[0]

    def play(self, *, reason: str = "", by: str | None = None, cid: str | None = None) -> Receipt:
        return self._client.play(self.id, reason=reason, by=by, cid=cid)[0]

    def discard(self, message: int) -> None:
        self._client.discard(self.id, message)

    def status(self) -> RoomStatus:
        return self._client.status(self.id)

    def last_output(self) -> Output | None:
        return self._client.last_output(self.id)
