"""The pure parts: delays against steps, windows, slopes and recovery."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.load.figures import delays, recovery_s, slope_mb_per_h, spread, within

STEPS = np.arange(10.0, 20.0)


def test_a_delay_is_the_time_since_the_step_that_made_the_token() -> None:
    times = np.array([12.1, 13.4, 14.0])
    assert delays(STEPS, times, np.array([1, 2, 3], np.int32)) == pytest.approx([0.1, 0.4, 0.0])


def test_an_event_of_several_tokens_counts_from_the_last_of_them() -> None:
    times = np.array([12.1, 15.2])
    assert delays(STEPS, times, np.array([1, 4], np.int32)) == pytest.approx([0.1, 0.2])


def test_an_event_later_than_a_step_takes_is_seen_as_late() -> None:
    times = np.array([12.1, 14.9, 15.0])
    assert delays(STEPS, times, np.array([1, 2, 3], np.int32)) == pytest.approx([0.1, 1.9, 1.0])


def test_no_events_have_no_delays() -> None:
    assert len(delays(STEPS, np.zeros(0), np.zeros(0, np.int32))) == 0


def test_a_window_holds_its_begin_and_not_its_end() -> None:
    assert STEPS[within(STEPS, 12.0, 14.0)].tolist() == [12.0, 13.0]


def test_percentiles_are_scaled_and_of_all_columns_together() -> None:
    found = spread([np.array([0.001]), np.array([0.003])])
    assert found.count == 2
    assert (found.p50, found.max) == pytest.approx((2.0, 3.0))
    assert spread([]).count == 0


def test_a_slope_leaves_out_what_fills_caches_at_first() -> None:
    hours = np.arange(0.0, 9.0)
    sizes = [100_000_000 * min(int(hour), 3) + int(2e6 * hour) for hour in hours]
    assert slope_mb_per_h((3600 * hours).tolist(), sizes) == pytest.approx(2.0)
    assert slope_mb_per_h([0.0, 1.0], [5, 9]) == 0.0


def test_recovery_is_when_the_last_slow_or_refused_request_after_the_overload_was_sent() -> None:
    asks = [(5.0, 9.0), (10.0, 0.1), (11.5, 2.0), (12.0, 0.1), (13.0, math.inf), (14.0, 0.2)]
    assert recovery_s(asks, over_s=10.0, normal_s=0.5) == pytest.approx(3.0)
    assert recovery_s(asks, over_s=13.5, normal_s=0.5) == 0.0
