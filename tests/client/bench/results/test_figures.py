"""The figures of a run are what their names say."""

from __future__ import annotations

import pytest

from splitserve.client.bench.load.measured import Measured
from splitserve.client.bench.load.run import Run
from splitserve.client.bench.results.figures import Figures, figures_of


def seen(start_s: float, ttft_s: float, itls_s: list[float], **more: object) -> Measured:
    latency_s = ttft_s + sum(itls_s)
    return Measured(start_s, 0.0, ttft_s, itls_s, latency_s, 10, len(itls_s) + 1, **more)  # type: ignore[arg-type]


RUN = Run(
    [
        seen(5.0, 0.1, [0.02, 0.04]),
        seen(5.5, 0.3, [0.1] * 9),
        seen(5.0, 0.2, []),
        seen(5.0, 9.0, [9.0], error="refused"),
    ],
    2.0,
)


def figures(**limits_s: float) -> Figures:
    return figures_of(RUN, [50.0, 99.0], limits_s)


def test_failed_requests_count_as_failed_only() -> None:
    found = figures()
    assert (found.num_completed, found.num_failed) == (3, 1)
    assert (found.num_input_tokens, found.num_output_tokens) == (30, 14)
    assert (found.request_rps, found.output_tps, found.total_tps) == (1.5, 7.0, 22.0)
    assert found.goodput_rps is None


def test_latencies_are_spread_over_requests_and_gaps() -> None:
    spreads = figures().spreads
    assert spreads["ttft"].mean_ms == pytest.approx(200)
    assert spreads["ttft"].percentiles_ms[50.0] == spreads["ttft"].median_ms == pytest.approx(200)
    assert spreads["tpot"].mean_ms == pytest.approx((30 + 100) / 2), "one token has no time per further token"
    assert spreads["itl"].mean_ms == pytest.approx((20 + 40 + 900) / 11)
    assert spreads["e2el"].mean_ms == pytest.approx((160 + 1200 + 200) / 3)


@pytest.mark.parametrize(
    ("limits_s", "goodput"),
    [({"ttft": 0.2}, 1.0), ({"ttft": 0.2, "e2el": 0.19}, 0.5), ({"tpot": 0.05}, 1.0), ({"e2el": 9.0}, 1.5)],
)
def test_goodput_counts_requests_that_keep_every_limit(limits_s: dict[str, float], goodput: float) -> None:
    assert figures(**limits_s).goodput_rps == goodput


def test_peaks_are_of_a_second() -> None:
    found = figures()
    assert found.peak_concurrency == 3
    assert found.peak_output_tps == 8, "of the second request from 6.0 s on"


def test_a_run_in_which_all_failed_has_zeros() -> None:
    found = figures_of(Run([Measured(1.0, error="x")], 1.0), [99.0], {"ttft": 1.0})
    assert (found.num_completed, found.num_failed, found.goodput_rps) == (0, 1, 0.0)
    assert found.spreads["itl"].mean_ms == 0.0
