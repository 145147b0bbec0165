"""How many connections may be open, in all and per address, and how long one may take for its headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

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


def _nothing() -> None:
    """Be the callback of those who want none."""
