"""Cosines are those of the vectors, and never beyond what a cosine can be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.frontend.text.pooling.vectors import cosines


@given(seed=st.integers(0, 2**16), scale=st.sampled_from([1e-3, 1.0, 1e4]))
def test_a_vector_and_its_opposite_have_the_ends_of_the_range(seed: int, scale: float) -> None:
    vector = np.random.default_rng(seed).normal(size=48).astype(np.float32) * np.float32(scale)
    found = cosines([each.tobytes() for each in (vector, vector, -vector)], 1, 48)
    assert found == pytest.approx([1, -1], abs=1e-6)
    assert abs(found).max() <= 1


def test_texts_are_compared_pair_by_pair() -> None:
    vectors = np.array([[1, 0], [0, 2], [3, 3], [0, -1]], np.float32)
    found = cosines([each.tobytes() for each in vectors], 2, 2)
    assert found == pytest.approx([0.5**0.5, -1])
