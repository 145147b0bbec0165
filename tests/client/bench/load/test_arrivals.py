"""Requests are sent at the rate asked for, as bursty as asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from splitserve.client.bench.load.arrivals import arrival_times
from splitserve.client.bench.load.traffic import TrafficSettings
from splitserve.engine_core.errors import ConfigError


def times(count: int = 2000, **settings: object) -> np.ndarray:
    return arrival_times(TrafficSettings(**settings), count, np.random.default_rng(1))  # type: ignore[arg-type]


def test_without_a_rate_all_are_sent_at_once() -> None:
    assert times(3).tolist() == [0.0, 0.0, 0.0]


def test_the_last_request_comes_when_the_rate_says() -> None:
    found = times(request_rate=50.0)
    assert found[-1] == pytest.approx(2000 / 50)
    assert (np.diff(found) >= 0).all()


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_the_gaps_vary_as_the_burstiness_says(burstiness: float) -> None:
    gaps = np.diff(times(request_rate=10.0, burstiness=burstiness))
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.1)


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
def test_a_ramp_begins_slowly_and_ends_fast(strategy: str) -> None:
    found = times(ramp_up_strategy=strategy, ramp_up_start_rps=1.0, ramp_up_end_rps=100.0, burstiness=1e4)
    gaps = np.diff(found)
    assert gaps[0] == pytest.approx(1.0, rel=0.1)
    assert gaps[-1] == pytest.approx(0.01, rel=0.1)
    middle = 50.5 if strategy == "linear" else 10.0
    assert 1 / gaps[999] == pytest.approx(middle, rel=0.1)


@pytest.mark.parametrize(
    "settings",
    [
        {"request_rate": 0.0},
        {"request_rate": math.nan},
        {"ramp_up_strategy": "linear"},
        {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0},
        {"ramp_up_start_rps": 1.0, "ramp_up_end_rps": 2.0},
        {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 2.0, "request_rate": 1.0},
    ],
)
def test_rates_that_mean_nothing_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"--(request-rate|ramp-up)"):
        TrafficSettings(**settings).validate()  # type: ignore[arg-type]
