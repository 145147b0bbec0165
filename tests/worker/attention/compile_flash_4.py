"""Compiles our calls of the installed FlashAttention 4 for a GPU that need not be there; prints a line per call.

`python -m tests.worker.attention.compile_flash_4 sm_90`: heads of all sizes, chunks and decode steps, windows, pages of
16 tokens and of a whole tile, and more rows than it searches one by one. Tensors are fake ones, so nothing runs.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from worker.attention.flash import FlashAttention
from worker.attention.flash_editions import EDITIONS, open_edition
from worker.attention.metadata import AttentionMetadata
from worker.attention.needs import AttentionNeeds
from worker.cuda_ops import CudaOps
from worker.kv_cache import BlockShape, layer_caches


class Call(NamedTuple):
    """A step of `rows` rows that each compute `new` tokens."""

    rows: int
    new: int
    head_dim: int = 128
    block_size: int = 16
    sliding_window: int = 0
    dtype: torch.dtype = torch.bfloat16
    heads: tuple[int, int] = (32, 8)


CALLS = [
    *(Call(2, new, head_dim) for head_dim in (16, 64, 80, 128, 256) for new in (1, 512)),
    *(Call(2, new, sliding_window=1000) for new in (1, 512)),
    Call(2, 512, dtype=torch.float16),
    Call(2, 512, block_size=128),
    Call(2, 512, heads=(7, 1)),
    Call(300, 1),
]
