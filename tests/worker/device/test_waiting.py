"""A host waits for its GPU, but not for ever where that waits for another rank."""

from __future__ import annotations

import math

import pytest

from splitserve.engine_core.errors import RankLostError
from splitserve.worker.device.waiting import wait_for


class FakeEvent:
    """Comes at a time of its own; each look at it takes a second.

    Attributes:
        now_s: the time.
    """

    def __init__(self, comes_s: float) -> None:
        self._comes_s = comes_s
        self.now_s = 0.0

    def query(self) -> bool:
        self.now_s += 1
        return self.now_s >= self._comes_s

    def synchronize(self) -> None:
        self.now_s = self._comes_s

    def clock(self) -> float:
        return self.now_s


def test_a_rank_that_is_alone_waits_for_ever() -> None:
    event = FakeEvent(1e9)
    wait_for(event, math.inf, event.clock)
    assert event.now_s == 1e9


def test_what_comes_in_time_is_waited_for() -> None:
    event = FakeEvent(10)
    wait_for(event, 10, event.clock)
    assert event.now_s == 10


def test_the_wait_for_other_ranks_ends() -> None:
    event = FakeEvent(1e9)
    with pytest.raises(RankLostError, match=r"an exchange with the other ranks failed: .* over 10 s"):
        wait_for(event, 10, event.clock)
    assert event.now_s == 11
