"""One line as a request of HTTP, which the handler of its endpoint answers as it answers any."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Scope

from splitserve.engine_core.batch_lines.request_line import RequestLine
from splitserve.engine_core.errors import SplitServeError
from splitserve.engine_core.process.logs import log_event
from splitserve.engine_core.sequence_sampling import MAX_PRIORITY
from splitserve.frontend.http.body_receiver import GivenBody
from splitserve.frontend.http.errors import error_body

logger = logging.getLogger("frontend")

Endpoint = Callable[[Request], Awaitable[Response]]
_LOWEST = msgspec.Raw(b"%d" % MAX_PRIORITY)


class LineAnswer(NamedTuple):
    """What an endpoint answered.

    Attributes:
        retry_after_s: when it may answer otherwise, as it says; 0 if it does not.
    """

    status: int
    body: bytes
    retry_after_s: float = 0.0

    @property
    def may_pass(self) -> bool:
        """Whether it is about the server, not the request, and no fault of its own: nothing was answered."""
        return self.status in (429, 503)


class LineCalls:
    """Answers lines by the handlers of their endpoints."""

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Args: endpoints are by path."""
        self._endpoints = endpoints

    async def answer(self, line: RequestLine, tenant: str) -> LineAnswer:
        """Return the answer to a line, errors included; never raises SplitServeError.

        Args:
            line: whose url is one of the endpoints.
            tenant: that it belongs to.
        """
        body = msgspec.json.encode({**line.body, "priority": _LOWEST})
        scope = _scope(line.url, tenant, len(body))
        try:
            request = Request(scope, GivenBody(scope, body).receive)
            return await _collect(await self._endpoints[line.url](request), request)
        except Exception as error:
            if not isinstance(error, SplitServeError):
                log_event(logger, logging.ERROR, "unhandled_error", error)
            status, told = error_body(error)
            return LineAnswer(status, msgspec.json.encode(told), getattr(error, "retry_after_s", 0.0))


async def _collect(response: Response, request: Request) -> LineAnswer:
    pieces: list[bytes] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            pieces.append(message.get("body", b""))

    await response(request.scope, request.receive, send)
    return LineAnswer(response.status_code, b"".join(pieces))


def _scope(path: str, tenant: str, num_bytes: int) -> Scope:
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % num_bytes)],
        "client": None,
        "server": None,
        "state": {"tenant": tenant, "request_id": uuid.uuid4().hex, "log": {}},
        "extensions": {},
    }
