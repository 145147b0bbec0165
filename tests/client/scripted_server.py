"""A server that answers each request with bytes that the test has written down."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from splitserve.client.http.address import Address
from splitserve.client.http.api import Api


class Asked(NamedTuple):
    """A request as it came."""

    head: str
    body: bytes


Script = Callable[[Asked], list[bytes]]


def answer(status: str, body: bytes, *headers: str) -> bytes:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One event."""
    return b"data: " + data + b"\n\n"


@contextlib.asynccontextmanager
async def scripted(script: Script, closes_after: asyncio.Event | None = None) -> AsyncIterator[Api]:
    """Serve the pieces that the script returns, each written on its own, and then close the connection.

    With an event that waits for it.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            sizes = [line[16:] for line in head.splitlines() if line.lower().startswith("content-length: ")]
            body = await reader.readexactly(int(sizes[0])) if sizes else b""
            for piece in script(Asked(head, body)):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if closes_after is not None:
                await closes_after.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with Api(Address(f"http://127.0.0.1:{port}")) as api:
            yield api
    finally:
        server.close()
        await server.wait_closed()
