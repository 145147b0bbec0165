"""Waiting for a GPU with a timeout, since the GPU may itself be waiting for other ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

from splitserve.engine_core.errors import RankLostError


class Event(Protocol):
    """A point in a device's work, such as a torch.cuda.Event."""

    def query(self) -> bool:
        """Whether the device has reached it."""

    def synchronize(self) -> None:
        """Wait until the device has reached it."""


def wait_for(event: Event, longest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
    """Return once the device has reached an event.

    NCCL enforces a timeout on its own calls, but not on those replayed by a graph.

    Args:
        event: already enqueued.
        longest_s: timeout in seconds; infinite for a single rank.
        clock: in seconds.

    Raises:
        RankLostError: the timeout has passed.
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
