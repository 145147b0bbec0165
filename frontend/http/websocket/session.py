"""The life of one WebSocket: its messages are answered one after the other, until either side closes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from websockets.frames import CloseCode

from splitserve.frontend.http.connection.takeover import TAKE_EXTENSION
from splitserve.frontend.http.errors import HttpError, error_body
from splitserve.frontend.http.websocket.socket import Socket
from splitserve.frontend.http.websocket.turn import ErrorEvent

# As long as OpenAI's may last.
MAX_AGE_S = 3600.0

Answer = Callable[[bytes], Awaitable[None]]


class WebSocketSession(Response):
    """Answers a request with a WebSocket that is open."""

    def __init__(self, socket: Socket, handshake: bytes, answer: Answer, stall_s: float) -> None:
        """Prepare.

        Args:
            socket: of the connection.
            handshake: bytes that accept it.
            answer: answers one message; no other is answered meanwhile.
            stall_s: how long the client may stop reading.
        """
        self.background = None
        self.status_code = 101
        self._socket = socket
        self._handshake = handshake
        self._answer = answer
        self._stall_s = stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the session."""
        connection = scope["extensions"][TAKE_EXTENSION](self._socket)
        self._socket.open(connection, self._handshake)
        await send({"type": "http.response.start", "status": 101, "headers": []})
        code = CloseCode.INTERNAL_ERROR
        try:
            code = await self._run(scope["state"]["log"])
        finally:
            await self._socket.close(code, self._stall_s)

    async def _run(self, log: dict[str, object]) -> CloseCode:
        """Answer messages; return the code to close with."""
        ends_s, num_messages = time.monotonic() + MAX_AGE_S, 0
        while await self._socket.has_read(self._stall_s):
            try:
                async with asyncio.timeout(max(0.0, ends_s - time.monotonic())):
                    message = await self._socket.next_message()
            except TimeoutError:
                self._socket.send(_too_old())
                return CloseCode.NORMAL_CLOSURE
            if message is None:
                return CloseCode.GOING_AWAY if self._socket.draining else CloseCode.NORMAL_CLOSURE
            num_messages += 1
            log["messages"] = num_messages
            await self._answer(message)
        return CloseCode.POLICY_VIOLATION


def _too_old() -> bytes:
    text = f"This WebSocket has been open for {MAX_AGE_S:g} s, which is the most; open another."
    status, body = error_body(HttpError(400, "websocket_connection_limit_reached", text))
    return msgspec.json.encode(ErrorEvent(status, body.error))
