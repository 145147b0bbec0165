from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput
from splitserve.engine_core.scheduler.pacing.step_costs import MAX_NS, MAX_RISE, FadingLine, StepCosts
from splitserve.engine_core.sequence_sampling import SequenceSampling

FIXED_S, ROW_S, TOKEN_S, CONTEXT_S = 0.002, 0.0005, 0.0007, 0.00000065


def machine_s(num_decoding: int, chunk: int, context: int, slower: float = 1.0) -> float:
    """Step time of a machine whose prefill token costs twice as much behind 1,077 tokens of context."""
    pairs = chunk * context + chunk * chunk / 2
    return slower * (FIXED_S + ROW_S * num_decoding + TOKEN_S * chunk + CONTEXT_S * pairs)


def observe(costs: StepCosts, num_decoding: int, chunk: int, context: int, seconds: float) -> None:
    tokens = [1] * num_decoding + [chunk] * (chunk > 0)
    computed = np.array([50] * num_decoding + [context + chunk] * (chunk > 0), np.int64)
    costs.observe(pack_int32(tokens), computed, seconds)


def live(costs: StepCosts, num_prompts: int, noise: np.random.Generator, slower: float = 1.0) -> None:
    """Prompts of 2,000 tokens in chunks of 100 to 300, beside 1 to 20 rows that also decode alone."""
    for _ in range(num_prompts):
        context = 0
        while context < 2000:
            rows, chunk = int(noise.integers(1, 21)), int(noise.integers(100, 301))
            times = noise.lognormal(0, 0.05, 2)
            observe(costs, rows, 0, 0, machine_s(rows, 0, 0, slower) * times[0])
            observe(costs, rows, chunk, context, machine_s(rows, chunk, context, slower) * times[1])
            context += chunk


def prefill_s(costs: StepCosts, chunk: int, context: int) -> float:
    cost = costs.prefill()
    assert cost is not None
    return cost.seconds(context, context + chunk)


@pytest.mark.parametrize("seed", range(5))
def test_known_coefficients_are_found_under_noise(seed: int) -> None:
    costs = StepCosts(2048)
    live(costs, 12, np.random.default_rng(seed))
    for rows in (1, 10, 20):
        assert costs.decode_s(rows) == pytest.approx(machine_s(rows, 0, 0), rel=0.1)
    for context in (0, 900, 1800):
        expected = machine_s(0, 200, context) - FIXED_S
        assert prefill_s(costs, 200, context) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("slower", [0.25, 3.0, 8.0])
def test_the_fit_follows_a_machine_that_changes(slower: float) -> None:
    costs, noise = StepCosts(2048), np.random.default_rng(1)
    live(costs, 5, noise)
    live(costs, 30, noise, slower)
    assert costs.decode_s(10) == pytest.approx(machine_s(10, 0, 0, slower), rel=0.2)
    for context in (0, 1800):
        expected = machine_s(0, 200, context, slower) - slower * FIXED_S
        assert prefill_s(costs, 200, context) == pytest.approx(expected, rel=0.2)


def test_recomputing_grows_with_the_context_of_the_positions() -> None:
    costs = StepCosts(2048)
    assert costs.recompute_ns(0, 1000) == 0, "nothing is known"
    observe(costs, 4, 0, 0, machine_s(4, 0, 0))
    assert costs.recompute_ns(0, 1000) == 0, "nothing prefilled yet"
    live(costs, 8, np.random.default_rng(2))
    beginning, end = costs.recompute_ns(0, 200), costs.recompute_ns(1800, 2000)
    assert beginning == pytest.approx(1e9 * (machine_s(0, 200, 0) - FIXED_S), rel=0.1)
    assert end == pytest.approx(1e9 * (machine_s(0, 200, 1800) - FIXED_S), rel=0.1)
    parts = sum(costs.recompute_ns(i, i + 100) for i in range(0, 2000, 100))
    assert costs.recompute_ns(0, 2000) == pytest.approx(parts, abs=20)
    assert costs.recompute_ns(700, 700) == 0


def test_rows_that_prefill_together_count_with_their_own_contexts() -> None:
    together = StepCosts(2048)
    for context in (0, 500, 1000, 1500) * 20:
        seconds = TOKEN_S * 300 + CONTEXT_S * (100 * 50 + 200 * (context + 100))
        computed = np.array([100, context + 200], np.int64)
        together.observe(pack_int32([100, 200]), computed, seconds)
    assert prefill_s(together, 100, 1000) == pytest.approx(machine_s(0, 100, 1000) - FIXED_S, rel=0.02)


def test_a_sliding_window_bounds_the_context_that_counts() -> None:
    costs, window = StepCosts(2048, sliding_window=500), 500
    for place in (*range(0, 3000, 150),) * 4:
        keys = sum(min(p + 0.5, window) for p in range(place, place + 150))
        observe(costs, 8, 150, place, TOKEN_S * 150 + CONTEXT_S * keys)
    inside, outside = (TOKEN_S * 200 + CONTEXT_S * 200 * keys for keys in (100, window))
    assert costs.recompute_ns(0, 200) == pytest.approx(1e9 * inside, rel=0.01)
    assert costs.recompute_ns(700, 900) == pytest.approx(1e9 * outside, rel=0.01)
    assert costs.recompute_ns(10**6, 10**6 + 200) == costs.recompute_ns(700, 900)
    across = sum(costs.recompute_ns(p, p + 1) for p in range(400, 600))
    assert costs.recompute_ns(400, 600) == pytest.approx(across, abs=200)


def test_many_short_prompts_do_not_unlearn_what_context_costs() -> None:
    costs, noise = StepCosts(2048), np.random.default_rng(3)
    live(costs, 10, noise)
    for _ in range(500):
        chunk = int(noise.integers(10, 41))
        observe(costs, 8, chunk, 0, machine_s(8, chunk, 0) * noise.lognormal(0, 0.05))
    expected = machine_s(0, 200, 1800) - FIXED_S
    assert prefill_s(costs, 200, 1800) == pytest.approx(expected, rel=0.4)


def test_one_interrupted_step_hardly_counts() -> None:
    costs = StepCosts(2048)
    live(costs, 10, np.random.default_rng(4))
    before = prefill_s(costs, 200, 1000), costs.decode_s(16)
    observe(costs, 16, 200, 1000, 30.0)
    observe(costs, 16, 0, 0, 30.0)
    assert prefill_s(costs, 200, 1000) <= 1.3 * before[0]
    assert costs.decode_s(16) <= 1.05 * before[1]


def test_one_interrupted_step_among_equal_ones_hardly_counts() -> None:
    costs = StepCosts(2048)
    for seconds in [0.02] * 100 + [30.0] + [0.02] * 10:
        observe(costs, 16, 0, 0, seconds)
    assert 0.02 < costs.decode_s(16) <= 1.03 * 0.02


def test_steps_of_equal_rows_count_one_by_one() -> None:
    costs = StepCosts(64)
    for seconds in [0.010] * 40 + [0.020] * 200:
        observe(costs, 8, 0, 0, seconds)
    assert costs.decode_s(8) == pytest.approx(0.020, rel=0.02)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_times_that_cannot_be_are_ignored(seconds: float) -> None:
    costs = StepCosts(2048)
    live(costs, 3, np.random.default_rng(5))
    before = costs.prefill(), costs.decode_s(16)
    observe(costs, 16, 0, 0, seconds)
    observe(costs, 16, 200, 1000, seconds)
    assert (costs.prefill(), costs.decode_s(16)) == before


seconds = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 10), st.sampled_from([0.0, 5e-324, 3600.0])
)


@given(
    st.lists(st.tuples(st.integers(0, 64), st.integers(0, 4000), st.integers(0, 2**23), seconds), max_size=60)
)
@settings(max_examples=300)
def test_whatever_is_measured_costs_are_finite_and_never_negative(
    steps: list[tuple[int, int, int, float]],
) -> None:
    costs = StepCosts(8192)
    for num_decoding, chunk, context, time_s in steps:
        if num_decoding + chunk:
            observe(costs, num_decoding, chunk, context, time_s)
        cost = costs.prefill()
        if cost is not None:
            assert all(0 <= value < math.inf for value in cost)
            times = [cost.seconds(place, place + 10) for place in (0, 1000, 2**23)]
            assert times == sorted(times), "context never makes a token cheaper"
        assert 0 <= costs.decode_s(1) <= costs.decode_s(64) < math.inf
        assert 0 <= costs.recompute_ns(5, 2**23) <= MAX_NS


def test_nothing_grows_with_the_number_of_steps() -> None:
    def size(costs: StepCosts) -> int:
        parts = [*vars(costs).values(), *vars(costs._decode).values(), *vars(costs._prefill).values()]
        return sum(sys.getsizeof(part) for part in parts)

    costs, noise = StepCosts(2048), np.random.default_rng(6)
    live(costs, 2, noise)
    before = size(costs)
    live(costs, 50, noise)
    assert size(costs) <= before + 64, "an int may take some bytes more"


def test_a_line_is_found_and_never_falls() -> None:
    line = FadingLine(0.99, 1.0)
    assert not line.is_known
    assert line.at(5) == 0
    for x in (10, 30, 50):
        line.add(x, 30 + 2 * x)
    assert line.at(200) == pytest.approx(430, rel=0.01)
    falling = FadingLine(0.99, 1.0)
    falling.add(10, 10)
    falling.add(30, 4)
    assert falling.at(100) == falling.at(1) > 0


def test_a_line_never_starts_below_zero() -> None:
    line = FadingLine(0.99, 1.0)
    for x, y in ((100, 1), (150, 1.9), (200, 3.7)):
        line.add(x, y)
    assert line.at(0) == pytest.approx(0, abs=1e-9)
    assert line.at(150) == pytest.approx(2.2, rel=0.01), "the mean height at the mean place"
    assert line.at(200) == pytest.approx(200 * line.slope), "straight all the way"


def test_an_estimate_of_nothing_can_rise_again() -> None:
    line = FadingLine(0.9, 1.0)
    line.add(10, 0)
    line.add(10, 5)
    assert line.at(10) > 1
    line.add(10, 1e6)
    assert line.at(10) < 5 * MAX_RISE


@pytest.mark.parametrize("target_itl_s", [0.0, 0.2])
def test_the_engine_learns_from_every_step_without_its_moves(target_itl_s: float) -> None:
    config = SchedulerConfig(max_num_seqs=4, num_blocks=64, max_model_len=64, target_itl_s=target_itl_s)
    engine = EngineCore(config, ModelInfo("", "", "float32", 50, 64, []), 1, ManualClock())
    sampling = SequenceSampling(seed=0, max_tokens=8)
    engine.add(b"f", AddRequest(0, "", pack_int32(range(20)), sampling))
    for compute_s in (3.0, 1.5, 1.5, 1.5):
        step = engine.plan()
        assert step is not None
        engine.apply(
            ModelRunnerOutput(
                step.step, pack_int32([0]), pack_int32([7]), compute_s=compute_s + 10, move_s=10.0
            )
        )
    assert engine._costs.recompute_ns(0, 20) == pytest.approx(3e9)
    assert engine._costs.decode_s(1) == pytest.approx(1.5)


def predicted_s(costs: StepCosts, num_decoding: int, chunk: int, context: int) -> float | None:
    tokens = [1] * num_decoding + [chunk] * (chunk > 0)
    computed = np.array([50] * num_decoding + [context + chunk] * (chunk > 0), np.int64)
    return costs.step_s(pack_int32(tokens), computed)


def test_a_step_is_predicted_from_its_columns() -> None:
    costs = StepCosts(2048)
    live(costs, 12, np.random.default_rng(1))
    for rows, chunk, context in ((10, 0, 0), (10, 200, 500), (0, 200, 1500)):
        expected = pytest.approx(machine_s(rows, chunk, context), rel=0.15)
        assert predicted_s(costs, rows, chunk, context) == expected


def test_nothing_is_predicted_of_what_was_never_seen() -> None:
    costs = StepCosts(2048)
    assert predicted_s(costs, 1, 0, 0) is None
    observe(costs, 1, 0, 0, 0.01)
    assert predicted_s(costs, 1, 0, 0) == pytest.approx(0.01)
    assert predicted_s(costs, 1, 100, 0) is None
