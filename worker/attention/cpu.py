"""Attention on the CPU: custom paged kernels over caches in plain memory."""

from __future__ import annotations

import torch

from splitserve.worker.attention.base import (
    AttentionBackend,
    LatentRotation,
    LatentScores,
    Rotation,
    Scores,
    WholeScores,
)
from splitserve.worker.attention.cache_writer import Projected, write_cache
from splitserve.worker.attention.latents import LatentStep, attend_latents
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.attention.whole_sequences import attend_whole
from splitserve.worker.kv_cache.layout import BlockShape, KVCache
from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.pages import zero_pages


class CpuAttention(AttentionBackend):
    """The `cpu` backend."""

    def allocate(self, shape: BlockShape, num_blocks: int) -> torch.Tensor:
        """Allocate zero pages, which take no memory until a block is first written."""
        block = (shape.num_kv_heads, shape.block_size, shape.token_elements)
        return zero_pages((shape.num_layers, shape.layer_pieces, num_blocks, *block), shape.dtype)

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
        write_cache(ops, Projected(q, k, v), (kv_cache.k, kv_cache.v), meta, rotation)

    def attend(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        kv_cache: KVCache,
        meta: AttentionMetadata,
        scores: Scores,
    ) -> None:
        """See AttentionBackend.attend."""
        ops.paged_attention(
            out,
            q,
            kv_cache.k,
            kv_cache.v,
            meta.block_tables,
            meta.cu_seqlens_q,
            meta.seq_lens,
            *scores,
        )

    def attend_whole(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        meta: AttentionMetadata,
        scores: WholeScores,
    ) -> None:
        """See AttentionBackend.attend_whole."""
        attend_whole(ops.whole, out, Projected(q, k, v), meta, scores)

    def write_latents(
        self,
        q: torch.Tensor,
        latents: torch.Tensor,
        kv_cache: KVCache,
        meta: AttentionMetadata,
        rotation: LatentRotation,
    ) -> None:
        """See AttentionBackend.write_latents."""
        cos_sin, norm, eps = rotation
        ops.latents.write(q, latents, meta.positions, cos_sin, kv_cache.k, meta.slot_mapping, norm, eps)

    def attend_latents(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        kv_cache: KVCache,
        meta: AttentionMetadata,
        scores: LatentScores,
    ) -> None:
        """See AttentionBackend.attend_latents."""
        assert isinstance(scores.keys, PackedWeight), "this is a weight of a CPU"
        assert isinstance(scores.values, PackedWeight), "this is a weight of a CPU"
        step = LatentStep(q, scores.queries, kv_cache.k, scores.scale)
        attend_latents(ops.latents, out, step, meta, (scores.keys, scores.values))
