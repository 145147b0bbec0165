"""Attention by the flash-attn packages, over a cache in the layout they require."""

from __future__ import annotations

import torch

from splitserve.worker.attention.base import AttentionBackend, Rotation
from splitserve.worker.attention.cache_writer import Projected, write_cache
from splitserve.worker.attention.flash_editions import Attend, Paged
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.kv_cache.layout import BlockShape, KVCache
from splitserve.worker.ops.cuda import CudaOps


class FlashAttention(AttentionBackend):
    """The `flash_attn` backend. How it splits long contexts, and so a row's bits, may depend on the batch.

    Caches are [num_blocks, block_size, num_kv_heads, head_dim].

    Args:
        ops: writes the cache.
        device: of the caches.
        attend: an edition's call.
    """

    def __init__(self, ops: CudaOps, device: torch.device, attend: Attend) -> None:
        self._ops = ops
        self._device = device
        self._attend = attend
        # By sliding window: the current step's block tables, see _without_gone_blocks.
        self._tables: dict[int, torch.Tensor] = {}

    def allocate(self, shape: BlockShape, num_blocks: int) -> torch.Tensor:
        """Take the memory of the caches, laid out as the packages ask."""
        block = (shape.block_size, shape.num_kv_heads, shape.head_dim)
        return torch.zeros(shape.num_layers, 2, num_blocks, *block, dtype=shape.dtype, device=self._device)

    def begin_step(self, meta: AttentionMetadata) -> None:
        """Forget the block tables of the step before."""
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
        scale: float,
        sliding_window: int = 0,
    ) -> None:
        """See AttentionBackend.attend."""
        if sliding_window:
            tables = self._tables.get(sliding_window)
            if tables is None:
                tables = _without_gone_blocks(meta, kv_cache.k.shape[1], sliding_window)
                self._tables[sliding_window] = tables
            meta = meta._replace(block_tables=tables)
        out.copy_(self._attend(q, Paged(*kv_cache, meta, scale, sliding_window - 1)))


def _without_gone_blocks(meta: AttentionMetadata, block_size: int, sliding_window: int) -> torch.Tensor:
    """Name a row's first block within its window in place of those before, which may be -1 or others' by now.

    The packages load whole tiles, of up to 176 positions, and give weight 0 to what lies before the window.
    That keeps out numbers, but no NaN of somebody else's, and -1 is a place outside the cache.

    Returns:
        int32 [R, max_blocks], new memory, so that a graph that holds it keeps it.
    """
    tables, lengths = meta.block_tables, meta.seq_lens
    first_seen = lengths - meta.cu_seqlens_q.diff() - sliding_window + 1
    first_block = first_seen.clamp_(min=0).div_(block_size, rounding_mode="floor")
    columns = torch.arange(tables.shape[1], device=tables.device)
    return tables.gather(1, torch.maximum(columns, first_block[:, None].long()))
