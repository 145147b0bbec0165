from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.scheduler.pacing.prefill_cap import PrefillRoom
from splitserve.engine_core.scheduler.pacing.step_costs import StepCosts
from splitserve.engine_core.scheduler.pacing.step_pacer import FIRST_CHUNK_TOKENS, MIN_CHUNK_TOKENS, StepPacer

BUDGET = 4096


class Paced:
    """A pacer with the costs it reads, fed by a modelled machine."""

    def __init__(self, target_s: float, context_s: float = 0.0) -> None:
        self.costs = StepCosts(BUDGET)
        self.pacer = StepPacer(target_s, self.costs)
        self._context_s = context_s

    def machine_s(self, num_decoding: int, chunk: int, context: int = 0) -> float:
        """2 ms a step, 0.5 ms a decoding row, 0.1 ms a prefill token, and 3 ms for any prefill at all."""
        pairs = chunk * context + chunk * chunk / 2
        seconds = 0.002 + 0.0005 * num_decoding + 0.0001 * chunk + self._context_s * pairs
        return seconds + (0.003 if chunk else 0.0)

    def chunk(self, num_decoding: int, context: int = 0) -> int:
        """Return how many prefill tokens one row gets."""
        return PrefillRoom(self.pacer.cap(num_decoding), BUDGET).take(BUDGET, context)

    def step(self, num_decoding: int, chunk: int, seconds: float, context: int = 0) -> None:
        tokens = [1] * num_decoding + [chunk] * (chunk > 0)
        computed = np.array([9] * num_decoding + [context + chunk] * (chunk > 0), np.int64)
        self.costs.observe(pack_int32(tokens), computed, seconds)

    def settle(self, num_decoding: int, num_steps: int = 60) -> int:
        for _ in range(num_steps):
            chunk = self.chunk(num_decoding)
            self.step(num_decoding, chunk, self.machine_s(num_decoding, chunk))
        return self.chunk(num_decoding)

    def prompt(self, num_decoding: int, length: int) -> list[float]:
        """Compute a prompt beside decoding rows; return the seconds of its steps but the last."""
        context, times = 0, []
        while context < length:
            chunk = min(self.chunk(num_decoding, context), length - context)
            times.append(self.machine_s(num_decoding, chunk, context))
            self.step(num_decoding, chunk, times[-1], context)
            context += chunk
        return times[:-1]


def test_before_anything_is_known_the_chunk_is_small() -> None:
    assert Paced(0.05).chunk(8) == FIRST_CHUNK_TOKENS
    assert Paced(0.05).chunk(8, 100_000) == FIRST_CHUNK_TOKENS
    assert PrefillRoom(Paced(0.05).pacer.cap(8), 100).take(BUDGET, 0) == 100


@pytest.mark.parametrize("num_decoding", [1, 16, 50])
def test_the_cap_settles_where_a_step_just_meets_its_aim(num_decoding: int) -> None:
    paced = Paced(0.050)
    for rows in range(1, 60):
        paced.step(rows, 0, paced.machine_s(rows, 0))
    chunk = paced.settle(num_decoding)
    assert 0.9 * 0.045 <= paced.machine_s(num_decoding, chunk) <= 0.046


@pytest.mark.parametrize("context_s", [1e-9, 1e-7, 3e-7])
def test_steps_stay_at_the_target_however_deep_in_a_prompt(context_s: float) -> None:
    paced = Paced(0.050, context_s)
    for _ in range(50):
        paced.step(16, 0, paced.machine_s(16, 0))
    paced.prompt(16, 4000)
    times = paced.prompt(16, 4000)
    assert max(times) <= 0.050
    assert min(times) >= 0.036


def test_the_cap_settles_without_a_single_step_of_decoding_alone() -> None:
    paced = Paced(0.050)
    assert paced.machine_s(16, paced.settle(16)) <= 0.050


def test_a_machine_that_slows_down_gets_smaller_chunks() -> None:
    paced = Paced(0.050)
    for _ in range(100):
        paced.step(16, 0, paced.machine_s(16, 0))
    fast = paced.settle(16)
    for _ in range(50):
        chunk = paced.chunk(16)
        took_s = 3 * paced.machine_s(16, chunk)
        paced.step(16, chunk, took_s)
    assert paced.chunk(16) < fast / 2
    assert took_s <= 0.054


def test_an_unreachable_target_leaves_a_part_of_the_time() -> None:
    paced = Paced(0.001)
    for _ in range(10):
        paced.step(96, 0, paced.machine_s(96, 0))
    chunk = paced.settle(96)
    assert paced.machine_s(96, chunk) == pytest.approx(1.25 * paced.machine_s(96, 0), rel=0.02)


@pytest.mark.parametrize("context", [0, 10**6])
def test_a_minimal_chunk_is_never_refused(context: int) -> None:
    paced = Paced(0.001)
    paced.step(1, 0, 0.001)
    paced.step(1, 100, 10.0)
    assert paced.chunk(1, context) == MIN_CHUNK_TOKENS


def test_a_generous_target_leaves_the_whole_budget() -> None:
    assert Paced(60.0, 1e-7).settle(16) == BUDGET


@pytest.mark.parametrize("context", [0, 10**6])
def test_a_worker_that_does_not_measure_is_not_capped(context: int) -> None:
    paced = Paced(0.05)
    paced.step(3, 100, 0.0)
    assert paced.chunk(3, context) == BUDGET


@given(
    st.lists(
        st.tuples(
            st.integers(0, 300), st.integers(0, 3000), st.integers(0, 2**23), st.floats(0, 1e6) | st.just(0.0)
        ),
        max_size=30,
    ),
    st.floats(1e-6, 60),
    st.floats(1, 1000),
    st.integers(0, 2**23),
)
@settings(max_examples=300)
def test_whatever_is_measured_the_cap_has_bounds_and_grows_with_the_target(
    steps: list[tuple[int, int, int, float]], target_s: float, factor: float, context: int
) -> None:
    paced = Paced(target_s)
    later = StepPacer(target_s * factor, paced.costs)
    for rows, chunk, behind, seconds in steps:
        if rows + chunk:
            paced.step(rows, chunk, seconds, behind)
        got = paced.chunk(rows, context)
        assert MIN_CHUNK_TOKENS <= got <= BUDGET
        assert got <= PrefillRoom(later.cap(rows), BUDGET).take(BUDGET, context)
        assert paced.chunk(rows, context + 1000) <= got, "context never makes room"
