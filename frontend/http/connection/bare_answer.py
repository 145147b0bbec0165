"""Answers that the connection itself writes, past the application."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from splitserve.frontend.http.errors import HttpError, error_body

# Every client of HTTP/1.1 skips it, whatever it expected.
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def refusal(error: HttpError) -> bytes:
    """Return a whole response that ends its connection, with the body of every other error."""
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
