"""One budget for the whole process: the bytes of all request bodies that are arriving or not yet decoded.

    a body                  its bytes             if the budget is used up
    arrives                 are counted           it may be dropped, with 429: see below
    is complete             stay counted          it is kept
    is decoded or refused   are given back        -

The body dropped is the oldest unfinished one of the address that holds the most bytes in unfinished bodies.
So a client that sends many bodies and finishes none loses its own, and a body that arrives at network speed
is safe from slow ones. Waiting instead would let slow senders hold the budget until their deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from splitserve.frontend.http.errors import HttpError

_RETRY_S = 1.0


@dataclass(slots=True, eq=False)
class ArrivingBody:
    """One body; `give_up` is called at most once, and its bytes are given back when it has ended."""

    address: str
    give_up: Callable[[], None]
    num_bytes: int = 0
    given_up: bool = False


@dataclass(slots=True)
class _Address:
    """The unfinished bodies of one address, in the order of their first bytes."""

    bodies: dict[ArrivingBody, None] = field(default_factory=dict)
    num_bytes: int = 0


class BodyBudget:
    """Counts the bytes of one process's bodies; belongs to its event loop.

    Attributes:
        num_bytes: bytes held now.
    """

    def __init__(self, max_bytes: int) -> None:
        """Create a budget; max_bytes is at least the size of the largest body."""
        self.num_bytes = 0
        self._max_bytes = max_bytes
        # At most one per connection.
        self._unfinished: dict[str, _Address] = {}

    def add(self, body: ArrivingBody, num_bytes: int) -> None:
        """Count newly arrived bytes of an unfinished body, and drop other bodies if that is too much.

        Raises:
            HttpError: 429, this body is the one to drop.
        """
        place = self._unfinished.setdefault(body.address, _Address())
        place.bodies[body] = None
        place.num_bytes += num_bytes
        body.num_bytes += num_bytes
        self.num_bytes += num_bytes
        while self.num_bytes > self._max_bytes:
            most = max(self._unfinished.values(), key=lambda each: each.num_bytes)
            victim = next(iter(most.bodies))
            self.leave(victim)
            victim.given_up = True
            if victim is body:
                raise given_up_error()
            victim.give_up()

    def complete(self, body: ArrivingBody) -> None:
        """Mark a body as complete: it is no longer dropped."""
        place = self._unfinished.get(body.address)
        if place is None or body not in place.bodies:
            return
        del place.bodies[body]
        place.num_bytes -= body.num_bytes
        if not place.bodies:
            del self._unfinished[body.address]

    def leave(self, body: ArrivingBody) -> None:
        """Give back a body's bytes; safe to call twice."""
        self.complete(body)
        self.num_bytes -= body.num_bytes
        body.num_bytes = 0


def given_up_error() -> HttpError:
    """Return the error for the client of a dropped body."""
    return HttpError(
        429, "overloaded", "Too many request bodies are arriving at once; try again shortly.", _RETRY_S
    )
