"""One step, laid out for the model and the sampler."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from splitserve.engine_core.ipc.worker_messages import RowError
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.ops.columns import Array, Int32, LayoutColumns


class StepInputs(NamedTuple):
    """One step, ready to run: T tokens of R rows.

    Attributes:
        rows: int32 [R] in the order scheduled.
        starts: int32 [R] position of each row's first token of this step.
        token_ids: int32 tensor [T].
        cu_seqlens: int32 [R + 1], the array behind meta.cu_seqlens_q.
        meta: layout for attention.
        sampling: indices into `rows` of those that sample, ascending.
        errors: of scheduled rows that failed, in this step or before; they are not in `rows`.
        outputs: int32 [S], S >= 1, the tokens whose hidden states the step is for, those that are sampled
            from, in their order; None: all T, as in a decode step or where a prompt is scored.
    """

    rows: Int32
    starts: Int32
    token_ids: torch.Tensor
    cu_seqlens: Int32
    meta: AttentionMetadata
    sampling: npt.NDArray[np.intp]
    errors: list[RowError]
    outputs: Int32 | None = None

    def layout(self) -> LayoutColumns[Array]:
        """The columns of a decode step, [R]."""
        meta = self.meta
        return LayoutColumns(
            token_ids=self.token_ids.numpy(),
            positions=meta.positions.numpy(),
            slot_mapping=meta.slot_mapping.numpy(),
            seq_lens=meta.seq_lens.numpy(),
        )

    def hidden_of(self, sampling: npt.NDArray[np.intp]) -> Int32:
        """Return for some of `sampling` which of the step's hidden states they sample from."""
        if self.outputs is None:
            return self.cu_seqlens[sampling + 1] - np.int32(1)
        return self.sampling.searchsorted(sampling).astype(np.int32)
