"""Turns errors raised by routes into responses, and logs server errors without flooding the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from splitserve.engine_core.errors import SplitServeError
from splitserve.engine_core.process.logs import log_event
from splitserve.frontend.http.errors import HttpError, RouteError, error_response
from splitserve.frontend.observability.request_trace import note_error

logger = logging.getLogger("frontend")

WARN_INTERVAL_S = 10.0
MAX_PATH_CHARS = 100


class ErrorHandler:
    """FastAPI's exception handler for SplitServeError and HTTPException; one per app, for its event loop.

    The message of an error of status 500 or above is in the request's own log line. There is also a
    warning per code, at most one in WARN_INTERVAL_S: with an engine down, every request fails alike. Codes
    are few, those of our error classes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, has_docs: bool = True) -> None:
        """Start with no warnings logged.

        Args:
            clock: returns seconds.
            has_docs: whether /docs is served, so that errors may refer to it.
        """
        self._clock = clock
        self._has_docs = has_docs
        self._warned_s: dict[str, float] = {}
        self._num_unwarned: dict[str, int] = {}

    async def handle(self, request: Request, error: Exception) -> Response:
        """Log one error and return its response."""
        if isinstance(error, HTTPException):
            error = self._route_error(request, error)
        if isinstance(error, SplitServeError):
            note_error(request, error.code)
        if isinstance(error, SplitServeError) and error.status >= 500:
            detail = str(error)
            request.state.log |= {"code": error.code, "detail": detail}
            self._warn(error.code, detail)
        return error_response(error)

    def _route_error(self, request: Request, error: HTTPException) -> HttpError:
        path = request.scope["path"][:MAX_PATH_CHARS]
        if error.status_code == 404:
            see = f"; {request.scope.get('root_path', '')}/docs shows what there is" if self._has_docs else ""
            return RouteError(404, "unknown_route", f"There is no route {path}{see}.")
        if error.status_code == 405:
            allow = sorted((error.headers or {}).get("Allow", "").split(", "))
            message = f"{path} takes {' and '.join(allow)}, not {request.method}."
            return RouteError(405, "method_not_allowed", message, tuple(allow))
        return HttpError(error.status_code, "bad_http", error.detail)

    def _warn(self, code: str, detail: str) -> None:
        now_s = self._clock()
        num_errors = self._num_unwarned.get(code, 0) + 1
        last_s = self._warned_s.get(code)
        if last_s is not None and now_s - last_s < WARN_INTERVAL_S:
            self._num_unwarned[code] = num_errors
            return
        self._warned_s[code], self._num_unwarned[code] = now_s, 0
        log_event(logger, logging.WARNING, "request_error", code=code, count=num_errors, detail=detail)
