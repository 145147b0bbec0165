"""How is the draft model run over tokens of the batch's rows? Beside the model, in a cache of its own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from splitserve.worker.batch.input_batch import BatchLimits, InputBatch
from splitserve.worker.batch.step_graphs import DraftedStepGraphs
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.batch.step_layout import StepLayout
from splitserve.worker.kv_cache.arriving_caches import ArrivingCaches
from splitserve.worker.models.draft_heads.hidden_taps import MAX_READ_ROWS
from splitserve.worker.models.loaded_model import LoadedModel
from splitserve.worker.ops.columns import Int32

# Tokens of a row in a recorded pass: its last one, and a draft before it that counted and was not read.
MAX_SMALL = 2


class Span(NamedTuple):
    """Tokens of R rows: counts[i] >= 1 of rows[i], from position starts[i] on; int32 [R] each."""

    rows: Int32
    starts: Int32
    counts: Int32


def largest_spans(limits: BatchLimits, max_tokens: int, longest: int) -> list[Span]:
    """Return spans of as many tokens as a pass may have: in as many rows as draft together, and in few.

    Args:
        limits: of the batch.
        max_tokens: of a pass, at least 1.
        longest: most tokens of a row, at least 1.
    """
    num_rows = min(MAX_READ_ROWS, limits.max_num_seqs, max_tokens)
    share, rest = divmod(min(max_tokens, num_rows * longest), num_rows)
    even = share + (np.arange(num_rows) < rest)
    total = int(even.sum())
    few = np.minimum(longest, total - longest * np.arange(-(-total // longest)))
    return [
        Span(np.arange(len(counts), dtype=np.int32), np.zeros(len(counts), np.int32), counts.astype(np.int32))
        for counts in (even, few)
    ]


class DraftPasses:
    """Runs a draft model; used by the worker's thread.

    Args:
        loaded: the model.
        caches: one per layer, of blocks as the batch numbers them.
        batch: owns the rows.
        graphs: recordings of the draft model's passes; None runs each eagerly.

    Attributes:
        is_at_speed: whether the last pass took as long as passes of its sizes will from now on.
    """

    def __init__(
        self, loaded: LoadedModel, caches: ArrivingCaches, batch: InputBatch, graphs: DraftedStepGraphs | None
    ) -> None:
        self._model = loaded.model
        self._device, self._backend, _mesh = loaded.placement
        self._caches = caches
        self._batch = batch
        self._graphs = graphs
        self._layout = StepLayout(batch.limits.max_num_seqs, batch.blocks)
        self.is_at_speed = True

    @torch.inference_mode()
    def run(self, span: Span, drawing: npt.NDArray[np.intp]) -> torch.Tensor | None:
        """Compute tokens, and what is said of the one that follows.

        Args:
            span: of rows whose tokens and blocks are in the batch.
            drawing: indices of those rows of the span whose next token is wanted.

        Returns:
            fp32 logits [len(drawing), V], in a buffer that the next call overwrites; None if there are none.
        """
        inputs = self._lay_out(span, drawing)
        last = inputs.cu_seqlens[drawing + 1] - np.int32(1)
        is_small = int(span.counts.max()) <= MAX_SMALL
        hidden, self.is_at_speed = None, True
        if self._graphs is not None and is_small:
            hidden = self._graphs.forward(inputs)
            self.is_at_speed = self._graphs.is_at_speed
        if hidden is None:
            hidden = self._compute(inputs, last if len(last) else inputs.cu_seqlens[-1:] - np.int32(1))
        elif len(last) != len(hidden):
            hidden = hidden[self._device.place([torch.from_numpy(last)])[0]]
        return self._model.compute_logits(hidden) if len(last) else None

    def _lay_out(self, span: Span, drawing: npt.NDArray[np.intp]) -> StepInputs:
        index = span.rows.astype(np.intp)
        tokens = self._layout.mixed(index, span.counts, span.starts)
        return StepInputs(
            rows=span.rows,
            starts=span.starts,
            token_ids=torch.from_numpy(self._batch.tokens[tokens.rows, tokens.positions]),
            cu_seqlens=tokens.cu_seqlens,
            meta=self._layout.attention(index, span.starts + span.counts, tokens),
            sampling=drawing,
            errors=[],
            num_drafts=span.counts - np.int32(1),
        )

    def _compute(self, inputs: StepInputs, outputs: Int32) -> torch.Tensor:
        token_ids, *layout = self._device.place(inputs.tensors)
        meta = inputs.layout_of(layout)
        self._backend.begin_step(meta)
        (places,) = self._device.place((torch.from_numpy(outputs),))
        hidden = self._model.forward(token_ids, meta, self._caches, places)
        assert hidden is not None, "a draft model is not split into stages"
        return hidden
