"""Which request do engines or workers die of? Judged by who was there each time; no I/O.

    present at a death    in common with an earlier death       then
    any number            none                                  all go on
    any number            one                                   it is unsafe, and ends
    any number            one that may only have waited         it is a suspect; unsafe with its third death
    any number            2 to MAX_SUSPECTS                     they go on one at a time, the others at once
    any number            more                                  all go on: the cause is more likely elsewhere

A suspect that goes on alone and brings another death about is the only one in common, so it ends by the
second row. One that is seen to get further than it had is cleared, and the next suspect has its turn.

One that may only have waited in a queue, at each of its deaths, becomes a suspect first.

A death may be uncertain at first: a process that is out of reach may live. Nobody is unsafe while any death
that speaks against it is uncertain; it has to wait until all of them are certain, or taken back.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

MAX_SUSPECTS = 8

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True, eq=False)
class Death:
    """One death.

    Attributes:
        is_certain: whether the process is known to have ended.
    """

    is_certain: bool = True


class Verdict(NamedTuple, Generic[K]):
    """What follows from a death.

    Attributes:
        unsafe: requests that must not be tried again; at most one.
        suspects: requests to try one at a time, in this order.
        doubtful: requests that have to wait until the deaths against them are certain; at most one.
    """

    unsafe: list[K]
    suspects: list[K]
    doubtful: list[K]


class Suspects(Generic[K]):
    """Remembers which of the requests in flight were present at a death; the owner drops those that end."""

    def __init__(self) -> None:
        # The deaths that each request was present at; bounded by the requests in flight, and by how often one
        # of them is tried again.
        self._deaths: dict[K, list[Death]] = {}
        # Those of them that did not only wait before each of their deaths.
        self._have_run: set[K] = set()

    def __contains__(self, request: object) -> bool:
        return request in self._deaths

    def died(
        self, present: Collection[K], death: Death | None = None, unseen: Collection[K] = ()
    ) -> Verdict[K]:
        """Judge a death.

        Args:
            present: requests that may have caused it: those in flight, without those that waited elsewhere.
            death: a certain one if left out.
            unseen: those present that may only have waited there.
        """
        death = death or Death()
        common = [request for request in present if request in self._deaths]
        for request in present:
            self._deaths.setdefault(request, []).append(death)
        self._have_run.update(request for request in present if request not in unseen)
        if len(common) != 1:
            return Verdict([], common if len(common) <= MAX_SUSPECTS else [], [])
        if not self.are_certain(common[0]):
            return Verdict([], [], common)
        if not self.is_proven(common[0]):
            return Verdict([], common, [])
        self.forget(common)
        return Verdict(common, [], [])

    def num_deaths(self, request: K) -> int:
        """Return the number of deaths that speak against a request."""
        return len(self._deaths.get(request, ()))

    def are_certain(self, request: K) -> bool:
        """Return whether all deaths that speak against a request are certain."""
        return all(death.is_certain for death in self._deaths.get(request, ()))

    def is_proven(self, request: K) -> bool:
        """Return whether so many deaths speak against a request that it is unsafe, and all are certain."""
        num_needed = 2 if request in self._have_run else 3
        return self.num_deaths(request) >= num_needed and self.are_certain(request)

    def take_back(self, death: Death) -> None:
        """Take a death back: the process was only out of reach."""
        for request, deaths in list(self._deaths.items()):
            if death in deaths:
                deaths.remove(death)
                if not deaths:
                    self.forget([request])

    def forget(self, requests: Iterable[K]) -> None:
        """Drop requests that have ended, or got further than they had."""
        for request in requests:
            self._deaths.pop(request, None)
            self._have_run.discard(request)
