"""How functions become the endpoints of routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

Endpoint = Callable[[Request], Awaitable[Response]]


def without_request(answer: Callable[[], Awaitable[Response]]) -> Endpoint:
    """Return an endpoint that needs nothing of its request."""

    async def endpoint(_: Request) -> Response:
        return await answer()

    return endpoint


def with_parameter(name: str, answer: Callable[[Request, str], Awaitable[Response]]) -> Endpoint:
    """Return an endpoint that is given a part of its path."""

    async def endpoint(request: Request) -> Response:
        return await answer(request, request.path_params[name])

    return endpoint


def constant(value: msgspec.Struct) -> Endpoint:
    """Return an endpoint that always answers the same."""
    body = msgspec.json.encode(value)

    async def endpoint(_: Request) -> Response:
        return Response(body, media_type="application/json")

    return endpoint
