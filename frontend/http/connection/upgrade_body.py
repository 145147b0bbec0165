"""The body of a request that asks for another protocol too, as Java's HTTP client does with every first one.

The parser takes what follows such a head for the other protocol. No other is spoken here, so it is the body,
as the head says: read as the beginning of the next request it would be one that no proxy has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import httptools

_FRAMING = (b"content-length", b"transfer-encoding")
_NOTHING = b"0 \t"


class ParserCallbacks(Protocol):
    """What a parser of requests calls."""

    def on_message_begin(self) -> None:
        """Begin a request."""

    def on_url(self, url: bytes) -> None:
        """Take a piece of its URL."""

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""

    def on_headers_complete(self) -> None:
        """End its head."""

    def on_body(self, body: bytes) -> None:
        """Take a piece of its body."""

    def on_message_complete(self) -> None:
        """End the request."""


def has_body(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Tell whether a head announces a body; names are in lower case."""
    return any(name in _FRAMING and value.strip(_NOTHING) for name, value in headers)


def body_parser(
    callbacks: ParserCallbacks, headers: Sequence[tuple[bytes, bytes]]
) -> httptools.HttpRequestParser:
    """Return a parser that goes on behind a head: with its body, then with the next request.

    Args:
        callbacks: told of all that follows.
        headers: of the head, names in lower case; their framing is good.
    """
    behind = _BehindHead(callbacks)
    parser = httptools.HttpRequestParser(behind)
    framing = b"".join(name + b": " + value + b"\r\n" for name, value in headers if name in _FRAMING)
    parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")
    behind.in_head = False
    # As uvicorn's own has it: what comes behind the last request is not read.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


class _BehindHead:
    """Passes on what a parser says, but for the head that it is told again."""

    def __init__(self, callbacks: ParserCallbacks) -> None:
        self._callbacks = callbacks
        self.in_head = True
        self.on_body = callbacks.on_body

    def on_message_begin(self) -> None:
        if not self.in_head:
            self._callbacks.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self.in_head:
            self._callbacks.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_head:
            self._callbacks.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self.in_head:
            self._callbacks.on_headers_complete()

    def on_message_complete(self) -> None:
        self._callbacks.on_message_complete()
