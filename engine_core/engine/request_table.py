"""Which requests are in flight? Looked up by frontend and handle."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from splitserve.engine_core.errors import IntegrityError, InvalidRequestError
from splitserve.engine_core.request import FrontendId, Request


class RequestTable:
    """Requests in flight and a small integer per frontend that has any.

    Both are bounded by the number of requests, which the waiting queue and the rows bound: a frontend without
    a request leaves nothing here, so the integers are reused.
    """

    def __init__(self) -> None:
        self._by_frontend: dict[FrontendId, dict[int, Request]] = {}
        self._idx_of: dict[FrontendId, int] = {}
        self._frontend_at: list[FrontendId | None] = []
        self._free_idx: list[int] = []
        self._num_requests = 0

    def __len__(self) -> int:
        return self._num_requests

    def __iter__(self) -> Iterator[Request]:
        for requests in self._by_frontend.values():
            yield from requests.values()

    @property
    def num_frontends(self) -> int:
        """Frontends with a request in flight."""
        return len(self._by_frontend)

    def check_new(self, frontend: FrontendId, handle: int) -> None:
        """Refuse a handle that is in use.

        Raises:
            InvalidRequestError: the frontend has a request in flight with this handle.
        """
        if handle in self._by_frontend.get(frontend, ()):
            raise InvalidRequestError(f"handle {handle} is in use", "handle", "duplicate_handle")

    def frontend_at(self, idx: int) -> FrontendId:
        """Return the frontend that an integer in use stands for."""
        frontend = self._frontend_at[idx]
        assert frontend is not None, f"no frontend has the index {idx}"
        return frontend

    def add(self, request: Request) -> None:
        """Add a request whose handle has passed check_new(), and give it its frontend's integer."""
        request.frontend_idx = self._frontend_idx(request.frontend)
        self._by_frontend.setdefault(request.frontend, {})[request.handle] = request
        self._num_requests += 1

    def get(self, frontend: FrontendId, handle: int) -> Request | None:
        """Return the request with this handle, None if there is none."""
        return self._by_frontend.get(frontend, {}).get(handle)

    def of_frontend(self, frontend: FrontendId) -> list[Request]:
        """Return the requests of one frontend."""
        return list(self._by_frontend.get(frontend, {}).values())

    def remove(self, request: Request) -> None:
        """Remove a request, and with a frontend's last request the frontend too."""
        requests = self._by_frontend[request.frontend]
        del requests[request.handle]
        self._num_requests -= 1
        if not requests:
            del self._by_frontend[request.frontend]
            idx = self._idx_of.pop(request.frontend)
            self._frontend_at[idx] = None
            heapq.heappush(self._free_idx, idx)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless counts and indices agree."""
        count = sum(len(requests) for requests in self._by_frontend.values())
        if count != self._num_requests:
            raise IntegrityError(f"{count} requests are in flight, {self._num_requests} counted")
        if self._by_frontend.keys() != self._idx_of.keys():
            raise IntegrityError("frontends with requests and frontends with an index differ")
        used = {idx for idx, frontend in enumerate(self._frontend_at) if frontend is not None}
        if used != set(self._idx_of.values()) or used & set(self._free_idx):
            raise IntegrityError("frontend indices in use and free ones overlap")

    def _frontend_idx(self, frontend: FrontendId) -> int:
        idx = self._idx_of.get(frontend)
        if idx is None:
            if self._free_idx:
                idx = heapq.heappop(self._free_idx)
            else:
                idx = len(self._frontend_at)
                self._frontend_at.append(None)
            self._idx_of[frontend] = idx
            self._frontend_at[idx] = frontend
        return idx
