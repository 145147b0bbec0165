"""Single-threaded histograms: plain numbers without locks, because every token pays for them.

They are kept in arrays so that native code can add to them too (frontend.engines.connection.token_relay).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from math import inf

from prometheus_client.core import HistogramMetricFamily

from splitserve.frontend.engines.connection.token_relay import LatencyBuckets

TIME_BUCKETS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    600.0,
)
_MILLISECONDS = (0.5, 1, 2.5, 5, 10, 15, 20, 30, 40, 50, 75, 100, 150, 200, 300, 500, 1000, 2500, 10000)
TOKEN_TIME_BUCKETS = tuple(value / 1000 for value in _MILLISECONDS)
COUNT_BUCKETS = tuple(float(2**power) for power in range(18))
N_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0)


class Histogram:
    """Counts per bucket and a sum; used by the event loop only."""

    __slots__ = ("_bounds", "_counts", "_sum", "_upper")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._upper = array("d", self._bounds)
        self._counts = array("q", [0] * (len(self._bounds) + 1))
        self._sum = array("d", [0.0])

    def observe(self, value: float, weight: int = 1) -> None:
        """Add a value that was observed `weight` times."""
        self._counts[bisect_left(self._bounds, value)] += weight
        self._sum[0] += value * weight

    @property
    def buckets(self) -> LatencyBuckets:
        """The arrays through which native code observes values too."""
        return LatencyBuckets(self._upper, self._counts, self._sum)

    @property
    def sum(self) -> float:
        """Sum of all observed values."""
        return self._sum[0]

    @property
    def count(self) -> int:
        """Number of observed values."""
        return sum(self._counts)

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Add the cumulative buckets to a metric family."""
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*self._bounds, inf), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == inf else str(bound), total))
        family.add_metric(list(labels), buckets, self.sum)
