"""What does a head make of what the model has computed? It draws tokens with the noise of the model.

A head reads the hidden states of every step while they are there: of the rows that it may draft for, before
it drafts; of others that soon may, and of prompts, before the next step overwrites them. What it has not
read it never reads: such a row begins anew, see DraftCoverage. What it drafts does not stay in its cache: the
model will have computed better states of those tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import torch

from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.worker.batch.sampling_state import Feature
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.kv_cache.host_blocks import HostBlocks
from splitserve.worker.models.draft_heads.hidden_taps import MAX_READ_ROWS
from splitserve.worker.ops.columns import Index, Int32
from splitserve.worker.sampling.sampler import Sampler
from splitserve.worker.speculation.draft_heads.computed import Computed, ComputedRows
from splitserve.worker.speculation.draft_heads.head_passes import ONE, HeadPasses
from splitserve.worker.speculation.draft_model.coverage import DraftCoverage
from splitserve.worker.speculation.draft_model.passes import Span, largest_spans
from splitserve.worker.speculation.draft_model.plain_steps import PlainSteps
from splitserve.worker.speculation.draft_sheet import DraftSheet

Bools = npt.NDArray[np.bool_]
# Of more rows together nothing is read: in such steps none may draft.
MAX_ROWS = MAX_READ_ROWS


class HeadDrafter:
    """A ModelDrafter that asks a head.

    Attributes:
        host_blocks: moves blocks of its cache.
        is_at_speed: whether there were recordings of all passes that are recorded, the last time.
        max_pause: a row that pauses for more steps is not read until then; for fewer, if reading is dear.
    """

    max_pause = 8

    def __init__(self, method: str, passes: HeadPasses, sampler: Sampler, host_blocks: HostBlocks) -> None:
        """Build a drafter for the sampler's batch.

        Args:
            method: its name.
            passes: run the head.
            sampler: of the batch.
            host_blocks: of the head's cache, which are moved as those of the model's are.
        """
        self.method = method
        self._passes = passes
        self._sampler = sampler
        self._batch = sampler.batch
        self.host_blocks = host_blocks
        self._coverage = DraftCoverage(sampler.batch, host_blocks.num_host_blocks)
        self._plain_steps = PlainSteps(sampler.batch.limits.max_num_seqs)
        # Returns what the last step computed; None if that is lost.
        self._computed: Callable[[], StepInputs] | None = None
        # By row: whether its states of the last step are read, or another request's.
        self._is_read = np.zeros(sampler.batch.limits.max_num_seqs, np.bool_)
        self.is_at_speed = True

    def run_largest(self) -> None:
        """See ModelDrafter: all pairs of a step, and drafts for as many rows as may draft."""
        limits = self._batch.limits
        # The last token of a row has none behind it.
        longest = limits.max_model_len - 1
        for span in largest_spans(limits, limits.max_num_batched_tokens, longest) if longest else []:
            places = np.arange(int(span.counts.sum()))
            self._passes.logits(self._passes.read(span, np.zeros_like(span.rows), places))

    def follow(self, step: SchedulerOutput) -> None:
        """See ModelDrafter."""
        if step.moves_from:
            for arrival in self.host_blocks.move(unpack_int32(step.moves_from), unpack_int32(step.moves_to)):
                arrival.wait()
        self._coverage.follow(step)

    def enter(self, new: NewRow) -> bool:
        """See Drafter."""
        self._coverage.enter(new)
        self._is_read[new.row] = True
        return new.sampling.grammar is None

    @property
    def has_unread(self) -> bool:
        """See ModelDrafter."""
        return self._computed is not None

    def took(self, num_rows: int, inputs: Callable[[], StepInputs]) -> None:
        """See ModelDrafter."""
        if num_rows <= MAX_ROWS:
            self._computed = inputs
            self._is_read[:] = False

    def leave(self, rows: Iterable[int]) -> None:
        """See Drafter."""

    def draft(self, sheet: DraftSheet) -> None:
        """See Drafter; rows that others have drafted for draft nothing."""
        if self._computed is None or self._plain_steps.is_one(sheet.num_rows):
            return
        batch, columns = self._batch, sheet.columns
        allowed = np.zeros(len(columns.allowed), np.bool_)
        allowed[sheet.allowed_rows()] = True
        allowed &= columns.num_drafts == 0
        # A grammar knows its mask only behind tokens that are drawn.
        allowed &= (batch.sampling.features & np.uint16(Feature.GRAMMAR)) == 0
        self.is_at_speed = True
        span, hidden = self._read(Computed.of(self._computed()), allowed, allowed)
        if hidden is None:
            return
        lengths = batch.num_tokens[span.rows]
        going: Index = (span.starts + span.counts == lengths - ONE).nonzero()[0]
        if len(going) == 0:
            return
        # All drafts but the last are read, behind the last token, each in the slot before its own. In a
        # pipeline a row may not have the blocks of its next step yet.
        longest = batch.blocks.room(span.rows.astype(np.intp)) - lengths + np.int32(2)
        num_drafts = self._draft(span.rows, hidden, going, np.minimum(columns.allowed[span.rows], longest))
        for row, length, count in zip(span.rows.tolist(), lengths.tolist(), num_drafts.tolist(), strict=True):
            sheet.append(row, batch.tokens[row, length : length + count])

    def read_ahead(self, pauses: Callable[[], Int32], max_pause: int) -> float:
        """See ModelDrafter."""
        inputs, self._computed = self._computed, None
        if inputs is None:
            return 0.0
        wanted = (pauses() <= max_pause) & self._batch.occupied & ~self._is_read
        if not wanted.any():
            return 0.0
        started = time.perf_counter()
        wanted &= (self._batch.sampling.features & np.uint16(Feature.GRAMMAR)) == 0
        computed = inputs()
        self._read(Computed.of(computed), wanted, pauses() == 0)
        if computed.only_decodes:
            # The next step is timed.
            self._passes.wait()
        return time.perf_counter() - started

    def _read(self, computed: Computed, wanted: Bools, may_begin: Bools) -> tuple[Span, torch.Tensor | None]:
        """Read what is unread of the last step.

        Args:
            computed: by that step.
            wanted: bool [max_num_seqs], which rows of the batch.
            may_begin: likewise, which may begin anew if something of them was not read.

        Returns:
            What was read, and what the head makes of each row's last pair; None if there was nothing.
        """
        batch, coverage = self._batch, self._coverage
        is_due = wanted & batch.occupied & ~self._is_read
        rows = computed.select(is_due[computed.rows].nonzero()[0])
        self._is_read[rows.rows] = True
        index = rows.rows.astype(np.intp)
        # A pair needs the token behind.
        ends = np.minimum(rows.ends, batch.num_tokens[index] - ONE)
        starts = coverage.of(index)
        is_late = rows.starts > starts
        if is_late.any():
            size = np.int32(batch.limits.block_size)
            begins = -(-rows.starts // size) * size
            is_late &= (begins < ends) & may_begin[index]
            coverage.begin_at(index[is_late], begins[is_late])
            starts = np.where(is_late, begins, coverage.of(index))
        is_read = ((starts >= rows.starts) & (starts < ends)).nonzero()[0]
        rows = ComputedRows(*(column[is_read] for column in rows))
        span = Span(rows.rows, starts[is_read], (ends - starts)[is_read])
        if len(is_read) == 0:
            return span, None
        index = index[is_read]
        hidden = self._passes.read(span, coverage.begins[index], rows.places_of(span))
        self.is_at_speed = self._passes.is_at_speed
        coverage.read(index, ends[is_read], np.zeros(len(index), np.int32))
        return span, hidden

    def _draft(self, rows: Int32, hidden: torch.Tensor, going: Index, most: Int32) -> Int32:
        """Draw tokens behind those of the rows; returns how many of each row, int32 like `rows`.

        Args:
            rows: int32 [n].
            hidden: [n, H], what the head made of the last pair of each.
            going: indices of those that draft.
            most: int32 [n].
        """
        num_drafts = np.zeros_like(rows)
        hidden = self._passes.select(hidden, going)
        while True:
            lengths = self._batch.num_tokens[rows[going]] + num_drafts[going]
            token_ids = self._sampler.draw(self._passes.logits(hidden), rows[going], lengths)
            is_drawn = token_ids >= 0
            self._batch.tokens[rows[going][is_drawn], lengths[is_drawn]] = token_ids[is_drawn]
            num_drafts[going] += is_drawn
            kept = (is_drawn & (num_drafts[going] < most[going])).nonzero()[0]
            if len(kept) == 0:
                return num_drafts
            going, hidden = going[kept], self._passes.select(hidden, kept)
            span = Span(rows[going], lengths[kept] - ONE, np.ones(len(going), np.int32))
            hidden = self._passes.go_on(span, self._coverage.begins[span.rows], hidden)
            self.is_at_speed = self.is_at_speed and self._passes.is_at_speed
