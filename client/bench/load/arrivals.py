"""When is each request sent? Pure functions of rate, shape and random numbers."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from splitserve.client.bench.load.traffic import TrafficSettings

Times = npt.NDArray[np.float64]


def arrival_times(settings: TrafficSettings, count: int, rng: np.random.Generator) -> Times:
    """Return when to send each of `count` requests, in seconds from the start, ascending.

    At a steady rate the last one comes after count / rate seconds exactly, so that runs with different seeds
    offer the same load.
    """
    rates = _rates(settings, count)
    if np.isinf(rates).all():
        return np.zeros(count)
    gaps = rng.gamma(settings.burstiness, 1 / (rates * settings.burstiness))
    times: Times = np.cumsum(gaps)
    if settings.ramp_up_strategy == "none":
        times *= count / settings.request_rate / times[-1]
    return times


def _rates(settings: TrafficSettings, count: int) -> Times:
    """Return the request rate at each request."""
    start, end = settings.ramp_up_start_rps, settings.ramp_up_end_rps
    if settings.ramp_up_strategy == "none" or start is None or end is None:
        return np.full(count, settings.request_rate)
    progress = np.arange(count) / max(1, count - 1)
    if settings.ramp_up_strategy == "linear":
        return start + (end - start) * progress
    return start * np.exp(progress * math.log(end / start))
