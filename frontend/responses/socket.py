"""GET /v1/responses: OpenAI's WebSocket mode, in which each message is what a POST would have as its body.

message               answered with
response.create       the events of its response, as if it had been POSTed with "stream": true
anything else         an event of type "error"
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.http.body_budget import BodyBudget
from splitserve.frontend.http.errors import error_body
from splitserve.frontend.http.json_body import check_utf8, scan_structure
from splitserve.frontend.http.limits import BUDGET_STATE
from splitserve.frontend.http.websocket.handshake import accept
from splitserve.frontend.http.websocket.session import WebSocketSession
from splitserve.frontend.http.websocket.socket import Socket
from splitserve.frontend.http.websocket.turn import Turn
from splitserve.frontend.response_store.off_loop import off_loop
from splitserve.frontend.responses.context import ResponsesContext
from splitserve.frontend.responses.kept.memory import MEMORY_STATE, SocketMemory

_CREATE, _FAILED = "response.create", b'{"type":"response.failed"'
# Fields of a message that are none of a response, and the only values that they may have.
_OF_MESSAGES: dict[str, tuple[object, ...]] = {
    "stream": (None, True),
    "background": (None, False),
    "generate": (None, True),
    "stream_id": (None,),
}
_WHY = {
    "stream": "every response is streamed over a WebSocket",
    "background": "a response in the background cannot be created over a WebSocket",
    "generate": "a response without output is not supported",
    "stream_id": "a WebSocket has one response at a time; open another for another one",
}
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


async def open_socket(context: ResponsesContext, request: Request) -> Response:
    """Answer GET /v1/responses.

    Raises:
        HttpError: as frontend.http.websocket.handshake.accept().
    """
    config = context.api.config
    protocol, handshake = accept(request, config.max_body_bytes, config.allowed_origins)
    budget: BodyBudget = request.scope["state"][BUDGET_STATE]
    address = request.client.host if request.client is not None else ""
    socket = Socket(protocol, budget, address, config.body_timeout_s)
    turns = _Turns(request, socket, config.max_body_bytes)
    return WebSocketSession(socket, handshake, turns.answer, config.write_stall_s)


class _Turns:
    """Answers the messages of one socket."""

    def __init__(self, request: Request, socket: Socket, max_bytes: int) -> None:
        self._scope = request.scope
        self._socket = socket
        self._memory = SocketMemory(max_bytes)

    async def answer(self, message: bytes) -> None:
        """Answer one message."""
        turn = Turn(self._socket, self._scope, {MEMORY_STATE: self._memory})
        try:
            body, continued = await off_loop(len(message), lambda: _read(message))
        except InvalidRequestError as error:
            status, refusal = error_body(error)
            turn.refuse(status, refusal.error)
            return
        was_streamed = await turn.run(body)
        if continued is not None and not (was_streamed and not turn.last.startswith(_FAILED)):
            # As OpenAI has it, what could not be continued once is gone.
            self._memory.forget(continued)


def _read(message: bytes) -> tuple[bytes, str | None]:
    """Return the body of the request that a message is, and the id of the response that it continues.

    Raises:
        InvalidRequestError: it is no event that creates a response, or has a field that there cannot be here.
    """
    check_utf8(message)
    scan_structure(message)
    try:
        fields = _decode(message)
        kind = _value(fields.pop("type", None))
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidRequestError(
            f"The message is not a JSON object: {error}", None, "invalid_json"
        ) from None
    if kind != _CREATE:
        text = f"type: the events that this server takes are {_CREATE}, got {str(kind)[:64]!r}"
        raise InvalidRequestError(text, "type", "unsupported_parameter")
    for name, allowed in _OF_MESSAGES.items():
        value = _value(fields.pop(name, None))
        # True is not 1 here.
        if not any(value is each for each in allowed):
            raise InvalidRequestError(f"{name}: {_WHY[name]}", name, "unsupported_parameter")
    continued = _value(fields.get("previous_response_id"))
    body = msgspec.json.encode({**fields, "stream": True})
    return body, continued if isinstance(continued, str) else None


def _value(raw: msgspec.Raw | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)
