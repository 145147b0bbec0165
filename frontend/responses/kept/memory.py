"""What does a WebSocket remember? Its last response, kept or not, so that the next can continue it."""

from __future__ import annotations

from starlette.requests import Request

from splitserve.frontend.response_store.records import Record
from splitserve.frontend.response_store.rows import RowKey

# Key of a request's state.
MEMORY_STATE = "socket_memory"


class SocketMemory:
    """The last response of one WebSocket."""

    def __init__(self, max_bytes: int) -> None:
        """Args: what has more bytes of JSON is not remembered."""
        self._max_bytes = max_bytes
        self._last: tuple[RowKey, Record] | None = None

    def get(self, key: RowKey) -> Record | None:
        """Return the last response if it has this key."""
        return self._last[1] if self._last is not None and self._last[0] == key else None

    def put(self, key: RowKey, record: Record) -> None:
        """Remember a response instead of the one before."""
        self._last = (key, record) if record.num_bytes <= self._max_bytes else None

    def forget(self, response_id: str) -> None:
        """Forget a response, if it is the last."""
        if self._last is not None and self._last[0].id == response_id:
            self._last = None


def memory_of(request: Request) -> SocketMemory | None:
    """Return the memory of the WebSocket that a request came through; None if it came by itself."""
    found: SocketMemory | None = getattr(request.state, MEMORY_STATE, None)
    return found
