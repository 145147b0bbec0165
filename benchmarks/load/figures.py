"""What do times of events, steps and memory mean? Pure functions over columns; latencies in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from benchmarks.load.plan import FloatColumn, IntColumn, Seen

QUANTILES = (0.5, 0.99, 0.999, 1.0)


class Spread(msgspec.Struct, frozen=True):
    """Percentiles of a quantity; all 0 when there was nothing to measure."""

    count: int = 0
    p50: float = 0.0
    p99: float = 0.0
    p999: float = 0.0
    max: float = 0.0

    def __str__(self) -> str:
        places = f"p50 {self.p50:.1f}, p99 {self.p99:.1f}, p99.9 {self.p999:.1f}, max {self.max:.1f}"
        return f"{places} (n {self.count})"


def spread(columns: Iterable[FloatColumn], scale: float = 1e3) -> Spread:
    """Return the percentiles of all values times scale."""
    values = np.concatenate([*columns, np.zeros(0)])
    if len(values) == 0:
        return Spread()
    return Spread(len(values), *(np.quantile(values, QUANTILES) * scale).tolist())


def delays(steps_s: FloatColumn, times_s: FloatColumn, num_tokens: IntColumn) -> FloatColumn:
    """Return how long after its step each event of a stream came, in seconds.

    A row gets one token per step, so the step of one token gives those of all others. Which step made the
    first token is found from the event that came soonest: some event must have come before the step after its
    own was over, else all delays are a step's time too small.

    Args:
        steps_s: [m] when each step was over, ascending.
        times_s: [n] when each event came.
        num_tokens: [n] tokens of the stream up to and with each event.
    """
    if len(times_s) == 0:
        return times_s
    last_step = np.searchsorted(steps_s, times_s, side="right") - 1
    first = int((last_step - (num_tokens - 1)).min())
    steps = first + num_tokens - 1
    known = (steps >= 0) & (steps < len(steps_s))
    return times_s[known] - steps_s[steps[known]]


def within(times_s: FloatColumn, begin_s: float, end_s: float) -> slice:
    """Return the places of the times in [begin_s, end_s)."""
    begin, end = np.searchsorted(times_s, [begin_s, end_s])
    return slice(int(begin), int(end))


def gaps(seen: Iterable[Seen], begin_s: float, end_s: float) -> Spread:
    """Return the times between the events of each stream in a window."""
    return spread(np.diff(stream.times_s[within(stream.times_s, begin_s, end_s)]) for stream in seen)


def slope_mb_per_h(times_s: Sequence[float], sizes_bytes: Sequence[int]) -> float:
    """Return the least-squares growth of a size; the first third, in which caches fill, is left out."""
    begin = len(times_s) // 3
    if len(times_s) - begin < 3:
        return 0.0
    hours = np.array(times_s[begin:]) / 3600
    return float(np.polyfit(hours - hours[0], np.array(sizes_bytes[begin:]) / 1e6, 1)[0])


def recovery_s(asks: Sequence[tuple[float, float]], over_s: float, normal_s: float) -> float:
    """Return how long after the end of an overload things were as before, for good.

    Args:
        asks: when each request was sent and how long its first token took; infinite for one that was refused.
        over_s: when the overload ended.
        normal_s: a time to first token that counts as normal.
    """
    slow = [sent_s for sent_s, took_s in asks if sent_s >= over_s and took_s > normal_s]
    return max(slow) - over_s if slow else 0.0
