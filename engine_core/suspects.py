"""Which request do engines or workers die of? Judged by who was there each time; no I/O.

    present at a death    in common with an earlier death       then
    any number            none                                  all go on
    any number            one                                   it is unsafe, and ends
    any number            2 to MAX_SUSPECTS                     they go on one at a time, the others at once
    any number            more                                  all go on: the cause is more likely elsewhere

A suspect that goes on alone and brings another death about is the only one in common, so it ends by the
second row. One that is seen to get further than it had is cleared, and the next suspect has its turn.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

MAX_SUSPECTS = 8

K = TypeVar("K", bound=Hashable)


class Verdict(NamedTuple, Generic[K]):
    """What follows from a death.

    Attributes:
        unsafe: requests that must not be tried again; at most one.
        suspects: requests to try one at a time, in this order.
    """

    unsafe: list[K]
    suspects: list[K]


class Suspects(Generic[K]):
    """Remembers which of the requests in flight were present at a death; the owner drops those that end."""

    def __init__(self) -> None:
        # How many deaths each request was present at; bounded by the requests in flight.
        self._deaths: dict[K, int] = {}

    def __contains__(self, request: object) -> bool:
        return request in self._deaths

    def died(self, present: Collection[K]) -> Verdict[K]:
        """Judge a death.

        Args:
            present: requests that may have caused it: those in flight, without those that waited elsewhere.
        """
        common = [request for request in present if request in self._deaths]
        for request in present:
            self._deaths[request] = self._deaths.get(request, 0) + 1
        if len(common) == 1:
            self.forget(common)
            return Verdict(common, [])
        return Verdict([], common if len(common) <= MAX_SUSPECTS else [])

    def acquit(self, present: Iterable[K]) -> None:
        """Take a death back: the engine was only out of reach, or the request got further than it had."""
        for request in present:
            num_deaths = self._deaths.get(request, 0)
            if num_deaths > 1:
                self._deaths[request] = num_deaths - 1
            else:
                self._deaths.pop(request, None)

    def forget(self, requests: Iterable[K]) -> None:
        """Drop requests that have ended."""
        for request in requests:
            self._deaths.pop(request, None)
