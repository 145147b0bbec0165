"""Which requests are traced, and what is the span around each?"""

from __future__ import annotations

from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from splitserve.frontend.observability.request_trace import STATE, RequestTrace


class Tracer(Protocol):
    """Makes the spans; frontend.observability.spans does so with OpenTelemetry."""

    def begin(self, scope: Scope) -> RequestTrace | None:
        """Begin a request; None if it is not to be traced, as its caller or chance decides."""

    def end(self, trace: RequestTrace, scope: Scope, status: int) -> None:
        """Make and send the spans of a request.

        Args:
            trace: of begin().
            scope: of the request.
            status: of its answer, 499 if its client left first.
        """


class TraceMiddleware:
    """Traces POST requests; there is none unless tracing is on."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        """Args: tracer makes the spans."""
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        trace = None
        if scope["type"] == "http" and scope["method"] == "POST":
            trace = self._tracer.begin(scope)
        if trace is None:
            await self._app(scope, receive, send)
            return
        scope["state"][STATE] = trace
        scope["state"]["log"]["trace_id"] = trace.trace_id
        status = 499

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except BaseException:
            trace.error = trace.error or "internal_error"
            raise
        finally:
            self._tracer.end(trace, scope, status)
