"""Which messages make up one client's request, whose sequences come one after the other.

message           pending of its frontend     afterwards
more follows      any                         kept
the last          any                         all of them are one request
abort of a kept   kept                        forgotten, as its frontend sends no more of it
frontend leaves   kept                        forgotten
"""

from __future__ import annotations

from collections.abc import Iterable

from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.request import FrontendId


class Arrivals:
    """Requests of which messages are missing, at most one per frontend; used by the engine's thread.

    Args:
        max_num_siblings: sequences a request may have; what has more is cut there, and refused.
    """

    def __init__(self, max_num_siblings: int) -> None:
        self._max_num_siblings = max_num_siblings
        self._pending: dict[FrontendId, list[AddRequest]] = {}

    def take(self, frontend: FrontendId, message: AddRequest) -> list[AddRequest]:
        """Take a message; returns all those of its request once it is complete, until then none."""
        if not message.more and frontend not in self._pending:
            return [message]
        pending = self._pending.setdefault(frontend, [])
        pending.append(message)
        if message.more and len(pending) <= self._max_num_siblings:
            return []
        return self._pending.pop(frontend)

    def abort(self, frontend: FrontendId, handles: Iterable[int]) -> None:
        """Forget a request of which the frontend gives up any sequence before the last one has come."""
        pending = self._pending.get(frontend)
        if pending is not None and not {message.handle for message in pending}.isdisjoint(handles):
            del self._pending[frontend]

    def drop(self, frontend: FrontendId) -> None:
        """Forget what a frontend that is gone had begun to send."""
        self._pending.pop(frontend, None)
