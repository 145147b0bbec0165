"""What attention and rotary embedding know of one step: where each token stands, where its KV lives."""

from __future__ import annotations

from typing import NamedTuple

import torch


class AttentionMetadata(NamedTuple):
    """One step's layout: T tokens of R rows, concatenated row by row in the order the rows are scheduled.

    All tensors are int32 and contiguous. A later step may overwrite them, so nothing keeps them.

    Attributes:
        positions: [T] index of each token within its sequence.
        slot_mapping: [T] slot of each token's KV: block id * block_size + offset; -1 writes nothing.
        block_tables: [R, max_blocks] block ids of each row; entries past the row's last block are undefined.
        cu_seqlens_q: [R + 1] where each row's tokens start; the last element is T.
        seq_lens: [R] tokens of each row whose KV is in the cache once this step has written its own.
    """

    positions: torch.Tensor
    slot_mapping: torch.Tensor
    block_tables: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seq_lens: torch.Tensor
