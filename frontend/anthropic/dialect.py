"""Errors in Anthropic's shape, and what its streams have instead of comments and [DONE]."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from splitserve.frontend.anthropic.schema.events import Ping
from splitserve.frontend.http.dialect import Dialect, ErrorDetail
from splitserve.frontend.http.response.sse import named_event

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "timeout_error",
    "overloaded_error",
]
_TYPES: Final[dict[int, ErrorType]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    501: "invalid_request_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class MessagesErrorDetails(msgspec.Struct, frozen=True):
    """What Anthropic's SDKs act on; told that there are no threads, they send the conversation as a whole."""

    error_code: Literal["thread_unsupported_request"]


class MessagesErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong; `message` names the field."""

    type: ErrorType
    message: str
    details: MessagesErrorDetails | None = None


class MessagesError(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """The body of every error response, and of the error event of a stream that has started."""

    error: MessagesErrorDetail
    request_id: str


# Field that was refused -> what an SDK does without it.
_DETAILS: Final = {"thread": MessagesErrorDetails("thread_unsupported_request")}


def _error(status: int, detail: ErrorDetail, request_id: str) -> MessagesError:
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    details = _DETAILS.get(detail.param or "")
    return MessagesError(MessagesErrorDetail(kind, detail.message, details), request_id)


ANTHROPIC: Final = Dialect(
    error=_error,
    error_prefix=b"event: error\n",
    keep_alive=named_event(Ping()),
    end=b"",
    id_header=b"request-id",
)
