"""Responses that the connection itself writes, bypassing the application."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from splitserve.frontend.http.errors import HttpError, error_body

# Every HTTP/1.1 client skips it, whatever it expected.
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def refusal(error: HttpError) -> bytes:
    """Return a complete response that closes its connection, with the usual error body."""
    status, body = error_body(error)
    content = msgspec.json.encode(body)
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "content-type: application/json",
        f"content-length: {len(content)}",
        "connection: close",
    ]
    if status == 503:
        lines.append("retry-after: 1")
    return "\r\n".join([*lines, "", ""]).encode() + content
