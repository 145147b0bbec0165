"""What does the first stage of a pipeline know, which does not sample? Only the tokens that it is told."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.executor.simulated.rows import SimulatedRows
from splitserve.engine_core.executor.simulated.shadow_groups import ShadowGroups
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.worker_messages import RowDrafts, SchedulerOutput

IntColumn = npt.NDArray[np.int64]


class FirstStage:
    """Checks what the stages of a simulated worker are told; raises WorkerError where it is not enough.

    Args:
        rows: of the worker, as its last stage knows them.
        max_rows: of the batch.
    """

    def __init__(self, rows: SimulatedRows, max_rows: int) -> None:
        self._rows = rows
        self._num_tokens: IntColumn = np.zeros(max_rows, np.int64)
        # Of the last step of each row.
        self._drafts: dict[int, list[int]] = {}

    def enter(self, row: int, num_tokens: int) -> None:
        """Note that a row is new, with so many known tokens."""
        self._num_tokens[row] = num_tokens
        self._drafts.pop(row, None)

    def take(
        self,
        step: SchedulerOutput,
        rows: IntColumn,
        num_tokens: IntColumn,
        failed: Container[int],
        shadow: ShadowGroups,
    ) -> dict[int, list[int]]:
        """Check what is told of the rows of a step; returns the drafts that each of them computes."""
        last = unpack_int32(step.last_token_ids).tolist()
        known = None if step.drafts is None else unpack_int32(step.drafts.num_known_tokens).tolist()
        drafts = _drafts_of(step, rows)
        for i, (row, count) in enumerate(zip(rows.tolist(), num_tokens.tolist(), strict=True)):
            if row in failed:
                continue
            if self._rows.num_computed[row] >= self._num_tokens[row]:
                self._learn(row, 1 if known is None else known[i] - int(self._num_tokens[row]))
                shadow.check_last_token(row, last[i])
            if known is not None and known[i] != self._num_tokens[row]:
                raise WorkerError(f"row {row} has {self._num_tokens[row]} tokens, and is told of {known[i]}")
            if self._rows.num_computed[row] + count > self._num_tokens[row]:
                raise WorkerError(f"row {row} is to compute a token that the first stage does not know")
            self._drafts[row] = drafts.get(row, [])
            if self._drafts[row] and self._num_tokens[row] + len(self._drafts[row]) > shadow.num_slots_of(
                row
            ):
                raise WorkerError(f"row {row} has no blocks for its drafts")
        return drafts

    def _learn(self, row: int, length: int) -> None:
        """Append a run, whose last token is told; the others must be drafts that were computed."""
        drafts = self._drafts.get(row, [])
        if not 1 <= length <= 1 + len(drafts):
            raise WorkerError(f"row {row} is told of {length} tokens behind {len(drafts)} drafts")
        self._num_tokens[row] += length


def packed_drafts(drafts: Sequence[Sequence[int]]) -> RowDrafts:
    """Pack the drafts of rows, one after the other."""
    flat = [token_id for each in drafts for token_id in each]
    return RowDrafts(pack_int32([len(each) for each in drafts]), pack_int32(flat))


def _drafts_of(step: SchedulerOutput, rows: IntColumn) -> dict[int, list[int]]:
    if step.drafts is None or not step.drafts.counts:
        return {}
    counts, token_ids = unpack_int32(step.drafts.counts), unpack_int32(step.drafts.token_ids).tolist()
    if len(counts) != len(rows) or counts.sum() != len(token_ids):
        raise WorkerError(f"step {step.step} tells of {len(token_ids)} drafts in {len(counts)} rows")
    ends = counts.cumsum()
    return {
        row: token_ids[end - count : end]
        for row, end, count in zip(rows.tolist(), ends.tolist(), counts.tolist(), strict=True)
    }
