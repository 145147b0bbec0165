"""What a model layer asks of an attention backend."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from worker.attention.metadata import AttentionMetadata
from worker.kv_cache import BlockShape, KVCache


class AttentionBackend(ABC):
    """Owns the layout of the KV cache and the kernels that write and read it; one thread only.

    Attributes:
        can_be_captured: forward() only enqueues kernels, so that a graph can hold it.
    """

    can_be_captured = True

    @abstractmethod
    def allocate(self, shape: BlockShape, num_blocks: int) -> torch.Tensor:
        """Allocate the caches of all layers; memory may be backed only once it is first written.

        Returns:
            [num_layers, 2, num_blocks, ...], keys before values; one piece, [layer, 0 or 1, block], is
            contiguous and has shape.piece_elements elements.

        Raises:
            OSError, RuntimeError: the memory is not there.
        """

    def begin_step(self, meta: AttentionMetadata) -> None:
        """Hear of a step before its first layer; what a backend plans once per step, it plans anew."""
        return

    @abstractmethod
    def forward(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        kv_cache: KVCache,
        meta: AttentionMetadata,
        scale: float,
        sliding_window: int = 0,
    ) -> None:
        """Write this step's keys and values into the cache, then attend causally over it.

        Args:
            out: [T, Hq, D], overwritten.
            q: [T, Hq, D]; q, k and v may be strided slices of one fused buffer whose last dimension is dense.
            k: [T, Hkv, D].
            v: [T, Hkv, D].
            kv_cache: this layer's cache.
            meta: layout of the step.
            scale: factor of the attention scores, usually D ** -0.5.
            sliding_window: a token sees itself and the sliding_window - 1 tokens before it; 0 for all.
        """
