"""Where the tokens of a step stand: which rows and positions they belong to, and what attention is told."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.batch.block_tables import BlockTables
from splitserve.worker.ops.columns import Index, Int32


class StepTokens(NamedTuple):
    """The layout of a step's T tokens of R rows.

    Attributes:
        rows, positions: [T], the row of each token and its index within the sequence.
        cu_seqlens: int32 [R + 1].
    """

    rows: Index
    positions: Index
    cu_seqlens: Int32


class StepLayout:
    """Lays out the steps of one batch; single-threaded.

    Attributes:
        second_at: int32 [max_num_seqs], index of the first token of the second text of a pair; 0 if there is
            none.
    """

    def __init__(self, max_num_seqs: int, blocks: BlockTables | None) -> None:
        """Args: blocks of the rows; None without a KV cache."""
        self._blocks = blocks
        self.second_at = np.zeros(max_num_seqs, np.int32)
        self._decode_cu_seqlens = np.arange(max_num_seqs + 1, dtype=np.int32)

    def decoding(self, index: Index, num_new: Int32, starts: Int32) -> StepTokens:
        """Return the layout with one token per row."""
        return StepTokens(index, starts.astype(np.intp), self._decode_cu_seqlens[: len(index) + 1])

    def mixed(self, index: Index, num_new: Int32, starts: Int32) -> StepTokens:
        """Return the layout with num_new[i] >= 1 tokens of row index[i], from position starts[i] on."""
        cu_seqlens = np.zeros(len(index) + 1, np.int32)
        num_new.cumsum(out=cu_seqlens[1:])
        first = np.repeat(starts - cu_seqlens[:-1], num_new)
        return StepTokens(np.repeat(index, num_new), first + np.arange(len(first)), cu_seqlens)

    def attention(self, index: Index, ends: Int32, tokens: StepTokens) -> AttentionMetadata:
        """Return what attention is told of rows `index` [R], with ends[i] tokens each."""
        if self._blocks is None:
            return self._whole_rows(index, ends, tokens)
        tables = self._blocks.of(index, ends)
        meta = AttentionMetadata(
            positions=torch.from_numpy(tokens.positions.astype(np.int32)),
            slot_mapping=torch.from_numpy(self._blocks.slots(tokens.rows, tokens.positions)),
            block_tables=torch.from_numpy(tables),
            cu_seqlens_q=torch.from_numpy(tokens.cu_seqlens),
            seq_lens=torch.from_numpy(ends),
        )
        if not len(self._blocks.window_tables):
            return meta
        return meta._replace(
            window_slots=torch.from_numpy(self._blocks.window_slots(tokens.rows, tokens.positions)),
            window_tables=torch.from_numpy(self._blocks.windows_of(index, tables.shape[1])),
        )

    def _whole_rows(self, index: Index, ends: Int32, tokens: StepTokens) -> AttentionMetadata:
        """The layout of a model without a KV cache, which may tell the two texts of a row apart."""
        return AttentionMetadata(
            positions=torch.from_numpy(tokens.positions.astype(np.int32)),
            slot_mapping=torch.empty(0, dtype=torch.int32),
            block_tables=torch.empty(len(index), 0, dtype=torch.int32),
            cu_seqlens_q=torch.from_numpy(tokens.cu_seqlens),
            seq_lens=torch.from_numpy(ends),
            token_types=self._token_types(index, tokens),
        )

    def _token_types(self, index: Index, tokens: StepTokens) -> torch.Tensor | None:
        """Return the type of each token, None without pairs."""
        if not self.second_at[index].any():
            return None
        second_at = self.second_at[tokens.rows]
        return torch.from_numpy(((second_at > 0) & (tokens.positions >= second_at)).astype(np.int32))
