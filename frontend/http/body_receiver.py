"""The body of one request while it arrives: how large may it be, and how long may it take?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from starlette.requests import Request
from starlette.types import Message, Receive, Scope

from splitserve.frontend.http.body_budget import ArrivingBody, BodyBudget, given_up_error
from splitserve.frontend.http.errors import HttpError
from splitserve.frontend.http.turn_gate import TurnGate

_BODY_STATE = "body_receiver"
_BODY_HEADERS = frozenset((b"content-type", b"content-encoding", b"content-length"))


class BodyRules(NamedTuple):
    """What the body of a request may be.

    Attributes:
        max_bytes: the largest.
        timeout_s: in which it has to arrive.
        content_type: its kind.
        is_passed_on: whoever reads it keeps none of it, so the budget counts only what is not read yet.
    """

    max_bytes: int
    timeout_s: float
    content_type: bytes = b"application/json"
    is_passed_on: bool = False


class BodyReceiver:
    """Checks an arriving body against a maximum size, an absolute deadline and the process's budget.

    Most of a request's work comes after its body, so if the body is complete only in a later turn than
    begin(), when the request passed the turn gate, it passes the gate again.

    Attributes:
        num_bytes: number of bytes received.
    """

    def __init__(
        self, scope: Scope, receive: Receive, rules: BodyRules, gate: TurnGate, budget: BodyBudget
    ) -> None:
        self._headers = [(name, value) for name, value in scope["headers"] if name in _BODY_HEADERS]
        self._receive = receive
        self._rules = rules
        self._gate = gate
        self._budget = budget
        client = scope.get("client")
        self._held = ArrivingBody(client[0] if client else "", self._give_up)
        self._waiting: asyncio.Timeout | None = None
        self.num_bytes = 0
        self._complete = False
        # Other methods have no body whose kind matters.
        self._headers_checked = scope["method"] != "POST"
        scope["state"][_BODY_STATE] = self

    def begin(self, on_complete: Callable[[], None]) -> None:
        """Start the body's deadline; on_complete is called when the body is complete, and may refuse it."""
        self._turn = self._gate.turn
        self._deadline = time.monotonic() + self._rules.timeout_s
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
            check_body_headers(self._headers, self._rules)
        if self._rules.is_passed_on:
            self._budget.leave(self._held)
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
                408, "request_timeout", f"The body did not arrive within {self._rules.timeout_s:g} s."
            ) from None
        finally:
            self._waiting = None

    def _give_up(self) -> None:
        """Stop waiting for more of the body."""
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    def _count(self, message: Message) -> None:
        self.num_bytes += len(message.get("body", b""))
        if self.num_bytes > self._rules.max_bytes:
            raise _too_large(self._rules.max_bytes)
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


def check_body_headers(headers: list[tuple[bytes, bytes]], rules: BodyRules) -> None:
    """Check what a request's headers say about its body before any of it is read.

    Raises:
        HttpError: 415 or 413.
    """
    values = dict(headers)
    encoding = values.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in (b"identity", b""):
        raise HttpError(415, "unsupported_content_encoding", "Compressed bodies are not accepted.")
    kind, _, parameters = values.get(b"content-type", b"").partition(b";")
    is_json = rules.content_type == b"application/json"
    charset = parameters.strip().lower().replace(b'"', b"") if is_json else b""
    if kind.strip().lower() != rules.content_type or charset not in (b"", b"charset=utf-8"):
        expected = "application/json in UTF-8" if is_json else rules.content_type.decode()
        raise HttpError(415, "unsupported_content_type", f"Content-Type must be {expected}.")
    length = values.get(b"content-length", b"")
    if length.isdigit() and int(length[:20]) > rules.max_bytes:
        raise _too_large(rules.max_bytes)


def _too_large(max_bytes: int) -> HttpError:
    return HttpError(413, "body_too_large", f"The body must be at most {max_bytes} bytes.")


class GivenBody:
    """A body that is there already: of a request that this process makes itself, and no client waits for."""

    def __init__(self, scope: Scope, body: bytes) -> None:
        """Args: scope is the request's, with a state."""
        self._body: bytes | None = body
        scope["state"][_BODY_STATE] = self

    async def receive(self) -> Message:
        """Return the body, then never anything: nobody hangs up."""
        body, self._body = self._body, None
        if body is None:
            await asyncio.get_running_loop().create_future()
        return {"type": "http.request", "body": body, "more_body": False}

    def end(self) -> None:
        """As BodyReceiver: nothing was taken from the budget."""
