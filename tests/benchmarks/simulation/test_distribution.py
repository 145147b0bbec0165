"""Percentiles of values with multiplicities, against numpy on the values written out."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simulation.distribution import Summary, WeightedValues, summarise


@pytest.mark.parametrize("seed", range(20))
def test_percentiles_are_those_of_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps = []
    for _ in range(int(rng.integers(1, 30))):
        repeated = np.full(int(rng.integers(1, 6)), rng.random())
        steps.append(np.concatenate([repeated, rng.random(int(rng.integers(0, 4)))]))
    weighted = WeightedValues()
    for step in steps:
        weighted.add(step)
    everything = np.concatenate(steps)
    places = np.array([0, 0.01, 0.25, 0.5, 0.9, 0.99, 1])
    assert weighted.quantiles(places) == pytest.approx(np.quantile(everything, places), rel=1e-12)
    assert weighted.summary(1000).mean == pytest.approx(everything.mean() * 1000)
    assert weighted.summary(1000).count == len(everything)
    assert weighted.summary(1).p99 == pytest.approx(summarise(everything, 1).p99)


def test_nothing_measured_is_all_zero() -> None:
    weighted = WeightedValues()
    weighted.add(np.array([]))
    assert weighted.summary(1000) == Summary() == summarise(np.array([]), 1000)
    assert weighted.quantiles(np.array([0.5])).tolist() == [0.0]
