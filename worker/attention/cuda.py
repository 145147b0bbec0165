"""Attention on a GPU by custom paged kernels; a row's result is bitwise independent of its batch."""

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
from splitserve.worker.ops.cuda import AttentionShape, CudaOps
from splitserve.worker.ops.dense_weight import DenseWeight

# Must match csrc/cuda/attention.h: header words before the values of a partial row.
_PARTIAL_HEADER = 4
# Enough for 256 rows of 32 heads over 8 segments; what does not fit is computed without a split.
_PARTIAL_ROWS = 1 << 16


class CudaAttention(AttentionBackend):
    """The `cuda` backend.

    Caches are [num_blocks, num_kv_heads, block_size, head_dim] with each token's row contiguous; of latents
    there is one head. In codes a block has for each head first the rows of codes, then the scales.

    Args:
        ops: the kernel library.
        device: where the caches live.
    """

    def __init__(self, ops: CudaOps, device: torch.device) -> None:
        self._ops = ops
        self._device = device
        self._partials = torch.empty(0)
        # The current step's work plans, keyed by sliding window.
        self._plans: dict[int, torch.Tensor] = {}

    def allocate(self, shape: BlockShape, num_blocks: int) -> torch.Tensor:
        """Allocate the caches and, where there are keys and values, the buffer for partial results."""
        width = _PARTIAL_HEADER + shape.head_dim
        splits = shape.layer_pieces == 2 and shape.num_layers > 0
        rows = _PARTIAL_ROWS if splits else 0
        self._partials = torch.empty(rows, width, dtype=torch.float32, device=self._device)
        block = (shape.num_kv_heads, shape.block_size, shape.token_elements)
        size = (shape.num_layers, shape.layer_pieces, num_blocks, *block)
        return torch.zeros(size, dtype=shape.dtype, device=self._device)

    def begin_step(self, meta: AttentionMetadata) -> None:
        """Drop the plans of the previous step."""
        self._plans.clear()

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
        write_cache(self._ops, Projected(q, k, v), (kv_cache.k, kv_cache.v), meta, rotation)

    def attend(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        kv_cache: KVCache,
        meta: AttentionMetadata,
        scores: Scores,
    ) -> None:
        """See AttentionBackend.attend."""
        window = scores.sliding_window
        plan = self._plans.get(window)
        if plan is None:
            plan = self._plans[window] = self._plan(q, kv_cache, meta, window)
        self._ops.paged_attention(
            out,
            q,
            kv_cache.k,
            kv_cache.v,
            meta.block_tables,
            meta.cu_seqlens_q,
            meta.seq_lens,
            *scores,
            plan=plan,
            partials=self._partials,
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
        attend_whole(self._ops.whole, out, Projected(q, k, v), meta, scores)

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
        places = (kv_cache.k, meta.slot_mapping)
        self._ops.latents.write(q, latents, meta.positions, cos_sin, *places, norm, eps)

    def attend_latents(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        kv_cache: KVCache,
        meta: AttentionMetadata,
        scores: LatentScores,
    ) -> None:
        """See AttentionBackend.attend_latents."""
        assert isinstance(scores.keys, DenseWeight), "this is a weight of a GPU"
        assert isinstance(scores.values, DenseWeight), "this is a weight of a GPU"
        step = LatentStep(q, scores.queries, kv_cache.k, scores.scale)
        attend_latents(self._ops.latents, out, step, meta, (scores.keys, scores.values))

    def _plan(
        self, q: torch.Tensor, kv_cache: KVCache, meta: AttentionMetadata, sliding_window: int
    ) -> torch.Tensor:
        """Plan a step's work in newly allocated memory, so that a graph that captured it keeps it alive."""
        tokens, heads, head_dim = q.shape
        kv_heads, block_size = kv_cache.k.shape[1:3]
        requests, width = meta.block_tables.shape
        shape = AttentionShape(tokens, heads, kv_heads, width * block_size)
        size = self._ops.attention_plan_size(tokens, requests, heads, kv_heads, head_dim, shape.max_seq_len)
        plan = torch.empty(size, dtype=torch.int32, device=self._device)
        lengths = (meta.cu_seqlens_q, meta.seq_lens)
        self._ops.plan_attention(plan, self._partials, *lengths, shape, sliding_window)
        return plan
