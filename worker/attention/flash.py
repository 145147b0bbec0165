"""Attention by the flash-attn packages: FlashAttention 2, 3 or 4, whichever suits the device."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from worker.attention.base import AttentionBackend, Rotation
from worker.attention.cache_writer import CacheWriter, Projected, write_cache
from worker.attention.metadata import AttentionMetadata
from worker.kv_cache import BlockShape, KVCache


class Paged(NamedTuple):
    """What one call attends to.

    Attributes:
        k, v: [num_blocks, block_size, Hkv, D].
        meta: layout of the step.
        max_queries: no row has more query tokens.
        scale: factor of the scores.
        window: tokens that a query sees before its own; -1 for all.
    """

    k: torch.Tensor
    v: torch.Tensor
    meta: AttentionMetadata
    max_queries: int
    scale: float
    window: int

    @property
    def max_keys(self) -> int:
        """No row has more positions."""
        return self.meta.block_tables.shape[1] * self.k.shape[1]


Attend = Callable[[torch.Tensor, Paged], torch.Tensor]
"""(q [T, Hq, D], cache) -> [T, Hq, D]; strict causality, aligned to the end of each row."""


class Edition(NamedTuple):
    """One of the packages.

    Attributes:
        name: for the log.
        module: what is imported.
        majors: first digits of the compute capabilities it has paged kernels for.
        block_multiple: its page sizes are multiples of this.
        adapt: makes the call from the module.
    """

    name: str
    module: str
    majors: tuple[int, ...]
    block_multiple: int
    adapt: Callable[[Any], Attend]


def _adapt_2(module: Any) -> Attend:
    """FlashAttention 2 takes the context lengths as their running sum."""

    def attend(q: torch.Tensor, cache: Paged) -> torch.Tensor:
        meta = cache.meta
        cu_seqlens_k = torch.nn.functional.pad(meta.seq_lens.cumsum(0, dtype=torch.int32), (1, 0))
        out: torch.Tensor = module.flash_attn_varlen_func(
            q,
            cache.k,
            cache.v,
            cu_seqlens_q=meta.cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=cache.max_queries,
            max_seqlen_k=cache.max_keys,
            softmax_scale=cache.scale,
            causal=True,
            window_size=(cache.window, -1 if cache.window < 0 else 0),
            block_table=meta.block_tables,
        )
        return out

    return attend


def _adapt_3(module: Any) -> Attend:
    """FlashAttention 3 reads pages in flash_attn_with_kvcache only."""

    def attend(q: torch.Tensor, cache: Paged) -> torch.Tensor:
        meta = cache.meta
        out: torch.Tensor = module.flash_attn_with_kvcache(
            q,
            cache.k,
            cache.v,
            cache_seqlens=meta.seq_lens,
            page_table=meta.block_tables,
            cu_seqlens_q=meta.cu_seqlens_q,
            max_seqlen_q=cache.max_queries,
            softmax_scale=cache.scale,
            causal=True,
            window_size=(cache.window, -1 if cache.window < 0 else 0),
        )
        return out

    return attend


def _adapt_4(module: Any) -> Attend:
    """FlashAttention 4 says None where there is no window, and also returns the softmax's logarithms."""

    def attend(q: torch.Tensor, cache: Paged) -> torch.Tensor:
        meta = cache.meta
        out: torch.Tensor
        out, _ = module.flash_attn_varlen_func(
            q,
            cache.k,
            cache.v,
            cu_seqlens_q=meta.cu_seqlens_q,
            max_seqlen_q=cache.max_queries,
            max_seqlen_k=cache.max_keys,
            seqused_k=meta.seq_lens,
            page_table=meta.block_tables,
            softmax_scale=cache.scale,
            causal=True,
            window_size=(None, None) if cache.window < 0 else (cache.window, 0),
        )
        return out

    return attend


# In order of preference. The third is Hopper's alone; pages of the fourth need Hopper or Blackwell.
EDITIONS = (
    Edition("FlashAttention 3", "flash_attn_interface", (9,), 1, _adapt_3),
    Edition("FlashAttention 4", "flash_attn.cute", (9, 10, 11), 1, _adapt_4),
    Edition("FlashAttention 2", "flash_attn", (8, 9, 10, 11, 12), 256, _adapt_2),
)


class Found(NamedTuple):
    """An edition that can be used, or why none can."""

    name: str = ""
    attend: Attend | None = None
    reason: str = ""


def find_edition(major: int, block_size: int) -> Found:
    """Return the first edition that is installed and suits a compute capability and a block size."""
    reasons = []
    for edition in EDITIONS:
        if major not in edition.majors:
            continue
        if block_size % edition.block_multiple:
            reasons.append(f"{edition.name} needs --block-size {edition.block_multiple}")
            continue
        try:
            module = importlib.import_module(edition.module)
            return Found(edition.name, edition.adapt(module))
        except ImportError as error:
            reasons.append(f"{edition.name}: {error}")
    return Found(
        reason="; ".join(reasons) or f"no edition has paged kernels for compute capability {major}.x"
    )


class FlashAttention(AttentionBackend):
    """The `flash_attn` backend. How it splits long contexts, and so a row's bits, may depend on the batch.

    Caches are [num_blocks, block_size, num_kv_heads, head_dim].

    Args:
        ops: writes the cache.
        device: of the caches.
        attend: an edition's call.
    """

    def __init__(self, ops: CacheWriter, device: torch.device, attend: Attend) -> None:
        self._ops = ops
        self._device = device
        self._attend = attend

    def allocate(self, shape: BlockShape, num_blocks: int) -> torch.Tensor:
        """Take the memory of the caches, laid out as the packages ask."""
        block = (shape.block_size, shape.num_kv_heads, shape.head_dim)
        return torch.zeros(shape.num_layers, 2, num_blocks, *block, dtype=shape.dtype, device=self._device)

    def write(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        kv_cache: KVCache,
        meta: AttentionMetadata,
        rotation: Rotation | None,
    ) -> None:
        """See AttentionBackend.write."""
        caches = (kv_cache.k.transpose(1, 2), kv_cache.v.transpose(1, 2))
        write_cache(self._ops, Projected(q, k, v), caches, meta, rotation)

    def attend(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        kv_cache: KVCache,
        meta: AttentionMetadata,
        scale: float,
        sliding_window: int = 0,
    ) -> None:
        """See AttentionBackend.attend."""
        # Every row has at least one token, which bounds the longest without asking the device.
        max_queries = len(q) - len(meta.seq_lens) + 1
        out.copy_(self._attend(q, Paged(*kv_cache, meta, max_queries, scale, sliding_window - 1)))
