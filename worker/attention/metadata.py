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
        block_tables: [R, max_blocks] block ids of each row; entries past the row's last block are undefined.
        cu_seqlens_q: [R + 1] offset of each row's first token; the last element is T.
        seq_lens: [R] context length of each row, including this step's tokens.
    """

    positions: torch.Tensor
    slot_mapping: torch.Tensor
    block_tables: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seq_lens: torch.Tensor
