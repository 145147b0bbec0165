"""How many connections may be open, in all and per address, and how long one may take for its headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from splitserve.frontend.config import FrontendConfig

# Refused connections that are still read, so that their clients get the refusal; any more are cut at once.
MAX_LINGERING = 64


class ConnectionLimits:
    """The open connections of this process, in all and per address.

    Attributes:
        num_open: connections now.
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
        """Count a connection; False if it is one too many. Either way leave() follows."""
        self.num_open += 1
        self._open[address] += 1
        too_many_there = self._max_per_address and self._open[address] > self._max_per_address
        return self.num_open <= self._max and not too_many_there

    def linger(self) -> bool:
        """Count a refused connection that has left and is still read; False if it is one too many."""
        if self._num_lingering >= MAX_LINGERING:
            return False
        self._num_lingering += 1
        return True

    def end_linger(self) -> None:
        """Forget one that lingered."""
        self._num_lingering -= 1

    def leave(self, address: str) -> None:
        """Forget a connection."""
        self.num_open -= 1
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]
        self.on_leave()


class ConnectionPlace:
    """What one connection takes of the limits: a place, or once it is refused that of one that lingers.

    Attributes:
        is_free: whether there was room for it; it is refused otherwise.
    """

    def __init__(self, limits: ConnectionLimits, address: str) -> None:
        self._limits = limits
        self._give_back = partial(limits.leave, address)
        self.is_free = limits.enter(address)

    def refuse(self) -> bool:
        """Leave room for others at once; return whether this one may still be read for a while."""
        self.leave()
        lingers = self._limits.linger()
        if lingers:
            self._give_back = partial(self._limits.end_linger)
        return lingers

    def leave(self) -> None:
        """Give back what it takes; safe to call twice."""
        give_back, self._give_back = self._give_back, partial(_nothing)
        give_back()


def _nothing() -> None:
    """Be the callback of those who want none."""
