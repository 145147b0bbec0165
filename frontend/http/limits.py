"""How much of this process may clients use: requests, starts per turn, body size and time, unread output?"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from splitserve.frontend.config import FrontendConfig
from splitserve.frontend.http.body_budget import ArrivingBody, BodyBudget, given_up_error
from splitserve.frontend.http.errors import HttpError, error_response
from splitserve.frontend.http.memory import MemoryReturn
from splitserve.frontend.http.slices import SliceQueue
from splitserve.frontend.http.turn_gate import TurnGate

ABORT_EXTENSION = "splitserve.abort"
# Key of a request's state: the budget, for what else comes over its connection.
BUDGET_STATE = "body_budget"
# How long an aborted connection may take to be reported as closed.
_ABORT_WAIT_S = 2.0


class EndReason(enum.Enum):
    """Why this process itself ended a request."""

    STALLED = "stalled"
    SHUTDOWN = "shutdown"


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """One request in progress.

    Attributes:
        blocked_since: monotonic time since when a write has been blocked by the client; None if none is.
        end_reason: set just before this process cancels the task.
    """

    task: asyncio.Task[object]
    blocked_since: float | None = None
    end_reason: EndReason | None = None

    def end(self, reason: EndReason) -> None:
        """Cancel the request for this reason; only the first call counts."""
        if self.end_reason is None:
            self.end_reason = reason
            self.task.cancel()


class InFlightRequests:
    """The requests in progress in this process, at most max_open of them.

    A request counts once its body is complete. One whose body is still arriving is known, so that it can be
    ended, but is limited only by its connection (frontend.http.connection.connection_limits) and its bytes
    (frontend.http.body_budget).
    """

    def __init__(self, max_open: int, write_stall_s: float) -> None:
        self._max_open = max_open
        self._write_stall_s = write_stall_s
        self._open: set[InFlightRequest] = set()
        self._arriving: set[InFlightRequest] = set()
        self._ends = SliceQueue()

    def __len__(self) -> int:
        return len(self._open)

    def arrive(self) -> InFlightRequest:
        """Register the current task as a request; call leave() at its end."""
        task = asyncio.current_task()
        assert task is not None, "requests run in tasks"
        request = InFlightRequest(task)
        self._arriving.add(request)
        return request

    def enter(self, request: InFlightRequest) -> None:
        """Admit a request whose body is complete.

        Raises:
            HttpError: 429, the limit is reached.
        """
        if len(self._open) >= self._max_open:
            raise HttpError(
                429, "overloaded", "This server has too many requests in flight; try again shortly.", 1.0
            )
        self._arriving.discard(request)
        self._open.add(request)

    def leave(self, request: InFlightRequest) -> None:
        """Remove a request that has ended."""
        self._open.discard(request)
        self._arriving.discard(request)

    def end_stalled(self, now: float) -> int:
        """Start ending the requests whose client has not read for the time limit; return how many."""
        stalled = [
            request
            for request in (*self._open, *self._arriving)
            if request.blocked_since is not None and now - request.blocked_since > self._write_stall_s
        ]
        self._end(stalled, EndReason.STALLED)
        return len(stalled)

    def end_all(self, reason: EndReason) -> None:
        """Start ending every open request."""
        self._end((*self._open, *self._arriving), reason)

    def _end(self, requests: Iterable[InFlightRequest], reason: EndReason) -> None:
        # Each in its own turn of the loop: its last event, log line and abort take 0.3 ms.
        for request in requests:
            self._ends.add(partial(request.end, reason))

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncGenerator[None, None]:
        """Check for stalled clients, four times per time limit, while the context is open."""
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
    """Limits POST requests and streams; a body is checked when it is first read: 404 and 405 come first."""

    def __init__(self, app: ASGIApp, config: FrontendConfig, requests: InFlightRequests) -> None:
        self._app = app
        self._config = config
        self._requests = requests
        self._gate = TurnGate()
        self._budget = BodyBudget(config.max_body_memory_bytes)
        self._memory = MemoryReturn()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request within the limits."""
        scope.setdefault("state", {})[BUDGET_STATE] = self._budget
        if scope["type"] != "http" or not _is_limited(scope):
            await self._app(scope, receive, send)
            return
        request = self._requests.arrive()
        scope["state"]["open_request"] = request
        sender = _Sender(request, send)
        body = BodyReceiver(scope, receive, self._config, self._gate, self._budget)
        try:
            await self._gate.enter()
            body.begin(lambda: self._requests.enter(request))
            await self._app(scope, body.receive, sender.send)
        except asyncio.CancelledError:
            if request.end_reason is None:
                raise
            request.task.uncancel()
            await _finish_ended(request, sender, scope, receive)
        finally:
            body.end()
            self._requests.leave(request)
            self._memory.note(body.num_bytes + sender.num_bytes)


def _is_limited(scope: Scope) -> bool:
    """Whether a request may take long: it has a body to be worked on, or asks for a stream."""
    return scope["method"] == "POST" or b"stream=" in scope["query_string"]


async def _finish_ended(request: InFlightRequest, sender: _Sender, scope: Scope, receive: Receive) -> None:
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
    """Records since when a write has been blocked by the client, and whether the response has started."""

    def __init__(self, request: InFlightRequest, send: Send) -> None:
        self._request = request
        self._send = send
        self.started = False
        self.num_bytes = 0

    async def send(self, message: Message) -> None:
        self.started = True
        self.num_bytes += len(message.get("body", b""))
        self._request.blocked_since = time.monotonic()
        await self._send(message)
        self._request.blocked_since = None


class BodyReceiver:
    """Checks an arriving body against a maximum size, an absolute deadline and the process's budget.

    Most of a request's work comes after its body, so if the body is complete only in a later turn than
    begin(), when the request passed the turn gate, it passes the gate again.

    Attributes:
        num_bytes: number of bytes received.
    """

    def __init__(
        self, scope: Scope, receive: Receive, config: FrontendConfig, gate: TurnGate, budget: BodyBudget
    ) -> None:
        self._headers = [(name, value) for name, value in scope["headers"] if name in _BODY_HEADERS]
        self._receive = receive
        self._max_bytes = config.max_body_bytes
        self._timeout_s = config.body_timeout_s
        self._gate = gate
        self._budget = budget
        client = scope.get("client")
        self._held = ArrivingBody(client[0] if client else "", self._give_up)
        self._waiting: asyncio.Timeout | None = None
        self.num_bytes = 0
        self._complete = False
        self._headers_checked = False
        scope["state"][_BODY_STATE] = self

    def begin(self, on_complete: Callable[[], None]) -> None:
        """Start the body's deadline; on_complete is called when the body is complete, and may refuse it."""
        self._turn = self._gate.turn
        self._deadline = time.monotonic() + self._timeout_s
        self._on_complete = on_complete

    async def receive(self) -> Message:
        """Receive the next message.

        Raises:
            HttpError: 415 for a wrong content type or any content encoding, 413 too large, 408 too slow, 429
                if there is no room for the request or its body was dropped in favour of others.
        """
        if self._complete:
            return await self._receive()
        if not self._headers_checked:
            self._headers_checked = True
            check_body_headers(self._headers, self._max_bytes)
        message = await self._next()
        if self._held.given_up:
            raise given_up_error()
        self._count(message)
        if self._complete:
            self._on_complete()
            if self._gate.turn != self._turn:
                await self._gate.enter()
        return message

    def end(self) -> None:
        """Give the bytes back to the budget; safe to call twice."""
        self._budget.leave(self._held)

    async def _next(self) -> Message:
        try:
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())) as self._waiting:
                return await self._receive()
        except TimeoutError:
            if self._held.given_up:
                raise given_up_error() from None
            raise HttpError(
                408, "request_timeout", f"The body did not arrive within {self._timeout_s:g} s."
            ) from None
        finally:
            self._waiting = None

    def _give_up(self) -> None:
        """Stop waiting for more of the body."""
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    def _count(self, message: Message) -> None:
        self.num_bytes += len(message.get("body", b""))
        if self.num_bytes > self._max_bytes:
            raise _too_large(self._max_bytes)
        self._budget.add(self._held, len(message.get("body", b"")))
        self._complete = not message.get("more_body", False)
        if self._complete:
            self._budget.complete(self._held)


async def read_body(request: Request) -> bytes:
    """Return the whole body; call release_body() when it is no longer needed.

    Raises:
        HttpError: as BodyReceiver.receive().
    """
    # Unlike request.body(), which keeps a copy for the life of the request.
    return b"".join([chunk async for chunk in request.stream()])


def release_body(request: Request) -> None:
    """Give the bytes of a decoded body back to the budget."""
    request.scope["state"][_BODY_STATE].end()


_BODY_STATE = "body_receiver"
_BODY_HEADERS = frozenset((b"content-type", b"content-encoding", b"content-length"))


def check_body_headers(headers: list[tuple[bytes, bytes]], max_bytes: int) -> None:
    """Check what a request's headers say about its body before any of it is read.

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
