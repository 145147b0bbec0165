"""HEAD wherever GET is: the same answer without its body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadMiddleware:
    """Routes HEAD as GET; the layers around it and the connection see HEAD again from the answer on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            scope["method"] = "HEAD"
            await send({**message, "body": b""} if "body" in message else message)

        scope["method"] = "GET"
        await self._app(scope, receive, send_head)
