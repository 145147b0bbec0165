"""How is a head run over tokens of the batch's rows? Over pairs of a hidden state and the token behind it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.step_graphs import DraftedStepGraphs
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.batch.step_layout import StepLayout
from splitserve.worker.kv_cache.arriving_caches import ArrivingCaches
from splitserve.worker.models.draft_heads.base import HeadModel
from splitserve.worker.models.loaded_model import LoadedModel
from splitserve.worker.ops.columns import Index, Int32
from splitserve.worker.speculation.draft_model.passes import Span

ONE = np.int32(1)
# Pairs of a row in a recorded pass: a token and all drafts behind it.
MAX_SMALL = 9


class HeadPasses:
    """Runs a head; used by the worker's thread.

    Args:
        loaded: the head.
        head: the same, its layer.
        caches: one, of blocks as the batch numbers them.
        batch: owns the rows.
        graphs: recordings of its passes; None runs each eagerly.

    Attributes:
        is_at_speed: whether the last pass took as long as passes of its sizes will from now on.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        head: HeadModel,
        caches: ArrivingCaches,
        batch: InputBatch,
        graphs: DraftedStepGraphs | None,
    ) -> None:
        self.head = head
        self._device, self._backend, _mesh = loaded.placement
        self._caches = caches
        self._batch = batch
        self._graphs = graphs
        self._layout = StepLayout(batch.limits.max_num_seqs, batch.blocks)
        self.is_at_speed = True

    @torch.inference_mode()
    def read(self, span: Span, begins: Int32, places: Index) -> torch.Tensor:
        """Run over pairs whose hidden states the model has computed in its last pass.

        Args:
            span: positions of hidden states; the tokens behind them are in the batch.
            begins: int32 [n], see DraftCoverage.
            places: of the span's tokens in the model's last pass.

        Returns:
            What the head makes of the last pair of each row, [n, H]; the next call may overwrite it.
        """
        return self._run(span, begins, lambda: self.head.states(self._place(places)))

    @torch.inference_mode()
    def go_on(self, span: Span, begins: Int32, hidden: torch.Tensor) -> torch.Tensor:
        """Run over one pair of each row, made of a copy of what the last call returned of them, [n, H]."""
        return self._run(span, begins, lambda: hidden)

    @torch.inference_mode()
    def select(self, hidden: torch.Tensor, which: Index) -> torch.Tensor:
        """Return a copy of some of the rows [n, H], ascending and distinct, for go_on()."""
        return hidden.clone() if len(which) == len(hidden) else hidden[self._place(which)]

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return fp32 logits [n, V] of the token behind each pair; the next call overwrites them."""
        logits = self.head.compute_logits(hidden)
        assert logits is not None, "a head is on one rank"
        return logits

    def wait(self) -> None:
        """Wait until the device has run all passes so far."""
        self._device.synchronize()

    def _run(self, span: Span, begins: Int32, features: Callable[[], torch.Tensor]) -> torch.Tensor:
        inputs = self._lay_out(span, begins)
        graphs = self._graphs if int(span.counts.max()) <= MAX_SMALL else None
        is_ready = graphs is None or graphs.prepare(inputs)
        self.head.put(features())
        if graphs is None:
            self.is_at_speed = True
            return self._compute(inputs)
        hidden = graphs.forward(inputs)
        self.is_at_speed = is_ready and graphs.is_at_speed
        if hidden is None:
            return self._compute(inputs)
        return hidden if len(hidden) == len(span.rows) else hidden[self._place(inputs.cu_seqlens[1:] - ONE)]

    def _compute(self, inputs: StepInputs) -> torch.Tensor:
        last = torch.from_numpy(inputs.cu_seqlens[1:] - ONE)
        token_ids, *layout, places = self._device.place([*inputs.tensors, last])
        meta = inputs.layout_of(layout)
        self._backend.begin_step(meta)
        hidden = self.head.forward(token_ids, meta, self._caches, places)
        assert hidden is not None, "a head is on one rank"
        return hidden

    def _place(self, index: Index | Int32) -> torch.Tensor:
        return self._device.place([torch.from_numpy(index)])[0]

    def _lay_out(self, span: Span, begins: Int32) -> StepInputs:
        index = span.rows.astype(np.intp)
        tokens = self._layout.mixed(index, span.counts, span.starts)
        ends = span.starts + span.counts
        meta = self._layout.attention(index, ends, tokens)
        if begins.any():
            meta = meta._replace(
                block_tables=torch.from_numpy(self._tables(meta.block_tables.numpy(), begins)),
                seq_lens=torch.from_numpy(ends - begins),
            )
        return StepInputs(
            rows=span.rows,
            starts=span.starts,
            token_ids=torch.from_numpy(self._batch.tokens[tokens.rows, tokens.positions + 1]),
            cu_seqlens=tokens.cu_seqlens,
            meta=meta,
            sampling=np.arange(len(index)),
            errors=[],
            num_drafts=span.counts - ONE,
        )

    def _tables(self, tables: Int32, begins: Int32) -> Int32:
        """Return the tables of rows that begin at a block behind their first one."""
        columns = (begins // np.int32(self._batch.limits.block_size))[:, None] + np.arange(tables.shape[1])
        return np.take_along_axis(tables, np.minimum(columns, tables.shape[1] - 1), axis=1)
