"""What attention and rotary embedding need to know about a step: token positions and KV slots."""

from __future__ import annotations

from typing import NamedTuple

import torch


class AttentionMetadata(NamedTuple):
    """One step's layout: T tokens of R rows, concatenated in the order the rows are scheduled.

    All tensors are int32 and contiguous. A later step may overwrite them, so do not keep them.

    Attributes:
        positions: [T] index of each token within its sequence.
        slot_mapping: [T] KV slot of each token: block id * block_size + offset; nothing is written for -1.
            [0] if there is no KV cache.
        block_tables: [R, max_blocks] block ids of each row; entries past the row's last block are undefined.
            [R, 0] if there is no KV cache.
        cu_seqlens_q: [R + 1] offset of each row's first token; the last element is T.
        seq_lens: [R] context length of each row, including this step's tokens.
        token_types: [T] 1 for tokens of the second text of a pair, otherwise 0; None without pairs.
        adapters: [T] slot of each token's adapter, -1 for none; None if no token has one.
        window_slots: [G, T] slot_mapping of each window group, for layers with a window if others have none;
            None if all layers are alike.
        window_tables: [G, R, max_blocks] their block_tables; entries of blocks that have left are undefined.
    """

    positions: torch.Tensor
    slot_mapping: torch.Tensor
    block_tables: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seq_lens: torch.Tensor
    token_types: torch.Tensor | None = None
    adapters: torch.Tensor | None = None
    window_slots: torch.Tensor | None = None
    window_tables: torch.Tensor | None = None

    def of_groups(self) -> tuple[AttentionMetadata, ...]:
        """Return what the layers of each group are told, by KVCache.group."""
        if self.window_slots is None or self.window_tables is None:
            return (self,)
        groups = zip(self.window_slots, self.window_tables, strict=True)
        return self, *(self._replace(slot_mapping=slots, block_tables=tables) for slots, tables in groups)
