"""One message as a request of HTTP, through all layers, and the events of its stream as messages.

what the application sends     what the client gets
an event of its stream         its data as a message
a comment                      a ping
a response that is no stream   an event of type "error", with the status and the error object
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Scope

from splitserve.frontend.http.connection.body_writer import BODY_EXTENSION
from splitserve.frontend.http.dialect import ErrorDetail
from splitserve.frontend.http.limits import ABORT_EXTENSION
from splitserve.frontend.http.websocket.socket import Socket

_END, _DATA = b"\n\n", b"\ndata: "
# Of the request that opened the WebSocket, what each of its messages has too: not its id, which is its own.
_KEPT = ("asgi", "http_version", "server", "client", "scheme", "path", "raw_path", "root_path")
_DROPPED_HEADERS = frozenset(
    b"connection content-encoding content-length content-type expect origin upgrade x-request-id".split()
)


class ErrorEvent(msgspec.Struct, frozen=True, tag="error"):
    """What tells a client that a message was refused."""

    status: int
    error: ErrorDetail


class _ErrorBody(msgspec.Struct):
    error: ErrorDetail


class EventMessages:
    """Sends each event of a stream as a message: the body of one response, as OpenStream writes it.

    Attributes:
        paused, lost: of the socket.
        half_closed: never; a WebSocket is closed in both directions.
        num_bytes: of events so far.
        last: the last message.
    """

    def __init__(self, socket: Socket) -> None:
        """Args: socket gets the messages."""
        self.half_closed = False
        self.num_bytes = 0
        self.last = b""
        self._socket = socket
        self._on_change: Callable[[], None] = _nothing
        self._rest = b""

    @property
    def paused(self) -> bool:
        """Whether the client does not read."""
        return self._socket.paused

    @property
    def lost(self) -> bool:
        """Whether the client is gone."""
        return self._socket.lost

    def begin(self, on_change: Callable[[], None]) -> EventMessages:
        """Call this whenever paused or lost has changed; returns itself."""
        self._on_change = self._socket.listener = on_change
        return self

    def write(self, data: bytes) -> None:
        """Send a piece of the stream; an event that is not complete waits for its rest."""
        self.num_bytes += len(data)
        *events, self._rest = (self._rest + data).split(_END)
        for event in events:
            _, is_data, text = (b"\n" + event).partition(_DATA)
            if is_data:
                self.last = text
                self._socket.send(text)
            else:
                self._socket.ping()

    def free_fd(self) -> None:
        """Return None: nothing else may write to the socket."""

    def close(self) -> None:
        """Call nobody any more."""
        self._socket.listener = _nothing


class Turn:
    """One message of a socket as a request."""

    def __init__(self, socket: Socket, scope: Scope, state: Mapping[str, Any]) -> None:
        """Prepare.

        Args:
            socket: that it came from.
            scope: of the request that opened the socket.
            state: for the request, beside what the layers put there.
        """
        self._socket = socket
        self._opened = scope
        self._state = state
        self._events = EventMessages(socket)
        self._is_stream = False
        self._status = 0
        self._body = b""

    async def run(self, body: bytes) -> bool:
        """Run the request, as a POST to the path of the socket; return whether its events were sent.

        Args:
            body: JSON.
        """
        app: ASGIApp = self._opened["app"]
        await app(self._scope(len(body)), _Receiver(body, self._socket).receive, self._send)
        return self._is_stream

    @property
    def last(self) -> bytes:
        """The last message that was sent."""
        return self._events.last

    def _scope(self, num_bytes: int) -> Scope:
        opened = self._opened
        headers: Sequence[tuple[bytes, bytes]] = opened["headers"]
        own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % num_bytes)]
        extensions = {
            ABORT_EXTENSION: opened["extensions"][ABORT_EXTENSION],
            BODY_EXTENSION: self._events.begin,
        }
        return {
            **{name: opened[name] for name in _KEPT if name in opened},
            "type": "http",
            "method": "POST",
            "query_string": b"",
            "headers": [*(each for each in headers if each[0] not in _DROPPED_HEADERS), *own],
            "state": dict(self._state),
            "extensions": extensions,
        }

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            kinds = [value for name, value in message["headers"] if name == b"content-type"]
            self._is_stream = any(value.startswith(b"text/event-stream") for value in kinds)
            return
        if self._is_stream:
            self._events.write(message.get("body", b""))
            return
        self._body += message.get("body", b"")
        if not message.get("more_body", False):
            detail = msgspec.json.decode(self._body, type=_ErrorBody).error
            self.refuse(self._status, detail)

    def refuse(self, status: int, detail: ErrorDetail) -> None:
        """Send an error."""
        self._socket.send(msgspec.json.encode(ErrorEvent(status, detail)))


class _Receiver:
    """The body of the request, then the end of the socket."""

    def __init__(self, body: bytes, socket: Socket) -> None:
        self._body: bytes | None = body
        self._socket = socket

    async def receive(self) -> Message:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._socket.wait_lost()
        return {"type": "http.disconnect"}


def _nothing() -> None:
    """Do nothing: for a stream that has not begun, or has ended."""
