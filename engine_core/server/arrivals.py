"""Which messages belong to one client's request, whose sequences arrive one message at a time.

message           pending of its frontend     afterwards
more follows      any                         kept
the last          any                         all of them are one request
abort of a kept   kept                        dropped; the frontend sends no more of this request
frontend leaves   kept                        dropped
"""

from __future__ import annotations

from collections.abc import Iterable

from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.request import FrontendId


class Arrivals:
    """Requests that have not arrived completely, at most one per frontend; used by the engine's thread.

    Args:
        max_num_siblings: sequences a request may have; a request with more is cut there and refused.
    """

    def __init__(self, max_num_siblings: int) -> None:
        self._max_num_siblings = max_num_siblings
        self._pending: dict[FrontendId, list[AddRequest]] = {}

    def take(self, frontend: FrontendId, message: AddRequest) -> list[AddRequest]:
        """Take a message; return all messages of its request once it is complete, and [] until then."""
        if not message.more and frontend not in self._pending:
            return [message]
        pending = self._pending.setdefault(frontend, [])
        pending.append(message)
        if message.more and len(pending) <= self._max_num_siblings:
            return []
        return self._pending.pop(frontend)

    def abort(self, frontend: FrontendId, handles: Iterable[int]) -> None:
        """Drop the incomplete request if the frontend aborts any of its sequences."""
        pending = self._pending.get(frontend)
        if pending is not None and not {message.handle for message in pending}.isdisjoint(handles):
            del self._pending[frontend]

    def drop(self, frontend: FrontendId) -> None:
        """Drop the incomplete request of a frontend that is gone."""
        self._pending.pop(frontend, None)
