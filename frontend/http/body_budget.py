"""The bytes of all bodies that are on their way or not yet decoded: one budget for the whole process.

    a body                  its bytes             if the budget is used up
    arrives                 are counted           it may be given up, with 429: see below
    is complete             stay counted          it stays
    is decoded or refused   are given back        -

What is given up is the oldest unfinished body of the address that holds most in such bodies. So whoever sends
many bodies and ends none of them loses its own, and a body that arrives as fast as its network has it is
safe from those that do not. Waiting instead would let slow senders keep the budget as long as their deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from splitserve.frontend.http.errors import HttpError

_RETRY_S = 1.0


@dataclass(slots=True, eq=False)
class ArrivingBody:
    """One body; `give_up` is called at most once, and what it holds is given back when it has ended."""

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
    """Counts the bodies of one process; belongs to its event loop.

    Attributes:
        num_bytes: held now.
    """

    def __init__(self, max_bytes: int) -> None:
        """Prepare; max_bytes is at least the size of the largest body."""
        self.num_bytes = 0
        self._max_bytes = max_bytes
        # At most one per connection.
        self._unfinished: dict[str, _Address] = {}

    def add(self, body: ArrivingBody, num_bytes: int) -> None:
        """Count what has arrived of an unfinished body, and give up others if that is too much.

        Raises:
            HttpError: 429, this body is the one to give up.
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
        """Keep a body for certain from now on: all of it is here."""
        place = self._unfinished.get(body.address)
        if place is None or body not in place.bodies:
            return
        del place.bodies[body]
        place.num_bytes -= body.num_bytes
        if not place.bodies:
            del self._unfinished[body.address]

    def leave(self, body: ArrivingBody) -> None:
        """Give back what a body holds; safe to call again."""
        self.complete(body)
        self.num_bytes -= body.num_bytes
        body.num_bytes = 0


def given_up_error() -> HttpError:
    """Return what the client of a body that was given up hears."""
    return HttpError(
        429, "overloaded", "Too many request bodies are arriving at once; try again shortly.", _RETRY_S
    )
