"""Which steps go without drafts, so that it is known what they take?

Whoever asks a model could draft in every step, and then nobody would know what a step takes without drafts.
So the first steps of each number of rows go without, and one in so many afterwards.
"""

from __future__ import annotations

import numpy as np

FIRST_PLAIN_STEPS, PLAIN_STEP_EVERY = 4, 64


class PlainSteps:
    """Counts the steps of each number of rows, at most max_num_seqs."""

    def __init__(self, max_num_seqs: int) -> None:
        self._num_steps = np.zeros(max_num_seqs + 1, np.int64)

    def is_one(self, num_rows: int) -> bool:
        """Whether the step of so many rows is one of these; call once for each."""
        num_steps = self._num_steps.item(num_rows)
        self._num_steps[num_rows] += 1
        return num_steps < FIRST_PLAIN_STEPS or num_steps % PLAIN_STEP_EVERY == 0

    def skip_first(self) -> None:
        """Take the times of the first steps as known."""
        self._num_steps += FIRST_PLAIN_STEPS
