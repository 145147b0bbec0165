"""What a model layer asks of an attention backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch

from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.kv_cache.layout import BlockShape, KVCache


class Rotation(NamedTuple):
    """What happens to queries and keys before attention: a norm per head, if there is one, then the rotation.

    Attributes:
        cos_sin: fp32 [max_pos, D]: cosines, then sines, by which element i turns with element i + D / 2.
        q_norm, k_norm: weights [D] of RMS norms, or None.
        eps: of the norms.
    """

    cos_sin: torch.Tensor
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    eps: float = 0.0


class AttentionBackend(ABC):
    """Owns the layout of the KV cache and the kernels that write and read it; one thread only.

    Attributes:
        can_be_captured: write() and attend() only enqueue kernels, so that a graph can hold them.
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
    def write(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        kv_cache: KVCache,
        meta: AttentionMetadata,
        rotation: Rotation | None,
    ) -> None:
        """Norm and turn this step's queries and keys, and write keys and values into the cache.

        Args:
            q: [T, Hq, D], in place; q, k and v may be strided slices of one fused buffer whose last dimension
                is dense.
            k: [T, Hkv, D]; what it holds afterwards is not defined.
            v: [T, Hkv, D].
            kv_cache: this layer's cache.
            meta: layout of the step.
            rotation: None: keys are written as they are, and queries not touched.
        """

    @abstractmethod
    def attend(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        kv_cache: KVCache,
        meta: AttentionMetadata,
        scale: float,
        sliding_window: int = 0,
    ) -> None:
        """Attend causally over the cache, to which write() has added this step's keys and values.

        Args:
            out: [T, Hq, D], overwritten.
            q: [T, Hq, D], as write() left it.
            kv_cache: this layer's cache.
            meta: layout of the step.
            scale: factor of the attention scores, usually D ** -0.5.
            sliding_window: a token sees itself and the sliding_window - 1 tokens before it; 0 for all.
        """
