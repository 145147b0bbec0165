"""How long the host waits for a GPU, which may be waiting for other ranks itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

from splitserve.engine_core.errors import RankLostError


class Event(Protocol):
    """A place in a device's work, as torch.cuda.Event is."""

    def query(self) -> bool:
        """Whether the device has come to it."""

    def synchronize(self) -> None:
        """Wait until it has."""


def wait_for(event: Event, longest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
    """Return once the device has come to an event.

    NCCL looks after the time of its own calls, but not of those that a graph replays.

    Args:
        event: enqueued.
        longest_s: infinite for a rank that is alone.
        clock: in seconds.

    Raises:
        RankLostError: it has not come in time.
    """
    if longest_s == math.inf:
        event.synchronize()
        return
    deadline_s = clock() + longest_s
    while not event.query():
        if clock() > deadline_s:
            raise RankLostError(
                f"an exchange with the other ranks failed: the GPU has waited in it for over {longest_s:g} s"
            )
