"""How many connections may be open, in total and per address, and how long may one take for its headers?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from splitserve.frontend.config import FrontendConfig

# Refused connections that are still read, so that their clients get the refusal; more are closed at once.
MAX_LINGERING = 64


class ConnectionLimits:
    """The open connections of this process, in total and per address.

    Attributes:
        num_open: connections open now.
        on_leave: called when one has ended.
    """

    def __init__(self, config: FrontendConfig) -> None:
        self.header_timeout_s = config.header_timeout_s
        self.num_open = 0
        self.on_leave: Callable[[], None] = _nothing
        self._max = config.max_connections
        self._max_per_address = config.max_connections_per_address
        self._open: Counter[str] = Counter()
        self._num_lingering = 0

    def enter(self, address: str) -> bool:
        """Count a connection; False if it is one too many. Call leave() afterwards in either case."""
        self.num_open += 1
        self._open[address] += 1
        too_many_there = self._max_per_address and self._open[address] > self._max_per_address
        return self.num_open <= self._max and not too_many_there

    def linger(self) -> bool:
        """Count a refused connection that is still read after leave(); False if it is one too many."""
        if self._num_lingering >= MAX_LINGERING:
            return False
        self._num_lingering += 1
        return True

    def end_linger(self) -> None:
        """Stop counting a lingering connection."""
        self._num_lingering -= 1

    def leave(self, address: str) -> None:
        """Stop counting a connection."""
        self.num_open -= 1
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]
        self.on_leave()


class ConnectionPlace:
    """One connection's place within the limits; once refused, a lingering connection's place.

    Attributes:
        is_free: whether there was room for it; otherwise it is refused.
    """

    def __init__(self, limits: ConnectionLimits, address: str) -> None:
        self._limits = limits
        self._give_back = partial(limits.leave, address)
        self.is_free = limits.enter(address)

    def refuse(self) -> bool:
        """Make room for others at once; return whether this one may still be read for a while."""
        self.leave()
        lingers = self._limits.linger()
        if lingers:
            self._give_back = partial(self._limits.end_linger)
        return lingers

    def leave(self) -> None:
        """Give the place back; safe to call twice."""
        give_back, self._give_back = self._give_back, partial(_nothing)
        give_back()


def _nothing() -> None:
    """Do nothing: the default callback."""
