"""A JSON response that is produced while it is sent: one piece per turn, no faster than the client reads."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from splitserve.frontend.http.connection.disconnect import ClientGoneError, ClientWatch
from splitserve.frontend.http.slices import SliceQueue

_HEAD = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"application/json")],
}


class LongAnswer(Response):
    """Sends pieces with chunked encoding, as their total size is not known in advance."""

    def __init__(self, pieces: Iterator[bytes], slices: SliceQueue) -> None:
        self.background = None
        self.status_code = 200
        self._pieces = pieces
        self._slices = slices

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; pieces not yet produced when the client leaves are never produced."""
        try:
            async with ClientWatch(receive):
                await send(_HEAD)
                await self._slices.turn()
                for piece in self._pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    await self._slices.turn()
        except ClientGoneError:
            scope["state"]["log"]["client_gone"] = True
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})
