"""The path prefix under which a proxy publishes this server, whether the proxy strips it or not."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPathMiddleware:
    """Tells the router, the key check and the API docs the prefix, and leaves the path unchanged.

    Starlette routes by the path after the prefix if the path starts with it, and by the whole path otherwise.
    A server that knows the prefix would prepend it to every path, as if all proxies stripped it.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        if scope["type"] == "http":
            scope["root_path"] = self._root_path
        await self._app(scope, receive, send)
