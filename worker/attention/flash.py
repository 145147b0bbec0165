"""Attention by the flash-attn packages, with a KV cache in the layout they require."""

from __future__ import annotations

import torch

from splitserve.worker.attention.base import AttentionBackend, Rotation, Scores
from splitserve.worker.attention.cache_writer import Projected, write_cache
from splitserve.worker.attention.flash_editions import Attend, Paged
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.kv_cache.layout import BlockShape, KVCache
from splitserve.worker.ops.cuda import CudaOps


class FlashAttention(AttentionBackend):
    """The `flash_attn` backend. How it splits long contexts, hence a row's bits, may depend on the batch.

    Caches are [num_blocks, block_size, num_kv_heads, head_dim].

    Args:
        ops: kernels that write the cache.
        device: where the caches live.
        attend: the attention function of the chosen edition.
    """

    def __init__(self, ops: CudaOps, device: torch.device, attend: Attend) -> None:
        self._ops = ops
        self._device = device
        self._attend = attend
        # The current step's block tables, keyed by group and sliding window; see _without_gone_blocks.
        self._tables: dict[tuple[int, int], torch.Tensor] = {}

    def allocate(self, shape: BlockShape, num_blocks: int) -> torch.Tensor:
        """Allocate the caches in the layout the packages require."""
        block = (shape.block_size, shape.num_kv_heads, shape.head_dim)
        return torch.zeros(shape.num_layers, 2, num_blocks, *block, dtype=shape.dtype, device=self._device)

    def begin_step(self, meta: AttentionMetadata) -> None:
        """Drop the block tables of the previous step."""
        self._tables.clear()

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
        scores: Scores,
    ) -> None:
        """See AttentionBackend.attend."""
        assert not scores.softcap, "a model with soft caps gets another backend"
        assert scores.sinks is None, "a model with sinks gets another backend"
        sliding_window = scores.sliding_window
        if sliding_window:
            key = kv_cache.group, sliding_window
            tables = self._tables.get(key)
            if tables is None:
                tables = _without_gone_blocks(meta, kv_cache.k.shape[1], sliding_window)
                self._tables[key] = tables
            meta = meta._replace(block_tables=tables)
        out.copy_(self._attend(q, Paged(kv_cache.k, kv_cache.v, meta, scores.scale, sliding_window - 1)))


def _without_gone_blocks(meta: AttentionMetadata, block_size: int, sliding_window: int) -> torch.Tensor:
    """Replace blocks before a row's window, which may be -1 or reused, by its first block in the window.

    The packages load whole tiles of up to 176 positions and give weight 0 to positions before the window.
    That masks finite values, but not a NaN in another request's block, and -1 points outside the cache.

    Returns:
        int32 [R, max_blocks], newly allocated, so that a graph that captured it keeps it alive.
    """
    tables, lengths = meta.block_tables, meta.seq_lens
    first_seen = lengths - meta.cu_seqlens_q.diff() - sliding_window + 1
    first_block = first_seen.clamp_(min=0).div_(block_size, rounding_mode="floor")
    columns = torch.arange(tables.shape[1], device=tables.device)
    return tables.gather(1, torch.maximum(columns, first_block[:, None].long()))
