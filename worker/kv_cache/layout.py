"""How the paged KV cache of one rank is laid out, and what a block costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from splitserve.worker.kv_cache.layer_groups import LayerGroups, LayerPlace

# Of a token and head in a cache of int8 codes, behind its codes; a row that is key and value at once has one
# for its latent and one for its rotary key.
INT8_SCALE_BYTES = 2


class KVCache(NamedTuple):
    """Keys and values of one layer.

    Attributes:
        k: [num_blocks, num_kv_heads, block_size, head_dim] in the dtype of BlockShape; token `t` of a row is
            in block `block_table[t // block_size]`. The backend chooses how the last two dimensions lie.
        v: the same; if a layer caches one row per token, which is its key and its value, these rows again.
        place: of the layer within a block.
        group: number of the block tables that hold for it, see AttentionMetadata.of_groups().
    """

    k: torch.Tensor
    v: torch.Tensor
    place: int = 0
    group: int = 0


class BlockShape(NamedTuple):
    """What one block consists of: keys and values of block_size tokens in several layers of this rank.

    Attributes:
        num_layers: layers of a block; all of this rank, or as many as it has in the largest group of them.
        dtype: of activations; or of codes in their place, int8, or uint8 that hold E4M3.
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
    def token_elements(self) -> int:
        """Elements that a token takes in one head of a piece."""
        if self.dtype != torch.int8:
            return self.head_dim
        return self.head_dim + (2 if self.layer_pieces == 1 else 1) * INT8_SCALE_BYTES

    @property
    def piece_elements(self) -> int:
        """Elements of one piece."""
        return self.num_kv_heads * self.block_size * self.token_elements

    @property
    def num_bytes(self) -> int:
        """Bytes that one block takes in all layers together."""
        return self.num_pieces * self.piece_elements * self.dtype.itemsize


def layer_caches(pool: torch.Tensor, places: Sequence[LayerPlace] | None = None) -> list[KVCache]:
    """Return each layer's part of a pool of an attention backend.

    Args:
        pool: [num_layers of a block, 1 or 2, num_blocks, ...].
        places: of the layers of this rank; None if there is one group, which has them all.
    """
    places = LayerGroups().place([0] * len(pool)) if places is None else places
    return [KVCache(pool[place][0], pool[place][-1], place, group) for place, group in places]
