"""The part of every chunk that stays the same in a stream, encoded once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from splitserve.frontend.openai.answers.usage import Usage
from splitserve.frontend.openai.context import ResponseHead

_encode = msgspec.json.Encoder().encode


class ChunkHead:
    """Wraps choices into events.

    Attributes:
        prefix: an event up to and with the bracket that opens its choices.
        suffix: what closes the choices and the event.
    """

    def __init__(self, head: ResponseHead, kind: str, *, null_usage: bool) -> None:
        """Encode the head.

        Args:
            head: of the request.
            kind: value of `object`.
            null_usage: say `"usage": null` in chunks without usage, as OpenAI does when usage was asked for.
        """
        self._fields = b"data: " + _encode(head)[:-1] + b',"object":' + _encode(kind)
        self.prefix = self._fields + (b',"usage":null' if null_usage else b"") + b',"choices":['
        self.suffix = b"]}\n\n"

    def event(
        self, choices: Sequence[msgspec.Struct], usage: Usage | None = None, extra: bytes = b""
    ) -> bytes:
        """Return one event.

        Args:
            choices: what is new; none in the usage chunk.
            usage: None for none.
            extra: further fields of the chunk, encoded, each behind a comma.
        """
        encoded = _encode(choices)[1:-1]
        if usage is None:
            return b"".join((self.prefix, encoded, b"]", extra, b"}\n\n"))
        return b"".join(
            (self._fields, b',"usage":', _encode(usage), b',"choices":[', encoded, b"]", extra, b"}\n\n")
        )
