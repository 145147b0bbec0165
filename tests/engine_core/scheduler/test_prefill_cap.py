from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.scheduler.prefill_cap import cap_prefill, prefill_left


def cap(wanted: list[int], max_prefill_tokens: int, budget: int = 100) -> list[int]:
    return cap_prefill(np.array(wanted, np.int64), max_prefill_tokens, budget).tolist()


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([1, 1, 30], [1, 1, 20]),
        ([30, 1, 30], [20, 1, 0]),
        ([1, 15, 15, 15], [1, 15, 5, 0]),
        ([30, 30], [30, 30]),
        ([1, 20], [1, 20]),
        ([1, 0, 0], [1, 0, 0]),
        ([30, 0], [30, 0]),
    ],
)
def test_prefill_is_cut_from_the_end_while_anybody_decodes(wanted: list[int], expected: list[int]) -> None:
    assert cap(wanted, 20) == expected


def test_decoding_rows_behind_a_prompt_keep_their_token() -> None:
    assert cap([50, 1, 1, 1], 1000, budget=10) == [7, 1, 1, 1]


def test_newcomers_get_what_is_left() -> None:
    assert prefill_left(np.array([1, 15]), 20, 84) == 5
    assert prefill_left(np.array([1, 15]), 200, 84) == 84
    assert prefill_left(np.array([15]), 20, 85) == 85, "nobody decodes"
    assert prefill_left(np.array([], np.int64), 20, 85) == 85


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(1, 60), st.integers(1, 60))
def test_the_first_prompt_always_gets_on(wanted: list[int], max_prefill: int, budget: int) -> None:
    got = cap(wanted, max_prefill, budget)
    assert all(0 <= g <= w for g, w in zip(got, wanted, strict=True))
    assert [g for g, w in zip(got, wanted, strict=True) if w == 1] == [1] * wanted.count(1)
    first = next((i for i, w in enumerate(wanted) if w > 1), None)
    assert first is None or got[first] >= 1
    if 1 in wanted:
        assert sum(g for g, w in zip(got, wanted, strict=True) if w > 1) <= max_prefill
    else:
        assert got == wanted
