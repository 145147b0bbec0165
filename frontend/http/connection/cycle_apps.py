"""What uvicorn's request cycle leaves out: where bodies end, and whether they can be read."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from splitserve.frontend.http.connection.uvicorn_adapter import Exchange
from splitserve.frontend.http.errors import HttpError


def close_delimited(app: ASGIApp, exchange: Exchange) -> ASGIApp:
    """Return an app whose bodies of unknown length end with the connection, as HTTP/1.0 has no chunks.

    Args:
        app: answers the request.
        exchange: the request; uvicorn itself would send chunks to every client.
    """

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        unbounded = False

        async def send_plain(message: Message) -> None:
            nonlocal unbounded
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message.get("headers", ())}
                unbounded = b"content-length" not in names
                if unbounded:
                    exchange.send_unframed()
            elif message["type"] == "http.response.body" and unbounded:
                exchange.expect_piece(len(message.get("body", b"")))
            await send(message)

        await app(scope, receive, send_plain)

    return run


def closing_unread(app: ASGIApp, exchange: Exchange) -> ASGIApp:
    """Return an app that closes the connection if it responds while the client waits for "100 Continue".

    The client may then send either its body or its next request, and nothing tells which one it is.
    """

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_checked(message: Message) -> None:
            if message["type"] == "http.response.start" and exchange.expects_continue:
                exchange.close_after()
            await send(message)

        await app(scope, receive, send_checked)

    return run


def with_faults(app: ASGIApp, fault: Callable[[], HttpError | None]) -> ASGIApp:
    """Return an app that gets an error on reading the body if the rest of it cannot be read.

    Args:
        app: answers the request.
        fault: returns what is wrong with the last chunks, None if nothing is.
    """

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_checked() -> Message:
            message = await receive()
            error = fault()
            if error is not None and message["type"] == "http.request" and message["more_body"]:
                raise error
            return message

        await app(scope, receive_checked, send)

    return run
