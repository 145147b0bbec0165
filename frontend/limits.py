"""What clients may take of this process: requests, starts per turn, body size and time, unread output."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frontend.config import FrontendConfig
from frontend.errors_http import HttpError, error_response
from frontend.turn_gate import TurnGate

ABORT_EXTENSION = "splitserve.abort"
# How long an aborted connection may take to be reported as gone.
_ABORT_WAIT_S = 2.0


class EndReason(enum.Enum):
    """Why this process ended a request by itself."""

    STALLED = "stalled"
    SHUTDOWN = "shutdown"


@dataclass(slots=True, eq=False)
class OpenRequest:
    """One request in progress.

    Attributes:
        blocked_since: monotonic time since which a write waits for the client to read; None if none waits.
        end_reason: set just before this process cancels the task.
    """

    task: asyncio.Task[object]
    blocked_since: float | None = None
    end_reason: EndReason | None = None

    def end(self, reason: EndReason) -> None:
        """Cancel the request once, for this reason."""
        if self.end_reason is None:
            self.end_reason = reason
            self.task.cancel()


class OpenRequests:
    """The requests in progress of this process, at most max_open of them."""

    def __init__(self, max_open: int, write_stall_s: float) -> None:
        self._max_open = max_open
        self._write_stall_s = write_stall_s
        self._open: set[OpenRequest] = set()

    def __len__(self) -> int:
        return len(self._open)

    def enter(self) -> OpenRequest:
        """Admit the current task.

        Raises:
            HttpError: 429, the bound is reached.
        """
        if len(self._open) >= self._max_open:
            raise HttpError(
                429, "overloaded", "This server has too many open requests; try again shortly.", 1.0
            )
        task = asyncio.current_task()
        assert task is not None, "requests run in tasks"
        request = OpenRequest(task)
        self._open.add(request)
        return request

    def leave(self, request: OpenRequest) -> None:
        """Forget a request that ended."""
        self._open.discard(request)

    def end_stalled(self, now: float) -> int:
        """End the requests whose client has not read for the limit; returns how many."""
        stalled = [
            request
            for request in self._open
            if request.blocked_since is not None and now - request.blocked_since > self._write_stall_s
        ]
        for request in stalled:
            request.end(EndReason.STALLED)
        return len(stalled)

    def end_all(self, reason: EndReason) -> None:
        """End every open request."""
        for request in list(self._open):
            request.end(reason)

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncGenerator[None, None]:
        """Look for stalled clients four times per limit, for as long as the context is open."""
        watcher = asyncio.create_task(self._watch(), name="stall-watch")
        try:
            yield
        finally:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._write_stall_s / 4)
            self.end_stalled(time.monotonic())


class LimitsMiddleware:
    """Bounds POST requests; the body is checked when it is first read, so 404 and 405 come first."""

    def __init__(self, app: ASGIApp, config: FrontendConfig, requests: OpenRequests) -> None:
        self._app = app
        self._config = config
        self._requests = requests
        self._gate = TurnGate()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request within the limits."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            request = self._requests.enter()
        except HttpError as error:
            await error_response(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["open_request"] = request
        sender = _Sender(request, send)
        try:
            await self._gate.enter()
            body = BodyReceiver(scope, receive, self._config, self._gate)
            await self._app(scope, body.receive, sender.send)
        except asyncio.CancelledError:
            if request.end_reason is None:
                raise
            request.task.uncancel()
            await _finish_ended(request, sender, scope, receive)
        finally:
            self._requests.leave(request)


async def _finish_ended(request: OpenRequest, sender: _Sender, scope: Scope, receive: Receive) -> None:
    if not sender.started and request.end_reason is EndReason.SHUTDOWN:
        error = HttpError(503, "shutting_down", "shutdown timeout passed", 1.0)
        await error_response(error)(scope, receive, sender.send)
        return
    abort = scope.get("extensions", {}).get(ABORT_EXTENSION)
    if abort is not None:
        abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ABORT_WAIT_S):
                while (await receive())["type"] != "http.disconnect":
                    pass


class _Sender:
    """Notes since when a write waits for the client, and whether the response began."""

    def __init__(self, request: OpenRequest, send: Send) -> None:
        self._request = request
        self._send = send
        self.started = False

    async def send(self, message: Message) -> None:
        self.started = True
        self._request.blocked_since = time.monotonic()
        await self._send(message)
        self._request.blocked_since = None


class BodyReceiver:
    """Counts the body while it arrives, against a size and an absolute deadline.

    Made in the turn in which the request passed the gate. What follows a body is most of a request's work, so
    a body that is there only later passes the gate again.
    """

    def __init__(self, scope: Scope, receive: Receive, config: FrontendConfig, gate: TurnGate) -> None:
        self._headers = [(name, value) for name, value in scope["headers"] if name in _BODY_HEADERS]
        self._receive = receive
        self._max_bytes = config.max_body_bytes
        self._timeout_s = config.body_timeout_s
        self._deadline = time.monotonic() + self._timeout_s
        self._gate = gate
        self._turn = gate.turn
        self._num_bytes = 0
        self._complete = False
        self._headers_checked = False

    async def receive(self) -> Message:
        """Receive the next message.

        Raises:
            HttpError: 415 for a wrong content type or any content encoding, 413 too large, 408 too slow.
        """
        if self._complete:
            return await self._receive()
        if not self._headers_checked:
            self._headers_checked = True
            check_body_headers(self._headers, self._max_bytes)
        try:
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
                message = await self._receive()
        except TimeoutError:
            raise HttpError(
                408, "request_timeout", f"The body did not arrive within {self._timeout_s:g} s."
            ) from None
        self._count(message)
        if self._complete and self._gate.turn != self._turn:
            await self._gate.enter()
        return message

    def _count(self, message: Message) -> None:
        self._num_bytes += len(message.get("body", b""))
        if self._num_bytes > self._max_bytes:
            raise _too_large(self._max_bytes)
        self._complete = not message.get("more_body", False)


_BODY_HEADERS = frozenset((b"content-type", b"content-encoding", b"content-length"))


def check_body_headers(headers: list[tuple[bytes, bytes]], max_bytes: int) -> None:
    """Check what a request says of its body before any of it is read.

    Raises:
        HttpError: 415 or 413.
    """
    values = dict(headers)
    encoding = values.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in (b"identity", b""):
        raise HttpError(415, "unsupported_content_encoding", "Compressed bodies are not accepted.")
    kind, _, parameters = values.get(b"content-type", b"").partition(b";")
    charset = parameters.strip().lower().replace(b'"', b"")
    if kind.strip().lower() != b"application/json" or charset not in (b"", b"charset=utf-8"):
        raise HttpError(415, "unsupported_content_type", "Content-Type must be application/json in UTF-8.")
    length = values.get(b"content-length", b"")
    if length.isdigit() and int(length[:20]) > max_bytes:
        raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> HttpError:
    return HttpError(413, "body_too_large", f"The body must be at most {max_bytes} bytes.")
