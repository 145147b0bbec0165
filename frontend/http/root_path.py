"""The path under which a proxy publishes this server, whether the proxy strips it or not."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPathMiddleware:
    """Tells routes, keys and documents the prefix, and leaves the path as it came.

    Starlette routes by the path behind the prefix where it begins with that, and by the whole path otherwise.
    A server that is told the prefix would put it before every path, as if all proxies stripped it.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        if scope["type"] == "http":
            scope["root_path"] = self._root_path
        await self._app(scope, receive, send)
