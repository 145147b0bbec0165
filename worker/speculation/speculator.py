"""How many tokens does each row draft in a step? As many as have paid off lately.

A draft that counts saves a row a step; all of them make a step longer (worker.speculation.draft_prices). So
each row has an account, in tokens: 1 for a draft that counts, less the price of every draft.

    after a step with drafts    width                    account
    all counted                 doubled, up to the most  up to FULL; the pause is the shortest again when full
    some did                    as many as counted       up or down
    the account is overdrawn    1                        0, and a pause, which doubles each time

So a row whose text repeats itself drafts as much as it may after a few steps, and one whose text does not
loses START tokens in its first steps. Later it tries one draft after each of its longest pauses, which are so
long that the tries of all rows together take about a hundredth of the time. Where a draft costs as much as a
token, new rows begin with such a pause. What is drafted never changes a token, so nothing here has to be
exact, or the same in another run.
"""

from __future__ import annotations

import numpy as np
import torch

from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.settings.speculation import Speculation
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.sampling_state import Feature
from splitserve.worker.ops.columns import Array, BatchColumns, Int32, NgramColumns, Width, allocate
from splitserve.worker.ops.decode import Recording
from splitserve.worker.ops.ngrams import NgramLimits, draft_ngrams
from splitserve.worker.speculation.draft_prices import DraftPrices

START, FULL = 2.0, 4.0
FIRST_PAUSE = 4
# Of a row alone whose drafts cost a token each, or less. In steps, as all pauses.
LONGEST_PAUSE = 128
MAX_PAUSE = 2**20
# A grammar knows its mask only behind tokens that are drawn; a prompt that is scored needs all its logits.
EXCLUDED = Feature.GRAMMAR | Feature.PROMPT_LOGPROBS
MIN_HEADS, MAX_HEADS = 2**10, 2**16


class Speculator:
    """Drafts for the rows of one batch; used by the worker's thread.

    Attributes:
        max_drafts: most drafts of a row and step.
    """

    def __init__(self, batch: InputBatch, speculation: Speculation, max_logits_rows: int) -> None:
        """Args: batch owns the rows; max_logits_rows is how many rows of logits may exist at once."""
        limits = batch.limits
        num_rows = limits.max_num_seqs
        self.max_drafts = speculation.num_speculative_tokens
        num_heads = min(max(MIN_HEADS, 1 << (limits.max_model_len - 1).bit_length()), MAX_HEADS)
        elements = {Width.HEADS: num_heads, Width.TOKENS: limits.max_model_len + 1}
        self._columns = columns = allocate(NgramColumns[Array], num_rows, elements)
        self._prices = DraftPrices()
        # By rows of a step: what a draft cost in the last one with any.
        self._last_price = [0.0] * (num_rows + 1)
        self._account = np.zeros(num_rows, np.float32)
        self._next_pause = np.zeros(num_rows, np.int32)
        rows, num_new, call = (np.zeros(count, np.int32) for count in (num_rows, num_rows, 4))
        self._row_bytes, self._num_new_bytes = rows.data.cast("B"), num_new.data.cast("B")
        self._call: Int32 = call
        fixed = NgramLimits(
            limits.block_size,
            speculation.prompt_lookup_min,
            speculation.prompt_lookup_max,
            int(EXCLUDED),
            limits.max_num_batched_tokens,
            max_logits_rows,
        )
        with Recording() as recording:
            draft_ngrams(
                torch.from_numpy(rows),
                torch.from_numpy(num_new),
                BatchColumns[torch.Tensor](*map(torch.from_numpy, batch.columns)),
                NgramColumns[torch.Tensor](*map(torch.from_numpy, columns)),
                torch.from_numpy(call),
                fixed,
            )
        self._draft = recording.replay
        # The column of a step in which every row decodes.
        self._ones = np.ones(num_rows, "<i4").tobytes()

    def draft(self, step: SchedulerOutput) -> Int32 | None:
        """Draft for the rows of a step, whose changes the batch has taken in, behind their tokens.

        Returns:
            int32 [max_num_seqs], by row of the step: how many it drafted, or -1 if it has ended by its drafts
            and computes nothing; None if no row has.
        """
        num_bytes = len(step.rows)
        if num_bytes != len(step.num_tokens) or num_bytes > len(self._row_bytes) or num_bytes % 4:
            return None  # the batch refuses it
        for new in step.new_rows:
            self._enter(new, num_bytes // 4)
        self._row_bytes[:num_bytes] = step.rows
        self._num_new_bytes[:num_bytes] = step.num_tokens
        call = self._call
        call[0] = num_bytes // 4
        call[1] = step.max_drafts
        self._draft()
        return self._columns.num_drafts if call.item(2) else None

    def learn(self, rows: Int32, num_drafts: Int32, num_counted: Int32) -> None:
        """Take note of what came of a step's drafts.

        Args:
            rows: int32 [R].
            num_drafts: int32 [R], at least 0.
            num_counted: int32 [R], how many of these counted.
        """
        num_rows, num_in_all = self._call.item(0), self._call.item(3)
        self._last_price[num_rows] = price = self._prices.of_a_draft(num_rows, num_in_all)
        drafted = num_drafts > 0
        rows, num_drafts, num_counted = rows[drafted], num_drafts[drafted], num_counted[drafted]
        account = np.minimum(self._account[rows] + num_counted - price * num_drafts, FULL)
        width = np.where(num_counted == num_drafts, 2 * self._columns.width[rows], num_counted)
        is_overdrawn, is_full = account < 0, account == FULL
        longest = self._longest_pause(num_rows)
        pause = self._next_pause[rows]
        self._columns.pause[rows] = np.where(is_overdrawn, pause, 0)
        self._columns.width[rows] = np.where(is_overdrawn, 1, width).clip(1, self.max_drafts)
        self._account[rows] = account.clip(0)
        pause = np.where(is_overdrawn, np.minimum(2 * pause, longest), pause)
        self._next_pause[rows] = np.where(is_full, FIRST_PAUSE, pause)

    def took(self, step: SchedulerOutput, seconds: float) -> None:
        """Take note of how long the step that was drafted for last took."""
        if step.num_tokens == self._ones[: len(step.num_tokens)]:
            self._prices.took(self._call.item(0), self._call.item(3), seconds)

    def _longest_pause(self, num_rows: int) -> int:
        # A hundred steps for each token that the rows lose by a draft each that does not count.
        return min(max(LONGEST_PAUSE, int(100 * num_rows * self._last_price[num_rows])), MAX_PAUSE)

    def _enter(self, new: NewRow, num_rows: int) -> None:
        row, columns = new.row, self._columns
        columns.max_num_computed[row] = new.max_num_computed_tokens
        columns.num_indexed[row] = 0
        self._next_pause[row] = FIRST_PAUSE
        if self._last_price[num_rows] < 1:
            columns.width[row], columns.pause[row], self._account[row] = self.max_drafts, 0, START
        else:
            pause = self._longest_pause(num_rows)
            columns.width[row], columns.pause[row], self._account[row] = 1, pause, 0
