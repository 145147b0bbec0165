"""How the paged KV cache of one rank is laid out, what a block costs, and how much memory it may take."""

from __future__ import annotations

from typing import NamedTuple

import torch

from worker.host import available_memory_bytes

_MAX_DEFAULT_BYTES = 4 << 30
_DEFAULT_SHARE = 0.4


class KVCache(NamedTuple):
    """Keys and values of one layer.

    Attributes:
        k: [num_blocks, num_kv_heads, block_size, head_dim] in the model dtype; token `t` of a row lies in
            block `block_table[t // block_size]` at offset `t % block_size`.
        v: the same.
    """

    k: torch.Tensor
    v: torch.Tensor


def block_bytes(
    num_layers: int, num_kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype
) -> int:
    """Bytes one block takes over all layers, keys and values together."""
    return 2 * num_layers * num_kv_heads * head_dim * block_size * dtype.itemsize


def default_cache_bytes() -> int:
    """Memory offered to the KV cache when no size is configured: 40% of what is free, at most 4 GiB.

    The rest is left to activations, logits, the page cache of the weights and the machine's other processes.
    """
    return min(_MAX_DEFAULT_BYTES, int(available_memory_bytes() * _DEFAULT_SHARE))
