"""Percentiles of very many values of which most are equal: each is kept once per step, with its count."""

from __future__ import annotations

from array import array

import msgspec
import numpy as np

from benchmarks.simulation.trace import FloatColumn

QUANTILES = (0.5, 0.9, 0.99)


class Summary(msgspec.Struct, frozen=True):
    """Mean, percentiles and maximum of one quantity; all 0 when there was nothing to measure."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class WeightedValues:
    """Values with multiplicities; percentiles are those of numpy over the values written out."""

    def __init__(self) -> None:
        self._values = array("d")
        self._counts = array("q")

    def add(self, values: FloatColumn) -> None:
        """Add [n] values; the rows of a step mostly share one, which then takes 16 bytes, not 16 n."""
        if len(values) == 0:
            return
        if (values == values[0]).all():
            self._values.append(float(values[0]))
            self._counts.append(len(values))
            return
        unique, counts = np.unique(values, return_counts=True)
        self._values.extend(unique.tolist())
        self._counts.extend(counts.tolist())

    def quantiles(self, at: FloatColumn) -> FloatColumn:
        """Return the quantiles at [m] places in 0..1, interpolated linearly; zeros without values."""
        values, ends = self._sorted()
        if len(values) == 0:
            return np.zeros(len(at))
        place = np.asarray(at) * (ends[-1] - 1)
        low = np.floor(place).astype(np.int64)
        below = values[np.searchsorted(ends, low, side="right")]
        above = values[np.searchsorted(ends, np.minimum(low + 1, ends[-1] - 1), side="right")]
        quantiles: FloatColumn = below + (place - low) * (above - below)
        return quantiles

    def summary(self, scale: float) -> Summary:
        """Return the summary of all values times scale."""
        values, ends = self._sorted()
        if len(values) == 0:
            return Summary()
        mean = float((values * np.diff(ends, prepend=0)).sum() / ends[-1])
        p50, p90, p99 = self.quantiles(np.array(QUANTILES)).tolist()
        return Summary(
            int(ends[-1]), mean * scale, p50 * scale, p90 * scale, p99 * scale, float(values[-1]) * scale
        )

    def _sorted(self) -> tuple[FloatColumn, np.ndarray]:
        values = np.array(self._values)
        order = np.argsort(values)
        return values[order], np.cumsum(np.array(self._counts, np.int64)[order])


def summarise(values: FloatColumn, scale: float) -> Summary:
    """Return the summary of [n] values times scale."""
    if len(values) == 0:
        return Summary()
    p50, p90, p99 = (np.quantile(values, QUANTILES) * scale).tolist()
    return Summary(len(values), float(values.mean()) * scale, p50, p90, p99, float(values.max()) * scale)
