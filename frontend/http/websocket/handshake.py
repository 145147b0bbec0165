"""May a request open a WebSocket? Checked before the connection is taken over."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.requests import Request
from websockets.exceptions import InvalidHandshake
from websockets.http11 import Request as Handshake
from websockets.server import ServerProtocol

from splitserve.frontend.http.connection.takeover import TAKE_EXTENSION
from splitserve.frontend.http.connection.upgrade_body import has_body
from splitserve.frontend.http.errors import HttpError

_NEEDED = (b"host", b"upgrade", b"connection", b"sec-websocket-key", b"sec-websocket-version")


def accept(request: Request, max_bytes: int, allowed_origins: Sequence[str]) -> tuple[ServerProtocol, bytes]:
    """Return the protocol of the WebSocket that a request opens, and the bytes that accept it.

    No extension is offered, so nothing is compressed.

    Args:
        request: of HTTP.
        max_bytes: of a message.
        allowed_origins: of pages that may open one, beside those of this server; "*" for all.

    Raises:
        HttpError: 426, it asks for no WebSocket; 400, it does so in a wrong way; 403, a page
            of another origin.
    """
    headers = request.headers
    if "upgrade" not in headers or TAKE_EXTENSION not in request.scope.get("extensions", {}):
        raise HttpError(426, "upgrade_required", "This path answers GET with a WebSocket only.")
    if has_body(headers.raw) or request.scope["query_string"]:
        raise HttpError(400, "bad_handshake", "The request for a WebSocket has a body or a query.")
    _check_origin(request, allowed_origins)
    protocol = ServerProtocol(max_size=max_bytes)
    head = [b"GET / HTTP/1.1", *(b"%b: %b" % header for header in headers.raw if header[0] in _NEEDED)]
    protocol.receive_data(b"\r\n".join([*head, b"", b""]))
    (handshake,) = protocol.events_received() or (None,)
    response = protocol.accept(handshake) if isinstance(handshake, Handshake) else None
    if response is None or response.status_code != 101:
        error = protocol.handshake_exc
        reason = f": {error}" if isinstance(error, InvalidHandshake) else ""
        raise HttpError(400, "bad_handshake", f"The WebSocket handshake is not valid{reason}.")
    protocol.send_response(response)
    return protocol, b"".join(protocol.data_to_send())


def _check_origin(request: Request, allowed: Sequence[str]) -> None:
    """Refuse pages of other origins: browsers ask no permission for a WebSocket."""
    origin = request.headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return
    if urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower():
        raise HttpError(403, "origin_not_allowed", "Pages of this origin may not open a WebSocket here.")
