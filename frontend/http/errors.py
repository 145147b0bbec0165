"""Errors to HTTP: one error object for every failure, whatever layer it comes from."""

from __future__ import annotations

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from splitserve.engine_core.errors import SplitServeError
from splitserve.frontend.http.dialect import ErrorBody, ErrorDetail, error_struct

MAX_MESSAGE_CHARS = 600

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    501: "invalid_request_error",
}
# From 500 up the client gets these messages; the real one may name paths or addresses and goes to the log.
_PUBLIC_MESSAGES = {
    "engine_unavailable": "No engine is ready to take this request; try again shortly.",
    "engine_asleep": "The engine is asleep; wake it up (POST /wake_up), or try again later.",
    "request_failed": "The engine could not finish this request; see its log.",
    "request_unsafe": "This request seems to have brought the engine down more than once and is not tried "
    "again; change it, or see the server's log.",
    "numerical_error": "The model's output for this request is not a number, and will not be if you retry: "
    "change the prompt, or check the model.",
    "out_of_memory": "The device ran out of memory on this request, even in smaller steps; "
    "try again shortly, or with a shorter prompt or fewer completions.",
    "adapter_failed": "The adapter cannot be loaded any more; the server's log says why. Use another one.",
    "no_summary": "The model wrote no summary, so the conversation stays as it is; try another model.",
    "overloaded": "This server has too many connections; try again shortly.",
    "timeout": "The request did not finish within its timeout.",
    "queue_timeout": "The request reached its queue timeout before it could run; try again shortly.",
    "unsupported_transfer_encoding": "The only supported transfer encoding is chunked.",
    "response_store_unavailable": "The response store cannot be used now; try again shortly, or with store: "
    "false.",
    "file_store_unavailable": "The file store cannot be used now; try again shortly.",
    "shutting_down": "This server is shutting down; try again shortly.",
}


class HttpError(SplitServeError):
    """A request that this process itself refuses: route, headers, size, time, credentials."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


class RouteError(HttpError):
    """The route does not exist (404) or does not accept this method (405).

    Attributes:
        allow: the methods that the route accepts, if it exists.
    """

    def __init__(self, status: int, code: str, message: str, allow: tuple[str, ...] = ()) -> None:
        super().__init__(status, code, message)
        self.allow = allow


def error_body(error: Exception) -> tuple[int, ErrorBody]:
    """Return status and body for any exception; the body reveals nothing internal."""
    if not isinstance(error, SplitServeError):
        return 500, _body(500, "Internal server error.", "internal_error", None)
    message = str(error)
    if error.status >= 500:
        message = _PUBLIC_MESSAGES.get(error.code, "Internal server error.")
    return error.status, _body(error.status, message, error.code, error.param)


def error_response(error: Exception) -> Response:
    """Make the response for any exception, with Retry-After where trying again makes sense."""
    status, body = error_body(error)
    headers = {}
    if status in (429, 503):
        headers["retry-after"] = str(max(1, round(getattr(error, "retry_after_s", 0.0))))
    if status == 408:
        # The rest of this body will not arrive. A body that is too large is read and discarded instead:
        # closing the connection would reset it for clients that send everything before they read.
        headers["connection"] = "close"
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, RouteError) and error.allow:
        headers["allow"] = ", ".join(error.allow)
    return ErrorResponse(body, status, headers)


class ErrorResponse(Response):
    """Sends an error as the API words it that the request belongs to."""

    media_type = "application/json"

    def __init__(self, body: ErrorBody, status: int, headers: dict[str, str]) -> None:
        super().__init__(msgspec.json.encode(body), status, headers)
        self._error = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        body = error_struct(scope, self.status_code, self._error.error)
        if body != self._error:
            self.body = msgspec.json.encode(body)
            self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def _body(status: int, message: str, code: str | None, param: str | None) -> ErrorBody:
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[: MAX_MESSAGE_CHARS - 1] + "…"
    return ErrorBody(ErrorDetail(message, kind, param, code))
