"""What does a small model foresee of each row? It draws tokens with the noise that the model will draw with.

A token is argmax(logits + noise(seed, position, token)), see worker.sampling.sampler. The noise of a place is
the same whoever draws there, so two models whose logits resemble each other draw the same token far more
often than two that draw by themselves. The draft model's logits get the row's edits, penalties and filters,
too.

One call drafts for all rows of a step: first a pass over all tokens that the draft model has not read of
them, then one over the last draft of each row that wants another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import torch

from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.worker.batch.sampling_state import Feature
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.kv_cache.host_blocks import HostBlocks
from splitserve.worker.ops.columns import Index, Int32
from splitserve.worker.sampling.sampler import Sampler
from splitserve.worker.speculation.draft_model.coverage import DraftCoverage
from splitserve.worker.speculation.draft_model.passes import DraftPasses, Span, largest_spans
from splitserve.worker.speculation.draft_model.plain_steps import PlainSteps
from splitserve.worker.speculation.draft_sheet import DraftSheet

ONE = np.int32(1)
# Tokens that are read before the first draft of a step. A row with a long prompt takes several steps to be
# read, so as not to hold up the others: they are the first in line.
MAX_READ_TOKENS = 256


class DraftModel:
    """A ModelDrafter that asks a small model.

    Attributes:
        host_blocks: moves blocks of its cache.
        is_at_speed: whether there were recordings of all passes that are recorded, the last time.
    """

    method = "draft_model"
    max_pause = 0
    has_unread = False

    def __init__(
        self, passes: DraftPasses, sampler: Sampler, host_blocks: HostBlocks, max_model_len: int
    ) -> None:
        """Build a drafter for the sampler's batch.

        Args:
            passes: run the model.
            sampler: of the batch.
            host_blocks: of the draft model's cache, which are moved as those of the model's are.
            max_model_len: most tokens that it can read of a row.
        """
        self._passes = passes
        self._sampler = sampler
        self._batch = sampler.batch
        self.host_blocks = host_blocks
        self._coverage = DraftCoverage(sampler.batch, host_blocks.num_host_blocks)
        self._max_model_len = max_model_len
        self._max_tokens = min(MAX_READ_TOKENS, sampler.batch.limits.max_num_batched_tokens)
        self._plain_steps = PlainSteps(sampler.batch.limits.max_num_seqs)
        self.is_at_speed = True

    def run_largest(self) -> None:
        """See ModelDrafter: all tokens that are read in one step, by rows that draft then."""
        for span in largest_spans(self._batch.limits, self._max_tokens, self._max_model_len):
            self._passes.run(span, np.arange(len(span.rows)))

    def follow(self, step: SchedulerOutput) -> None:
        """See ModelDrafter."""
        if step.moves_from:
            for arrival in self.host_blocks.move(unpack_int32(step.moves_from), unpack_int32(step.moves_to)):
                arrival.wait()
        self._coverage.follow(step)

    def enter(self, new: NewRow) -> bool:
        """See Drafter."""
        self._coverage.enter(new)
        return new.sampling.grammar is None

    def leave(self, rows: Iterable[int]) -> None:
        """See Drafter."""

    def read_ahead(self, pauses: Callable[[], Int32], max_pause: int) -> float:
        """Nothing is lost if it is read later."""
        return 0.0

    def took(self, num_rows: int, inputs: Callable[[], StepInputs]) -> None:
        """It reads tokens, and nothing that the model computes of them."""

    def draft(self, sheet: DraftSheet) -> None:
        """See Drafter; rows of which there is more to read than fits draft nothing."""
        if self._plain_steps.is_one(sheet.num_rows):
            return
        batch, columns = self._batch, sheet.columns
        rows = sheet.allowed_rows()
        # A grammar knows its mask only behind tokens that are drawn.
        rows = rows[(batch.sampling.features[rows] & np.uint16(Feature.GRAMMAR)) == 0]
        ends = batch.num_tokens[rows] + columns.num_drafts[rows]
        rows, ends = rows[ends <= self._max_model_len], ends[ends <= self._max_model_len]
        # In a pipeline a row may not have the blocks of its next step yet.
        span = self._to_read(rows, np.minimum(ends, batch.blocks.room(rows.astype(np.intp))))
        if len(span.rows) == 0:
            return
        ends = batch.num_tokens[span.rows] + columns.num_drafts[span.rows]
        longest = np.minimum(self._max_model_len, batch.blocks.room(span.rows.astype(np.intp)))
        # What stands behind the last token that can be read is not read itself.
        most = np.minimum(columns.allowed[span.rows], longest + np.int32(1) - ends)
        num_drafts = self._read(span, np.where(span.starts + span.counts == ends, most, 0))
        for row, end, count in zip(span.rows.tolist(), ends.tolist(), num_drafts.tolist(), strict=True):
            sheet.append(row, batch.tokens[row, end : end + count])

    def _to_read(self, rows: Int32, ends: Int32) -> Span:
        """Return what was not read up to `ends`, as far as it fits, rows with the fewest tokens first.

        Rows of which all was read are left out.
        """
        starts = self._coverage.of(rows.astype(np.intp))
        missing = ends - starts
        order = missing.argsort(kind="stable")
        rows, starts, missing = rows[order], starts[order], missing[order]
        room = self._max_tokens - (missing.cumsum() - missing)
        fits = (room > 0) & (missing > 0)
        return Span(rows[fits], starts[fits], np.minimum(missing, room)[fits].astype(np.int32))

    def _read(self, span: Span, most: Int32) -> Int32:
        """Run all passes; returns how many drafts of each row were drawn, and stand behind the span."""
        ends = span.starts + span.counts
        num_drafts, num_read = np.zeros_like(ends), np.zeros_like(ends)
        going: Index = most.nonzero()[0]
        logits = self._passes.run(span, going)
        self.is_at_speed = self._passes.is_at_speed
        while logits is not None:
            going = going[self._draw(logits, span.rows[going], (ends + num_drafts)[going])]
            num_drafts[going] += ONE
            going = going[num_drafts[going] < most[going]]
            if len(going) == 0:
                break
            last = Span(span.rows[going], (ends + num_read)[going], np.ones(len(going), np.int32))
            logits = self._passes.run(last, np.arange(len(going)))
            self.is_at_speed = self.is_at_speed and self._passes.is_at_speed
            num_read[going] += ONE
        self._coverage.read(span.rows.astype(np.intp), ends, num_read)
        return num_drafts

    def _draw(self, logits: torch.Tensor, rows: Int32, lengths: Int32) -> npt.NDArray[np.bool_]:
        """Write a token behind lengths[i] tokens of each row, and return where there is one to draw."""
        token_ids = self._sampler.draw(logits, rows, lengths)
        is_drawn: npt.NDArray[np.bool_] = token_ids >= 0
        self._batch.tokens[rows[is_drawn], lengths[is_drawn]] = token_ids[is_drawn]
        return is_drawn
