"""What uvicorn's request cycle leaves out: where bodies end, if they can be read, and other protocols."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from splitserve.frontend.http.connection.uvicorn_adapter import Exchange
from splitserve.frontend.http.errors import HttpError


def completed(app: ASGIApp, exchange: Exchange, fault: Callable[[], HttpError | None]) -> ASGIApp:
    """Return an app, wrapped to do what uvicorn leaves out if its request needs it.

    Args:
        app: answers the request.
        exchange: the request.
        fault: returns what is wrong with the last chunks of its body, None if nothing is.
    """
    names = {name for name, _ in exchange.headers}
    if exchange.http_version == "1.0":
        app = close_delimited(app, exchange)
    if exchange.expects_continue:
        app = closing_unread(app, exchange)
    if b"upgrade" in names:
        app = switching(app)
    return with_faults(app, fault) if b"transfer-encoding" in names else app


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


def switching(app: ASGIApp) -> ASGIApp:
    """Return an app whose status 101 goes no further: who has taken the connection has sent it already.

    The layers around the app, which log what they see, do see it.
    """

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        has_switched = False

        async def send_others(message: Message) -> None:
            nonlocal has_switched
            if message["type"] == "http.response.start" and message["status"] == 101:
                has_switched = True
            if not has_switched:
                await send(message)

        await app(scope, receive, send_others)

    return run
