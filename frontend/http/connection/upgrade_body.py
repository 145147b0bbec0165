"""The body of a request that also asks for another protocol, as Java's HTTP client does in its first request.

The parser takes what follows such a head as data of the other protocol. No other protocol is supported here,
so it is the body, as the head says; parsing it as the next request would create one that no proxy has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import httptools

_FRAMING = (b"content-length", b"transfer-encoding")
_NOTHING = b"0 \t"


class ParserCallbacks(Protocol):
    """The callbacks of a request parser."""

    def on_message_begin(self) -> None:
        """A request starts."""

    def on_url(self, url: bytes) -> None:
        """A piece of its URL has been parsed."""

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header has been parsed."""

    def on_headers_complete(self) -> None:
        """Its head is complete."""

    def on_body(self, body: bytes) -> None:
        """A piece of its body has been parsed."""

    def on_message_complete(self) -> None:
        """The request is complete."""


def has_body(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Return whether a head announces a body; names are in lower case."""
    return any(name in _FRAMING and value.strip(_NOTHING) for name, value in headers)


def body_parser(
    callbacks: ParserCallbacks, headers: Sequence[tuple[bytes, bytes]]
) -> httptools.HttpRequestParser:
    """Return a parser that continues after a head: with its body, then with the next request.

    Args:
        callbacks: called for everything that follows.
        headers: headers of the head, names in lower case, with valid framing.
    """
    behind = _BehindHead(callbacks)
    parser = httptools.HttpRequestParser(behind)
    framing = b"".join(name + b": " + value + b"\r\n" for name, value in headers if name in _FRAMING)
    parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")
    behind.in_head = False
    # Like uvicorn's own parser: data after the last request is not read.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


class _BehindHead:
    """Passes on a parser's callbacks, except those of the repeated head."""

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
