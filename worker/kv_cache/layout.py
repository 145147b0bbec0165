"""How the paged KV cache of one rank is laid out, and what a block costs."""

from __future__ import annotations

from typing import NamedTuple

import torch


class KVCache(NamedTuple):
    """Keys and values of one layer.

    Attributes:
        k: [num_blocks, num_kv_heads, block_size, head_dim] in the model dtype; token `t` of a row is in
            block `block_table[t // block_size]`. The backend chooses the layout of the last two dimensions.
        v: the same; if a layer caches one row per token, which is its key and its value, these rows again.
    """

    k: torch.Tensor
    v: torch.Tensor


class BlockShape(NamedTuple):
    """What one block consists of: keys and values of block_size tokens in every layer of this rank.

    Attributes:
        layer_pieces: contiguous pieces of a block in each layer: keys and values, or 1 if both are the same.
    """

    num_layers: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: torch.dtype
    layer_pieces: int = 2

    @property
    def num_pieces(self) -> int:
        """Contiguous pieces of a block in all layers."""
        return self.layer_pieces * self.num_layers

    @property
    def piece_elements(self) -> int:
        """Elements of one piece."""
        return self.num_kv_heads * self.block_size * self.head_dim

    @property
    def num_bytes(self) -> int:
        """Bytes that one block takes in all layers together."""
        return self.num_pieces * self.piece_elements * self.dtype.itemsize


def layer_caches(pool: torch.Tensor) -> list[KVCache]:
    """Return each layer's part of a pool [num_layers, 1 or 2, num_blocks, ...] of an attention backend."""
    return [KVCache(layer[0], layer[-1]) for layer in pool]
