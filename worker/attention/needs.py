"""What a model and the operator ask of an attention backend."""

from __future__ import annotations

from typing import NamedTuple

import torch

from splitserve.worker.device.dtypes import dtype_name


class AttentionNeeds(NamedTuple):
    """What decides which backend can serve a model; windows do not, as every backend has them.

    Attributes:
        dtype: of queries and the cache.
        block_size: tokens per block.
        head_dim: elements of a head.
        num_heads, num_kv_heads: of the whole model; the first is a multiple of the second.
        batch_invariant: a row's bits must not depend on its batch.
    """

    dtype: torch.dtype
    block_size: int
    head_dim: int
    num_heads: int
    num_kv_heads: int
    batch_invariant: bool = False

    def __str__(self) -> str:
        """For the log."""
        return f"{dtype_name(self.dtype)}, heads of {self.head_dim}, blocks of {self.block_size}"
