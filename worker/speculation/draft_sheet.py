"""What does a step draft? How many tokens may stand behind those of each row, and how many do by now."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.sampling_state import Feature
from splitserve.worker.ops.columns import Array, BatchColumns, DraftColumns, Int32, allocate
from splitserve.worker.ops.decode import Recording
from splitserve.worker.ops.drafts.limits import (
    CALL_SIZE,
    LEFT,
    MAX_DRAFTS,
    NUM_ALLOWED,
    NUM_DRAFTS,
    NUM_ENDED,
    NUM_ROWS,
    DraftLimits,
    DraftTensors,
    begin_drafts,
)

# A prompt that is scored needs all its logits.
EXCLUDED = Feature.PROMPT_LOGPROBS
# Tokens of a block where it does not matter how many a row has.
_UNBOUNDED = 2**31 - 1


class DraftSheet:
    """Owns the columns of drafts; drafters append to it, one after the other. Used by the worker's thread.

    Attributes:
        batch: owns the rows, whose column of tokens takes the drafts.
        columns: see DraftColumns.
        tensors: what kernels of drafts take.
    """

    def __init__(self, batch: InputBatch, max_logits_rows: int, *, is_ahead: bool = False) -> None:
        """Build an empty sheet.

        Args:
            batch: owns the rows.
            max_logits_rows: how many rows of logits may exist at once.
            is_ahead: drafts are for steps to come, which bring the blocks that they need.
        """
        self.batch = batch
        limits = batch.limits
        num_rows = limits.max_num_seqs
        self.columns = columns = allocate(DraftColumns[Array], num_rows)
        rows, num_new, call = (np.zeros(count, np.int32) for count in (num_rows, num_rows, CALL_SIZE))
        self._rows: Int32 = rows
        self._call: Int32 = call
        self._row_bytes, self._num_new_bytes = rows.data.cast("B"), num_new.data.cast("B")
        self.tensors = DraftTensors(
            torch.from_numpy(rows),
            BatchColumns[torch.Tensor](*map(torch.from_numpy, batch.columns)),
            DraftColumns[torch.Tensor](*map(torch.from_numpy, columns)),
            torch.from_numpy(call),
        )
        block_size = _UNBOUNDED if is_ahead else limits.block_size
        fixed = DraftLimits(block_size, int(EXCLUDED), limits.max_num_batched_tokens, max_logits_rows)
        with Recording() as recording:
            begin_drafts(self.tensors, torch.from_numpy(num_new), fixed)
        self._begin = recording.replay

    @property
    def rows(self) -> Int32:
        """The rows of the step, int32 [R]; some may be none of the batch, if engine and worker disagree."""
        return self._rows[: self._call.item(NUM_ROWS)]

    @property
    def num_rows(self) -> int:
        """How many these are."""
        return self._call.item(NUM_ROWS)

    @property
    def num_drafts(self) -> int:
        """Drafts of all rows so far."""
        return self._call.item(NUM_DRAFTS)

    @property
    def num_ended(self) -> int:
        """Rows that have ended by their drafts and compute nothing."""
        return self._call.item(NUM_ENDED)

    @property
    def num_allowed(self) -> int:
        """Rows of which `columns.allowed` is not 0."""
        return self._call.item(NUM_ALLOWED)

    def enter(self, new: NewRow) -> None:
        """Take in a row that enters the batch."""
        self.columns.max_num_computed[new.row] = new.max_num_computed_tokens

    def may_end(self, rows: Int32) -> bool:
        """Whether one of `rows`, which are of the batch, has computed all that it ever has to."""
        return bool((self.batch.num_computed[rows] >= self.columns.max_num_computed[rows]).any())

    def begin(self, step: SchedulerOutput) -> bool:
        """Begin a step, whose changes the batch has taken in; False if it is malformed."""
        num_bytes = len(step.rows)
        if num_bytes != len(step.num_tokens) or num_bytes > len(self._row_bytes) or num_bytes % 4:
            return False
        self._row_bytes[:num_bytes] = step.rows
        self._num_new_bytes[:num_bytes] = step.num_tokens
        self._call[NUM_ROWS] = num_bytes // 4
        self._call[MAX_DRAFTS] = step.max_drafts
        self._begin()
        return True

    def rows_of_batch(self) -> Int32:
        """Return those of `rows` that the batch may have, int32 [n]."""
        rows = self.rows
        return rows[(rows >= 0) & (rows < len(self.columns.allowed))]

    def allowed_rows(self) -> Int32:
        """Return the rows that the drafter whose turn it is may extend, int32 [n]."""
        rows = self.rows_of_batch()
        return rows[self.columns.allowed[rows] > 0]

    def append(self, row: int, token_ids: Sequence[int] | Int32) -> None:
        """Draft tokens behind those of a row: as many as it is allowed to, the others are dropped."""
        columns = self.columns
        count = min(len(token_ids), columns.allowed.item(row))
        if count <= 0:
            return
        end = self.batch.num_tokens.item(row) + columns.num_drafts.item(row)
        self.batch.tokens[row, end : end + count] = token_ids[:count]
        columns.num_drafts[row] += count
        columns.allowed[row] -= count
        self._call[NUM_DRAFTS] += count
        self._call[LEFT] -= count

    def drafts(self, row: int) -> list[int]:
        """Return what is drafted for a row so far."""
        end = self.batch.num_tokens.item(row)
        token_ids: list[int] = self.batch.tokens[row, end : end + self.columns.num_drafts.item(row)].tolist()
        return token_ids
