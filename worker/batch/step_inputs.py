"""One step, laid out for the model and the sampler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from splitserve.engine_core.ipc.worker_messages import RowError
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.ops.columns import Array, Int32, LayoutColumns

NO_ROWS: Int32 = np.empty(0, np.int32)


class StepInputs(NamedTuple):
    """One step, ready to run: T tokens of R rows.

    Attributes:
        rows: int32 [R], in the order scheduled.
        starts: int32 [R], position of each row's first token of this step.
        token_ids: int32 tensor [T].
        cu_seqlens: int32 [R + 1], the host copy of meta.cu_seqlens_q.
        meta: layout for attention.
        sampling: indices into `rows` of those that sample, ascending.
        errors: of scheduled rows that failed in this step or earlier; they are not in `rows`.
        outputs: int32 [S], S >= 1, the tokens whose hidden states are needed, namely those that are sampled
            from, in order; None: all T, as in a decode step or when a prompt is scored.
        num_drafts: int32 [R], the last so many of each row's tokens are drafts; None if there are none.
        ended: int32, rows that had ended before the step, which the engine could not know; not in `rows`.
    """

    rows: Int32
    starts: Int32
    token_ids: torch.Tensor
    cu_seqlens: Int32
    meta: AttentionMetadata
    sampling: npt.NDArray[np.intp]
    errors: list[RowError]
    outputs: Int32 | None = None
    num_drafts: Int32 | None = None
    ended: Int32 = NO_ROWS

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The token ids, then what there is of the layout for attention, in order."""
        return [self.token_ids, *(tensor for tensor in self.meta if tensor is not None)]

    def layout_of(self, tensors: Iterable[torch.Tensor]) -> AttentionMetadata:
        """Return the layout with others in place of its tensors, in order."""
        others = iter(tensors)
        names = (name for name, tensor in self.meta._asdict().items() if tensor is not None)
        return self.meta._replace(**dict(zip(names, others, strict=True)))

    @property
    def only_decodes(self) -> bool:
        """Whether each row computes its last known token, and its drafts, if it has any."""
        num_drafts = 0 if self.num_drafts is None else int(self.num_drafts.sum())
        return len(self.token_ids) == len(self.rows) + num_drafts

    def by_token(self) -> StepInputs:
        """Lay the T tokens out as T rows of one token each; those of a row share its blocks.

        Every layer writes the keys and values of all tokens before any of them attends, so a token sees those
        in front of it.
        """
        meta, count = self.meta, len(self.token_ids)
        of_rows = torch.from_numpy(np.repeat(np.arange(len(self.rows)), np.diff(self.cu_seqlens)))
        cu_seqlens = np.arange(count + 1, dtype=np.int32)
        rows = of_rows.numpy()
        # Those of its row but for the ones behind it.
        num_behind = self.cu_seqlens[rows + 1] - cu_seqlens[1:]
        windows = meta.window_tables
        return StepInputs(
            rows=self.rows[rows],
            starts=meta.positions.numpy(),
            token_ids=self.token_ids,
            cu_seqlens=cu_seqlens,
            meta=meta._replace(
                block_tables=meta.block_tables[of_rows],
                cu_seqlens_q=torch.from_numpy(cu_seqlens),
                seq_lens=torch.from_numpy(meta.seq_lens.numpy()[rows] - num_behind),
                window_tables=None if windows is None else windows[:, of_rows],
            ),
            sampling=np.arange(count),
            errors=[],
        )

    def layout(self) -> LayoutColumns[Array]:
        """The layout columns of a decode step, [R] each."""
        meta = self.meta
        return LayoutColumns(
            token_ids=self.token_ids.numpy(),
            positions=meta.positions.numpy(),
            slot_mapping=meta.slot_mapping.numpy(),
            seq_lens=meta.seq_lens.numpy(),
        )

    def hidden_of(self, sampling: npt.NDArray[np.intp]) -> Int32:
        """Return the index of the hidden state that each of `sampling`, or some of them, samples from."""
        if self.outputs is None:
            return self.cu_seqlens[sampling + 1] - np.int32(1)
        return self.sampling.searchsorted(sampling).astype(np.int32)
