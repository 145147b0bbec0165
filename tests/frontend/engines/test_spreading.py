"""Prompts go to the engines that are least busy by then."""

from __future__ import annotations

import pytest

from splitserve.frontend.engines.spreading import spread


@pytest.mark.parametrize(
    ("num_open", "widths", "parts"),
    [
        ([5], [1, 1], [[0, 1]]),
        ([0, 0], [1, 1, 1], [[0, 2], [1]]),
        ([3, 0], [1, 1, 1, 1, 1], [[3], [0, 1, 2, 4]]),
        ([0, 0], [4, 1, 1, 1, 1], [[0], [1, 2, 3, 4]]),
        ([2, 9, 9], [1], [[0], [], []]),
    ],
)
def test_each_prompt_goes_to_the_least_busy_engine(
    num_open: list[int], widths: list[int], parts: list[list[int]]
) -> None:
    assert spread(num_open, widths) == parts
