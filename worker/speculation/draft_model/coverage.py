"""Of which tokens are the draft model's keys and values in the cache?

The draft model's cache has the blocks of the model's own: a token of a row stands in the same block and slot
in both, so nobody accounts for a second table. But it is filled later, or never: rows that do not draft cost
nothing here. So each row counts its first tokens that the draft model has computed, and of each block it is
known whether all of it is, for rows that find the block in the prefix cache, or get it back from the CPU
offload tier.

A head needs what the model computed of each token, which is there for one step only. A row that it did not
read for a while is read from the beginning of a block on, as if its text began there.

What is said here may be too little, and is then computed again. If it were ever too much, drafts would be
worse, and no token would change.
"""

from __future__ import annotations

import numpy as np

from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.ops.columns import Index, Int32

# More blocks than a row has.
_NEVER = 2**30


class DraftCoverage:
    """Follows what becomes of blocks and rows; used by the worker's thread.

    Of a step, its moves and blocks come first, then its rows.

    Args:
        batch: owns the rows.
        num_host_blocks: blocks of the CPU offload tier.

    Attributes:
        begins: int32 [max_num_seqs], by row: of its text before, nothing is in the cache.
    """

    def __init__(self, batch: InputBatch, num_host_blocks: int) -> None:
        limits = batch.limits
        self._batch = batch
        self._block_size = limits.block_size
        self._is_computed = np.zeros(limits.num_blocks + num_host_blocks, np.bool_)
        # By row: its first tokens that are computed, and its first blocks of which is_computed says so.
        self._num_computed = np.zeros(limits.max_num_seqs, np.int32)
        self._num_noted = np.zeros(limits.max_num_seqs, np.int32)
        self.begins = np.zeros(limits.max_num_seqs, np.int32)
        # Rows that have read something since they were settled, and by row how many tokens they had then.
        self._unsettled: Index = np.zeros(0, np.intp)
        self._num_known = np.zeros(limits.max_num_seqs, np.int32)

    def follow(self, step: SchedulerOutput) -> None:
        """Take note of the moves and new blocks of a step, which the batch has taken in as its last one."""
        self._settle([new.row for new in step.new_rows])
        is_computed = self._is_computed
        if step.moves_from:
            places = unpack_int32(step.moves_from).tolist(), unpack_int32(step.moves_to).tolist()
            for source, target in zip(*places, strict=True):
                is_computed[target] = is_computed[source]
        if step.block_ids:
            is_computed[unpack_int32(step.block_ids)] = False

    def enter(self, new: NewRow) -> None:
        """Take note of a row of the step that is followed."""
        blocks = unpack_int32(new.block_ids)
        num_cached = min(new.num_computed_tokens // self._block_size, len(blocks))
        self._is_computed[blocks[num_cached:]] = False
        is_computed = self._is_computed[blocks[:num_cached]]
        num_full = num_cached if is_computed.all() else int(is_computed.argmin())
        self._num_noted[new.row] = num_full
        self._num_computed[new.row] = num_full * self._block_size
        self.begins[new.row] = 0

    def begin_at(self, rows: Index, begins: Int32) -> None:
        """Let rows begin anew at the beginning of a block; others find nothing of theirs in the cache."""
        self.begins[rows] = self._num_computed[rows] = begins
        self._num_noted[rows] = _NEVER

    def of(self, rows: Index) -> Int32:
        """Return how many of its first tokens each of `rows` [R] has computed, fewer than it knows."""
        self._settle([])
        return self._num_computed[rows]

    def read(self, rows: Index, ends: Int32, num_drafts: Int32) -> None:
        """Take note that tokens of rows are computed; once for each, until the model has sampled behind them.

        Args:
            rows: [R].
            ends: int32 [R], so many first tokens, some of which may be drafts.
            num_drafts: int32 [R], drafts behind them.
        """
        self._num_computed[rows] = ends + num_drafts
        self._num_known[rows] = self._batch.num_tokens[rows]
        self._unsettled = np.concatenate((self._unsettled, rows))

    def _settle(self, new_rows: list[int]) -> None:
        """Forget what was drafted and is not what the model has sampled since.

        Its last token was sampled, and has been computed by nobody. Rows that others have now are left out;
        those behind which nothing was sampled yet, as other stages of a pipeline are at it, wait.
        """
        rows = self._unsettled
        if len(rows) == 0:
            return
        if new_rows:
            rows = rows[~np.isin(rows, new_rows)]
        num_known = self._batch.num_tokens[rows]
        is_ahead = self._num_computed[rows] >= num_known
        waits = is_ahead & (num_known == self._num_known[rows]) & self._batch.occupied[rows]
        self._unsettled, rows = rows[waits], rows[~waits]
        self._num_computed[rows] = np.minimum(self._num_computed[rows], self._batch.num_tokens[rows] - 1)
        num_full = self._num_computed[rows] // self._block_size
        for i in (num_full > self._num_noted[rows]).nonzero()[0].tolist():
            row, end = int(rows[i]), int(num_full[i])
            self._is_computed[self._batch.blocks.table[row, self._num_noted[row] : end]] = True
            self._num_noted[row] = end
