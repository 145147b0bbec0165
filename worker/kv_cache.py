"""How the paged KV cache of one rank is laid out, what a block costs, and how much memory it may take."""

from __future__ import annotations

from typing import NamedTuple

import torch


class KVCache(NamedTuple):
    """Keys and values of one layer.

    Attributes:
        k: [num_blocks, num_kv_heads, block_size, head_dim] in the model dtype; token `t` of a row lies in
            block `block_table[t // block_size]` at offset `t % block_size`.
        v: the same.
    """

    k: torch.Tensor
    v: torch.Tensor
