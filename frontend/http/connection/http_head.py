"""Is a request's head valid? Checks what HTTP forbids but the parser accepts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from splitserve.frontend.http.errors import HttpError

_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")


def check_head(http_version: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Check the Host header and the body's framing: a request must have only one possible reading.

    Args:
        http_version: such as "1.1".
        headers: names in lower case.

    Raises:
        HttpError: 400 "bad_http", or 501 "unsupported_transfer_encoding".
    """
    host: bytes | None = None
    codings: list[bytes] = []
    has_length = False
    for name, value in headers:
        if name == b"host":
            if host is not None:
                raise bad_http("There must be one Host header.")
            host = value
        elif name == b"transfer-encoding":
            codings.append(value)
        elif name == b"content-length":
            has_length = True
    if host is None:
        if http_version == "1.1":
            raise bad_http("There must be a Host header.")
    elif _HOST.fullmatch(host) is None:
        raise bad_http("The Host header is not a host with or without a port.")
    if codings:
        _check_framing(http_version, codings, has_length)


def _check_framing(http_version: str, codings: list[bytes], has_length: bool) -> None:
    names = [name.strip().lower() for name in b",".join(codings).split(b",")]
    if http_version == "1.0" or has_length:
        raise bad_http("Transfer-Encoding needs HTTP/1.1 and excludes Content-Length.")
    if any(name != b"chunked" for name in names):
        raise HttpError(
            501, "unsupported_transfer_encoding", "The only supported transfer encoding is chunked."
        )
    if len(names) > 1:
        raise bad_http("The body must be chunked once.")


def bad_http(message: str) -> HttpError:
    """Return the error for a request that is not valid HTTP."""
    return HttpError(400, "bad_http", message)
