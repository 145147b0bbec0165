"""How much of this process may clients use: requests, starts per turn, body size and time, unread output?"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from splitserve.frontend.config import FrontendConfig
from splitserve.frontend.http.body_budget import BodyBudget
from splitserve.frontend.http.body_receiver import BodyReceiver, BodyRules
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

    def __init__(
        self,
        app: ASGIApp,
        config: FrontendConfig,
        requests: InFlightRequests,
        uploads: Mapping[str, BodyRules] | None = None,
    ) -> None:
        """Args: uploads are the rules of paths that take other bodies than JSON."""
        self._app = app
        self._rules = BodyRules(config.max_body_bytes, config.body_timeout_s)
        self._uploads = uploads or {}
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
        body = BodyReceiver(scope, receive, self._rules_of(scope), self._gate, self._budget)
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

    def _rules_of(self, scope: Scope) -> BodyRules:
        # Behind a proxy's prefix or not, as the router sees it (frontend.http.root_path).
        path: str = scope["path"]
        found = self._uploads.get(path) or self._uploads.get(path.removeprefix(scope.get("root_path", "")))
        return found or self._rules


def _is_limited(scope: Scope) -> bool:
    """Whether a request may take long: it has a body to be worked on, or asks for a stream or for a file."""
    return (
        scope["method"] == "POST" or b"stream=" in scope["query_string"] or scope["path"].endswith("/content")
    )


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
