"""A speculator without accounts: a head drafts for every row and step as much as there is room for."""

from __future__ import annotations

import numpy as np
import torch

from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.batch.step_layout import StepLayout
from splitserve.worker.kv_cache.layout import layer_caches
from splitserve.worker.ops.columns import Int32
from splitserve.worker.speculation.draft_heads.head_drafter import HeadDrafter
from splitserve.worker.speculation.draft_heads.making import make_head_drafter
from splitserve.worker.speculation.draft_model.passes import Span
from splitserve.worker.worker import Worker
from tests.worker.speculation.draft_model.always import Always


class Afresh:
    """Drafts for a row from all of its text, with a model and a head that nobody else uses."""

    def __init__(self, worker: Worker, drafter: HeadDrafter) -> None:
        """Args: worker has loaded the same model and head; its drafts are compared with the drafter's."""
        loaded, batch = worker.loaded, drafter._batch
        assert loaded is not None
        assert loaded.draft is not None
        self._model = loaded.model
        self._device, self._backend, _mesh = loaded.placement
        self._batch = batch
        shape = loaded.block_shape(batch.limits.block_size)
        self._caches = layer_caches(self._backend.allocate(shape, batch.limits.num_blocks))
        self._drafter = make_head_drafter(loaded.draft, loaded.model, drafter._sampler, 0, records=False)
        self._layout = StepLayout(batch.limits.max_num_seqs, batch.blocks)

    @torch.inference_mode()
    def draft(self, row: int, begin: int, count: int) -> list[int]:
        """Return `count` drafts behind the tokens of a row whose pairs from `begin` on are read."""
        batch, end = self._batch, int(self._batch.num_tokens[row]) - 1
        index, ones = np.array([row]), np.ones(1, np.int32)
        tokens = self._layout.mixed(index, ones * end, ones * 0)
        inputs = StepInputs(
            rows=index.astype(np.int32),
            starts=ones * 0,
            token_ids=torch.from_numpy(batch.tokens[row, :end]),
            cu_seqlens=tokens.cu_seqlens,
            meta=self._layout.attention(index, ones * end, tokens),
            sampling=index[:0],
            errors=[],
        )
        token_ids, *layout = self._device.place(inputs.tensors)
        meta = inputs.layout_of(layout)
        self._backend.begin_step(meta)
        self._model.forward(token_ids, meta, self._caches)
        drafter = self._drafter
        span = Span(index.astype(np.int32), ones * begin, ones * (end - begin))
        hidden = drafter._passes.read(span, ones * begin, np.arange(begin, end))
        drafter._coverage.begins[row] = begin
        drafter._draft(span.rows, hidden, np.array([0]), ones * count)
        drafted: list[int] = batch.tokens[row, end + 1 : end + 1 + count].tolist()
        return drafted


class AlwaysHead(Always):
    """See above; compares the drafts with those of a head that reads all that is to be read at once."""

    def __init__(self, drafter: HeadDrafter, worker: Worker, *, may_pause: bool) -> None:
        super().__init__(drafter, drafter)  # type: ignore[arg-type]
        self._head = drafter
        self._may_pause = may_pause
        self._afresh = Afresh(worker, drafter)
        # Rows that found pairs of others in the cache.
        self._has_found: set[int] = set()

    def pauses(self, method: str) -> Int32:
        """Rows pause now and then, some for long."""
        rows = np.arange(len(self._sheet.allowed))
        if not self._may_pause:
            return np.zeros_like(self._sheet.allowed)
        pauses: Int32 = np.where((self.seen["steps"] + rows) % 47 < 9, 100, 0).astype(np.int32)
        return pauses

    def _allow(self, step: SchedulerOutput) -> None:
        super()._allow(step)
        for new in step.new_rows:
            has_found = self._head._coverage.of(np.array([new.row]))[0] > 0
            (self._has_found.add if has_found else self._has_found.discard)(new.row)

    def _draft_afresh(self, row: int) -> None:
        tokens, end = self._batch.tokens[row], int(self._batch.num_tokens[row])
        drafted = tokens[end : end + self._sheet.num_drafts[row]].tolist()
        begin = int(self._head._coverage.begins[row])
        self.seen["begun anew"] += begin > 0
        again = self._afresh.draft(row, begin, len(drafted))
        if row in self._has_found and begin == 0:
            self.seen["begun in the cache"] += 1
            self.seen["differing"] += again != drafted
        else:
            assert again == drafted
