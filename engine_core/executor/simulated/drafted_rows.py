"""How does a simulated worker compute rows that draft? It foresees their tokens, and errs on purpose."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from splitserve.engine_core.executor.simulated.rows import SimulatedRows
from splitserve.engine_core.executor.simulated.shadow_groups import ShadowGroups


class Run(NamedTuple):
    """The tokens that a row sampled in one step, and how many drafts it had."""

    token_ids: list[int]
    num_drafts: int


class DraftedRows:
    """Computes one row at a time; drafts are right up to a place that depends on the sequence.

    Args:
        rows: of the worker.
        shadow: of their KV.
        vocab_size: of the drafts that are wrong.
    """

    def __init__(self, rows: SimulatedRows, shadow: ShadowGroups, vocab_size: int) -> None:
        self._rows = rows
        self._shadow = shadow
        self._vocab_size = vocab_size

    def fitting(self, row: int, max_drafts: int) -> list[int]:
        """Return drafts behind a row's tokens that its blocks have room for, at most so many."""
        room = self._shadow.num_slots_of(row) - int(self._rows.num_tokens[row])
        return self.drafts(row, min(max_drafts, room))

    def compute(self, row: int, count: int, drafts: list[int]) -> Run:
        """Compute the last `count` tokens of a row and drafts; append what they sample, if it counts."""
        rows, shadow = self._rows, self._shadow
        start, length = int(rows.num_computed[row]), int(rows.num_tokens[row])
        attended = shadow.compute_drafts(row, start, count, drafts)
        found: list[int] = []
        for i in range(len(drafts) + 1):
            rows.attend(row, attended[: length + i])
            position = np.array([length + i])
            token_ids = rows.sample(np.array([row]), position)
            rows.append(np.array([row]), position, token_ids)
            found.append(int(token_ids[0]))
            shadow.append_token(row, found[-1])
            if i < len(drafts) and found[-1] != drafts[i]:
                break
        rows.num_computed[row] = rows.num_tokens[row] - 1
        shadow.keep(row, int(rows.num_computed[row]))
        return Run(found, len(drafts))

    def drafts(self, row: int, max_drafts: int) -> list[int]:
        """Return drafts behind a row's tokens, as far as they ever need computing, at most so many."""
        rows = self._rows
        count = max(0, min(max_drafts, int(rows.max_computed[row] - rows.num_tokens[row])))
        drafts = rows.foresee(row, count)
        num_right = rows.chance(row, count + 2)
        return drafts[:num_right] + [(draft + 1) % self._vocab_size for draft in drafts[num_right:]]
