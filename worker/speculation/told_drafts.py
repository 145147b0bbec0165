"""Which drafts does a stage of a pipeline compute? Those that the engine tells all of them of with a step.

The engine tells, too, how many tokens each row has by now. What a stage lacks of them are drafts of the row's
step before, which stand behind its tokens still, and the last token, which is told.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput, StageDrafts
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.ops.columns import Index, Int32


class ToldDrafts:
    """Puts what is told into the batch; used by the worker's thread.

    Args:
        batch: of this stage.
    """

    def __init__(self, batch: InputBatch) -> None:
        self._batch = batch
        num_rows = len(batch.num_tokens)
        # By row, of its last step.
        self._num_drafts: Int32 = np.zeros(num_rows, np.int32)

    def take(self, step: SchedulerOutput) -> Int32 | None:
        """Let rows have all their tokens, and behind them the drafts of a step.

        Args:
            step: the batch has taken in its changes.

        Returns:
            int32 [max_num_seqs], by row of the step: how many drafts stand behind its tokens; None if there
            are none.

        Raises:
            WorkerError: engine and worker disagree about the tokens of a row, or its drafts do not fit.
        """
        for new in step.new_rows:
            self._num_drafts[new.row] = 0
        told = step.drafts
        if told is None:
            return None
        rows = unpack_int32(step.rows)
        if len(rows) and rows.view(np.uint32).max() >= len(self._num_drafts):
            raise WorkerError(f"step {step.step} names a row that is not in the batch")
        index = rows.astype(np.intp)
        # Rows that no stage serves have no tokens; those that failed here alone know theirs.
        alive = (
            ~np.isin(rows, list(self._batch.failures)) if self._batch.failures else np.full(len(rows), True)
        )
        self._learn(step, rows[alive], unpack_int32(told.num_known_tokens)[alive], alive)
        self._num_drafts[index] = 0
        return self._put(step, told, index) if told.counts else None

    def _learn(
        self, step: SchedulerOutput, rows: Int32, num_known: Int32, alive: npt.NDArray[np.bool_]
    ) -> None:
        """Append the tokens that rows have got since their last step here."""
        batch = self._batch
        missing = num_known - batch.num_tokens[rows]
        if np.any((missing < 0) | (missing > self._num_drafts[rows] + 1)):
            raise WorkerError(f"step {step.step}: engine and worker disagree about how many tokens rows have")
        lacking = missing > 0
        if not lacking.any():
            return
        last = unpack_int32(step.last_token_ids)[alive][lacking]
        if last.view(np.uint32).max() >= batch.limits.vocab_size:
            raise WorkerError("a token id of another stage is outside the vocabulary")
        batch.append_runs(rows[lacking], last, missing[lacking])

    def _put(self, step: SchedulerOutput, told: StageDrafts, index: Index) -> Int32:
        batch = self._batch
        counts, token_ids = unpack_int32(told.counts), unpack_int32(told.token_ids)
        ends = batch.num_tokens[index] + counts
        room = np.minimum(batch.blocks.room(index), batch.tokens.shape[1] - 1)
        is_sound = len(counts) == len(index) and not np.any((counts < 0) | ((counts > 0) & (ends > room)))
        if not is_sound or counts.sum() != len(token_ids):
            raise WorkerError(f"step {step.step}: drafts do not fit their rows")
        if len(token_ids) and token_ids.view(np.uint32).max() >= batch.limits.vocab_size:
            raise WorkerError(f"step {step.step}: a draft is outside the vocabulary")
        first = counts.cumsum() - counts
        behind = np.arange(len(token_ids)) - first.repeat(counts)
        batch.tokens[index.repeat(counts), batch.num_tokens[index].repeat(counts) + behind] = token_ids
        self._num_drafts[index] = counts
        return self._num_drafts.copy()
