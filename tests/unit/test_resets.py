"""A connection that was reset while nobody read it."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from redis import exceptions as redis_errors

from greenroom.protocol.connect import connect, is_lost

RESET = struct.pack("ii", 1, 0)  # to linger for 0 s: the connection's end is a reset


class Obliging(asyncio.Protocol):
    """A server to whom all is OK."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"+OK\r\n" * data.count(b"*"))


def test_a_write_to_a_connection_that_was_reset_fails_as_that_to_any_lost_one() -> None:
    async def main() -> None:
        made = Obliging()
        server = await asyncio.get_running_loop().create_server(lambda: made, "127.0.0.1", 0)
        redis = connect(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        connection = redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        await connection.connect()
        made.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        made.transport.abort()
        with pytest.raises(ConnectionResetError):
            await connection._reader.read()  # what redis-py would be told, if it asked
        with pytest.raises(redis_errors.ConnectionError) as raised:
            await connection.send_command("PING", check_health=False)
        assert is_lost(raised.value)
        assert not connection.is_connected
        server.close()
        await redis.aclose()

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await main()

    asyncio.run(bounded())
