"""The outermost layer of every request: its id, log line and HTTP metrics, and the handler of last resort."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from splitserve.engine_core.process.logs import log_event
from splitserve.frontend.http.connection.body_writer import BODY_BYTES_STATE
from splitserve.frontend.http.dialect import Dialect, dialect_of, note_dialect
from splitserve.frontend.http.errors import error_response
from splitserve.frontend.metrics.process import FrontendMetrics

logger = logging.getLogger("frontend")

MAX_REQUEST_ID_CHARS = 100
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:\-]{1,100}")
# A path is whatever a client writes, and there is a line for every request.
_MAX_PATH_CHARS = 256
# Probes repeat every few seconds, and so does what the page asks; they are logged only when they fail.
_QUIET = frozenset(
    (
        "/live",
        "/health",
        "/ready",
        "/metrics",
        "/debug/engines",
        "/debug/requests",
        "/page/{name:path}",
    )
)
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


def is_request_id(text: str) -> bool:
    """Return whether a client's request id is accepted: 1 to 100 letters, digits and . _ : -"""
    return _REQUEST_ID.fullmatch(text) is not None


class RequestLogMiddleware:
    """Gives each request an id, responds 500 to uncaught errors, logs and counts each request at its end.

    Handlers add fields to the log line through scope["state"]["log"], a dict.
    """

    def __init__(
        self, app: ASGIApp, metrics: FrontendMetrics, dialects: Mapping[str, Dialect] | None = None
    ) -> None:
        """Args: dialects are those of paths whose API is not OpenAI's."""
        self._app = app
        self._metrics = metrics
        self._dialects = dialects or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = _Record(scope, send, self._dialects)
        try:
            await self._app(scope, receive, record.send)
        except Exception as error:
            log_event(logger, logging.ERROR, "unhandled_error", error, request_id=record.request_id)
            if record.status:
                raise
            await error_response(error)(scope, receive, record.send)
        finally:
            self._finish(scope, record)

    def _finish(self, scope: Scope, record: _Record) -> None:
        seconds = time.monotonic() - record.started
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        # 499: the client left before there was a response.
        status = record.status or 499
        self._metrics.http.observe(route, method, status, seconds)
        if route in _QUIET and status < 400:
            return
        fields: dict[str, object] = {
            "request_id": record.request_id,
            "method": method,
            "path": scope["path"][:_MAX_PATH_CHARS],
            "status": status,
            "duration_ms": seconds * 1000,
            "bytes": record.num_bytes + scope["state"].get(BODY_BYTES_STATE, 0),
        }
        log_event(logger, logging.INFO, "request", **fields | record.fields)


class _Record:
    """What is logged at the end of the request: status, bytes sent, fields added by handlers."""

    def __init__(self, scope: Scope, send: Send, dialects: Mapping[str, Dialect]) -> None:
        self._send = send
        # The connection omits the body of a response to HEAD.
        self._has_body = scope["method"] != "HEAD"
        self.started = time.monotonic()
        self.status = 0
        self.num_bytes = 0
        self.request_id = _request_id(scope)
        self.fields: dict[str, object] = {}
        state = scope.setdefault("state", {})
        state["request_id"] = self.request_id
        state["log"] = self.fields
        note_dialect(scope, dialects)
        names = (b"x-request-id", dialect_of(scope).id_header)
        self._headers = [(name, self.request_id.encode()) for name in names if name]

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", []), *self._headers]
            message = {**message, "headers": headers}
        elif self._has_body:
            self.num_bytes += len(message.get("body", b""))
        await self._send(message)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text: str = value.decode("latin-1")
            if is_request_id(text):
                return text
    return uuid.uuid4().hex
