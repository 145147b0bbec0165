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

    def compute(self, row: int, count: int, max_drafts: int) -> Run:
        """Compute the last `count` tokens of a row and drafts; append what they sample, if it counts."""
        rows, shadow = self._rows, self._shadow
        start, length = int(rows.num_computed[row]), int(rows.num_tokens[row])
        limit = min(int(rows.max_computed[row]), shadow.num_slots_of(row))
        drafts = self._drafts(row, max(0, min(max_drafts, limit - length)))
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

    def _drafts(self, row: int, count: int) -> list[int]:
        drafts = self._rows.foresee(row, count)
        num_right = self._rows.chance(row, count + 2)
        return drafts[:num_right] + [(draft + 1) % self._vocab_size for draft in drafts[num_right:]]
