"""What a model and the operator require of an attention backend."""

from __future__ import annotations

from typing import NamedTuple

import torch

from splitserve.worker.device.dtypes import dtype_name


class AttentionNeeds(NamedTuple):
    """Determines which backends can serve a model; every backend supports sliding windows.

    Attributes:
        dtype: of the queries.
        block_size: tokens per block.
        head_dim: elements of a head.
        num_heads, num_kv_heads: of the whole model, across all ranks; the first is a multiple of the second.
        softcap: scores are capped softly.
        sinks: heads have sinks.
        batch_invariant: a row's result must be bitwise independent of its batch.
        latent: all heads read one cached row per token, of head_dim elements.
        whole: tokens see those behind them, and there is no KV cache.
        codes: the KV cache holds codes of 8 bits, "fp8" or "int8"; "" if it holds what the queries are.
    """

    dtype: torch.dtype
    block_size: int
    head_dim: int
    num_heads: int
    num_kv_heads: int
    softcap: bool = False
    sinks: bool = False
    batch_invariant: bool = False
    latent: bool = False
    whole: bool = False
    codes: str = ""

    def __str__(self) -> str:
        """For the log."""
        codes = f" of {self.codes}" if self.codes else ""
        return f"{dtype_name(self.dtype)}, heads of {self.head_dim}, blocks of {self.block_size}{codes}"
