"""The drafts of a row count up to the first that is not what was drawn in its place."""

from __future__ import annotations

import numpy as np
import pytest

from splitserve.worker.batch.runs import Runs


def column(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_a_run_is_drawn_behind_the_last_token_and_behind_each_draft() -> None:
    # Of the step's tokens, the last 1 + 2, 1 and 1 + 1 of rows 7, 3 and 5, which end at 4, 5 and 9.
    runs = Runs.of(column(7, 3, 5), column(10, 20, 30), column(2, 0, 1), column(4, 5, 9))
    assert runs.rows.tolist() == [7, 7, 7, 3, 5, 5]
    assert runs.lengths.tolist() == [10, 11, 12, 20, 30, 31]
    assert runs.places.tolist() == [1, 2, 3, 4, 7, 8]
    assert runs.first.tolist() == [0, 3, 4]


@pytest.mark.parametrize(
    ("drawn", "count"),
    [
        ([1, 2, 9], 3),  # both drafts count, and the token behind them
        ([1, 9, 9], 2),
        ([9, 2, 3], 1),  # the second draft stands behind another token than was drawn
        ([1, 2, -1], 2),  # nothing could be drawn behind the drafts
        ([1, -1, 3], 1),
        ([-1, 2, 3], 0),
    ],
)
def test_tokens_count_up_to_the_first_that_was_not_drafted(drawn: list[int], count: int) -> None:
    runs = Runs.of(column(0, 1), column(4, 4), column(2, 0), column(3, 4))
    accepted = runs.accept(column(*drawn, 5), column(1, 2, 3, 5))
    assert accepted.tolist() == [count, 1]
    assert np.flatnonzero(runs.taken(accepted)).tolist() == [*range(count), 3]
