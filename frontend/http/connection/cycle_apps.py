"""What uvicorn's way of running a request leaves out: where bodies end, and whether they can be read."""

from __future__ import annotations

from collections.abc import Callable

from uvicorn._types import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
)
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from splitserve.frontend.http.errors import HttpError


def close_delimited(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """Return an app whose body of unknown length ends with the connection, as HTTP/1.0 has no chunks.

    Args:
        app: answers the request.
        cycle: of the request; uvicorn's own way is to send chunks to everybody.
    """

    async def run(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        unbounded = False

        async def send_plain(message: ASGISendEvent) -> None:
            nonlocal unbounded
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message.get("headers", ())}
                unbounded = b"content-length" not in names
                if unbounded:
                    cycle.chunked_encoding = False
            elif message["type"] == "http.response.body" and unbounded:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return run


def closing_unread(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """Return an app that ends the connection if it answers without the body that the client asked to send.

    Whether that body or the next request comes then is the client's choice, and nothing tells which it is.
    """

    async def run(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        async def send_checked(message: ASGISendEvent) -> None:
            if message["type"] == "http.response.start" and cycle.waiting_for_100_continue:
                cycle.keep_alive = False
            await send(message)

        await app(scope, receive, send_checked)

    return run


def with_faults(app: ASGI3Application, fault: Callable[[], HttpError | None]) -> ASGI3Application:
    """Return an app that hears, where it reads the body, why the rest of it cannot be read.

    Args:
        app: answers the request.
        fault: returns what is wrong with the chunks that came last, None for nothing.
    """

    async def run(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        async def receive_checked() -> ASGIReceiveEvent:
            message = await receive()
            error = fault()
            if error is not None and message["type"] == "http.request" and message["more_body"]:
                raise error
            return message

        await app(scope, receive_checked, send)

    return run
