"""What the engine looks like from outside, again and again: queue lengths, free blocks, shares of tenants."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from benchmarks.simulation.trace import FloatColumn, IntColumn, Trace
from splitserve.engine_core.ipc.messages import EngineStats, Started


class Sample(NamedTuple):
    """One look; counts are requests and blocks, num_preemptions since the start."""

    time_s: float
    num_waiting: int
    num_running: int
    num_free_blocks: int
    num_preemptions: int


class Series:
    """Samples at most once per interval of simulated time, taken at the first event after its border."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next_s = 0.0
        self.samples: list[Sample] = []

    def is_due(self, now_s: float) -> bool:
        """Whether take() should be called."""
        return now_s >= self._next_s

    def take(self, now_s: float, stats: EngineStats) -> None:
        """Add a sample."""
        self._next_s = (now_s // self._interval_s + 1) * self._interval_s
        self.samples.append(
            Sample(now_s, stats.num_waiting, stats.num_running, stats.num_free_blocks, stats.num_preemptions)
        )


class FairShares:
    """Compares what tenants get with equal shares among those that have something waiting.

    Service is counted in tokens: prompt tokens not found in the cache when a request starts, output tokens
    as they come. In each interval every tenant that has waiting requests at both ends of it should get
    the same; the lag of a tenant is what it misses, summed while it goes on waiting.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._num_waiting = np.zeros(trace.num_tenants, np.int64)
        self._was_waiting = np.zeros(trace.num_tenants, np.bool_)
        self._service = np.zeros(trace.num_tenants, np.int64)
        self._lag = np.zeros(trace.num_tenants)
        self._jain: list[float] = []
        self.total_service = np.zeros(trace.num_tenants, np.int64)
        self.max_lag_tokens = 0.0

    def waits(self, request: int) -> None:
        """Note a request that was accepted."""
        self._num_waiting[self._trace.tenant[request]] += 1

    def gave_up(self, request: int) -> None:
        """Note a request that ended without having started."""
        self._num_waiting[self._trace.tenant[request]] -= 1

    def starts(self, started: Started) -> None:
        """Note a request that left the queue."""
        tenant = self._trace.tenant[started.handle]
        self._num_waiting[tenant] -= 1
        self._service[tenant] += self._trace.prompt_tokens[started.handle] - started.num_cached_tokens

    def tokens(self, requests: IntColumn) -> None:
        """Note requests that got a token each, [n]."""
        if len(self._service) == 1:
            self._service[0] += len(requests)
        else:
            self._service += np.bincount(self._trace.tenant[requests], minlength=len(self._service))

    def close_interval(self) -> None:
        """Compare the shares since the last call."""
        waiting = self._num_waiting > 0
        compared = waiting & self._was_waiting
        self._was_waiting = waiting
        service, self._service = self._service, np.zeros_like(self._service)
        self.total_service += service
        self._lag[~compared] = 0
        if compared.sum() < 2:
            return
        shares = service[compared].astype(np.float64)
        self._jain.append(jain_index(shares))
        self._lag[compared] += shares.mean() - shares
        self.max_lag_tokens = max(self.max_lag_tokens, float(self._lag.max()))

    @property
    def mean_jain(self) -> float:
        """Mean of Jain's index over the intervals in which two or more tenants waited; 1 without any."""
        return float(np.mean(self._jain)) if self._jain else 1.0


def jain_index(shares: FloatColumn) -> float:
    """Return Jain's index: 1 for equal shares, 1/n when one of n has all; 1 when nobody has anything."""
    squares = float((shares**2).sum())
    return 1.0 if squares == 0 else float(shares.sum()) ** 2 / (len(shares) * squares)
