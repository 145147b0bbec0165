"""Compiles our calls of the installed FlashAttention 4 for a GPU that need not be there; prints a line per
call.

`python -m tests.worker.attention.compile_flash_4 sm_90`: heads of all sizes, chunks and decode steps,
windows, pages of 16 tokens and of a whole tile, and more rows than it searches one by one. Tensors are fake
ones, so nothing runs.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from splitserve.worker.attention.flash_editions import EDITIONS, Attend, Paged
from splitserve.worker.attention.metadata import AttentionMetadata


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


def compile_call(attend: Attend, call: Call) -> None:
    """Attend with fake tensors of the call's shapes.

    Raises:
        Exception: what the package makes of a call it does not have.
    """
    heads, kv_heads = call.heads
    pages = (64, call.block_size, kv_heads, call.head_dim)
    k_cache, v_cache = (torch.empty(pages, dtype=call.dtype, device="cuda") for _ in range(2))
    q = torch.empty(call.rows * call.new, heads, call.head_dim, dtype=call.dtype, device="cuda")
    tokens, lengths, ends = (
        torch.empty(n, dtype=torch.int32, device="cuda") for n in (len(q), call.rows, call.rows + 1)
    )
    tables = torch.empty(call.rows, 64, dtype=torch.int32, device="cuda")
    meta = AttentionMetadata(tokens, tokens, tables, ends, lengths)
    window = call.sliding_window - 1
    attend(q, Paged(k_cache, v_cache, meta, call.head_dim**-0.5, window))


def main(target: str) -> None:
    """Compile all calls for a target such as sm_90, of Hopper."""
    # Which kernel, for which machine code, on how many processors: read when the package is imported.
    os.environ |= {
        "FLASH_ATTENTION_ARCH": target,
        "CUTE_DSL_ARCH": f"{target}a",
        "FLASH_ATTENTION_NUM_SMS": "132",
    }
    (edition,) = (edition for edition in EDITIONS if edition.module == "flash_attn.cute")
    module = importlib.import_module(edition.module)
    attend = edition.adapt(module)
    for call in CALLS:
        with FakeTensorMode():
            compile_call(attend, call)
        print(f"compiled {call}")


if __name__ == "__main__":
    main(sys.argv[1])
