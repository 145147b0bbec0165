from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.ipc.codec import pack_int32
from engine_core.step_pacer import FIRST_CHUNK_TOKENS, MIN_CHUNK_TOKENS, FadingLine, StepPacer


def step(pacer: StepPacer, num_decoding: int, prefill: int, compute_s: float) -> None:
    chunk = [prefill] if prefill else []
    pacer.planned(pack_int32([1] * num_decoding + chunk))
    pacer.measured(compute_s)


def machine_s(num_decoding: int, prefill: int) -> float:
    """2 ms a step, 0.5 ms a decoding row, 0.1 ms a prefill token, and 3 ms for any prefill at all."""
    return 0.002 + 0.0005 * num_decoding + 0.0001 * prefill + (0.003 if prefill else 0.0)


def settle(pacer: StepPacer, num_decoding: int, num_steps: int = 60) -> int:
    for _ in range(num_steps):
        prefill = pacer.max_prefill_tokens(num_decoding)
        step(pacer, num_decoding, prefill, machine_s(num_decoding, prefill))
    return pacer.max_prefill_tokens(num_decoding)


def test_before_anything_is_known_the_chunk_is_small() -> None:
    assert StepPacer(0.05, 2048).max_prefill_tokens(8) == FIRST_CHUNK_TOKENS
    assert StepPacer(0.05, 100).max_prefill_tokens(8) == 100


@pytest.mark.parametrize("num_decoding", [1, 16, 50])
def test_the_cap_settles_where_a_step_just_meets_its_aim(num_decoding: int) -> None:
    pacer = StepPacer(0.050, 4096)
    for rows in range(1, 60):
        step(pacer, rows, 0, machine_s(rows, 0))
    cap = settle(pacer, num_decoding)
    assert 0.9 * 0.045 <= machine_s(num_decoding, cap) <= 0.046


def test_the_cap_settles_without_a_single_step_of_decoding_alone() -> None:
    pacer = StepPacer(0.050, 4096)
    assert machine_s(16, settle(pacer, 16)) <= 0.050


def test_a_machine_that_slows_down_gets_smaller_chunks() -> None:
    pacer = StepPacer(0.050, 4096)
    for _ in range(100):
        step(pacer, 16, 0, machine_s(16, 0))
    fast = settle(pacer, 16)
    for _ in range(25):
        prefill = pacer.max_prefill_tokens(16)
        took_s = 3 * machine_s(16, prefill)
        step(pacer, 16, prefill, took_s)
    assert pacer.max_prefill_tokens(16) < fast / 2
    assert took_s <= 0.052


def test_an_unreachable_target_leaves_a_part_of_the_time() -> None:
    pacer = StepPacer(0.001, 4096)
    for _ in range(10):
        step(pacer, 96, 0, machine_s(96, 0))
    cap = settle(pacer, 96)
    assert machine_s(96, cap) == pytest.approx(1.25 * machine_s(96, 0), rel=0.02)


def test_a_minimal_chunk_is_never_refused() -> None:
    pacer = StepPacer(0.001, 4096)
    step(pacer, 1, 0, 0.001)
    step(pacer, 1, 100, 10.0)
    assert pacer.max_prefill_tokens(1) == MIN_CHUNK_TOKENS


def test_a_generous_target_leaves_the_whole_budget() -> None:
    assert settle(StepPacer(60.0, 4096), 16) == 4096


def test_a_worker_that_does_not_measure_is_not_capped() -> None:
    pacer = StepPacer(0.05, 4096)
    step(pacer, 3, 100, 0.0)
    assert pacer.max_prefill_tokens(3) == 4096


def test_answers_belong_to_steps_in_order() -> None:
    pacer = StepPacer(0.050, 4096)
    pacer.planned(pack_int32([1] * 4))
    pacer.planned(pack_int32([1] * 4 + [1000]))
    pacer.measured(0.010)
    pacer.measured(0.110)
    assert pacer.max_prefill_tokens(4) == pytest.approx(350, abs=1), "35 ms left at 0.1 ms a token"


@given(
    num_decoding=st.lists(st.integers(0, 300), min_size=1, max_size=30),
    times=st.lists(st.floats(0, 1e6, allow_nan=False), min_size=30, max_size=30),
    prefill=st.lists(st.integers(0, 5000), min_size=30, max_size=30),
    target_s=st.floats(1e-6, 60),
)
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_whatever_is_measured_the_cap_stays_within_its_bounds(
    num_decoding: list[int], times: list[float], prefill: list[int], target_s: float
) -> None:
    pacer = StepPacer(target_s, 2048)
    for rows, time_s, tokens in zip(num_decoding, times, prefill, strict=False):
        step(pacer, rows, 0 if tokens == 1 else tokens, time_s)
        assert MIN_CHUNK_TOKENS <= pacer.max_prefill_tokens(rows) <= 2048


def test_a_line_is_found_and_never_falls() -> None:
    line = FadingLine(0.99)
    assert not line.is_known
    for x in (1, 5, 9):
        line.add(x, 3 + 2 * x)
    assert line.at(20) == pytest.approx(43)
    falling = FadingLine(0.99)
    falling.add(1, 10)
    falling.add(3, 4)
    assert falling.at(100) == falling.at(1) > 0
