"""One line of a file of answers: what a server answered to one request, or why there is no answer."""

from __future__ import annotations

import uuid

import msgspec


class Response(msgspec.Struct, frozen=True):
    """What the server answered, as it came."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class AnswerError(msgspec.Struct, frozen=True):
    """Why there is no answer as asked for."""

    code: str
    message: str


class AnswerLine(msgspec.Struct, frozen=True):
    """One line of the file."""

    id: str
    custom_id: str
    response: Response | None
    error: AnswerError | None = None

    def encoded(self) -> bytes:
        """Return the line, with its end."""
        return msgspec.json.encode(self) + b"\n"


def answer_line(custom_id: str, status: int, raw: bytes, error: AnswerError | None = None) -> AnswerLine:
    """Return the line of an answer.

    Args:
        custom_id: of the request.
        status: of HTTP.
        raw: body of the answer; what is no JSON becomes a string, with an error.
        error: why it is not the answer as asked for.
    """
    name = uuid.uuid4().hex
    try:
        # On one line, whatever the server made of it.
        body = msgspec.Raw(msgspec.json.format(raw, indent=-1))
    except (msgspec.DecodeError, UnicodeDecodeError):
        error = error or AnswerError("invalid_answer", "an answer that is no JSON")
        body = msgspec.Raw(msgspec.json.encode(raw.decode(errors="replace")))
    return AnswerLine(f"batch_req_{name}", custom_id, Response(status, f"req_{name}", body), error)


def unanswered_line(custom_id: str, error: AnswerError) -> AnswerLine:
    """Return the line of a request that has no answer."""
    return AnswerLine(f"batch_req_{uuid.uuid4().hex}", custom_id, None, error)
