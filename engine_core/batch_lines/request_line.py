"""One line of a batch file: a request, checked before anything is sent."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

MAX_ID_CHARS = 512
_PATH = re.compile(r"/v1/[a-z][a-z0-9_/-]{0,100}")


class RequestLine(msgspec.Struct, frozen=True):
    """A POST request, and the name of its answer."""

    custom_id: str
    url: str
    body: dict[str, msgspec.Raw]
    method: Literal["POST"] = "POST"


class LineError(ValueError):
    """A line is no request of a batch.

    Attributes:
        code: for programs.
        param: the field that is wrong; None for the line as a whole.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


_decoder = msgspec.json.Decoder(RequestLine)


def read_request(line: bytes) -> RequestLine:
    """Return the request of a line.

    Raises:
        LineError: it is none, or asks for what has no place in a file.
    """
    try:
        request = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LineError("invalid_json_line", str(error)) from None
    if not 1 <= len(request.custom_id) <= MAX_ID_CHARS:
        raise LineError(
            "invalid_custom_id", f"custom_id must have 1 to {MAX_ID_CHARS} characters", "custom_id"
        )
    if not _PATH.fullmatch(request.url):
        raise LineError(
            "invalid_url", f"url must be a path such as /v1/chat/completions, got {request.url!r}", "url"
        )
    if bytes(request.body.get("stream", b"false")) not in (b"false", b"null"):
        raise LineError(
            "invalid_request",
            "an answer in a file cannot be streamed: leave out body.stream",
            "body.stream",
        )
    return request
