"""The interface between model layers and attention backends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch

from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.kv_cache.layout import BlockShape, KVCache
from splitserve.worker.ops.matrix import Matrix


class Rotation(NamedTuple):
    """How queries and keys are prepared before attention: an optional per-head norm, then the rotation.

    Attributes:
        cos_sin: fp32 [max_pos, R], R <= D: cosines, then sines; element i is rotated with element i + R / 2,
            elements from R on are not.
        q_norm, k_norm: RMS norm weights [D], or None.
        eps: epsilon of the norms.
        norm_offset: added to their weights.
    """

    cos_sin: torch.Tensor
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    eps: float = 0.0
    norm_offset: float = 0.0


class Scores(NamedTuple):
    """How a layer's scores come from dot products of queries and keys.

    Attributes:
        scale: multiplies them, usually D ** -0.5.
        sliding_window: a token sees itself and the sliding_window - 1 tokens before it; 0 = no window.
        softcap: scaled scores s become softcap * tanh(s / softcap); 0: they stay.
        sinks: [Hq], like the queries: in the softmax of each head a position more, which has this score and
            no value; None for none.
    """

    scale: float
    sliding_window: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = None


class WholeScores(NamedTuple):
    """How a layer's scores come from dot products of queries and keys where there is no cache.

    Attributes:
        scale: multiplies them.
        reach: a token sees this many positions to either side of its own; 0: all.
        cos_sin: as in Rotation; None if queries and keys are not rotated.
    """

    scale: float
    reach: int = 0
    cos_sin: torch.Tensor | None = None


class LatentRotation(NamedTuple):
    """How a latent, the rotary key beside it, and the ends of queries are prepared before attention.

    Attributes:
        cos_sin: fp32 [max_pos, R]: cosines, then sines; element i is rotated with element i + R / 2.
        norm: RMS norm weights [C] of the latent.
        eps: epsilon of the norm.
    """

    cos_sin: torch.Tensor
    norm: torch.Tensor
    eps: float


class LatentScores(NamedTuple):
    """How a layer's scores and outputs come from latents.

    Attributes:
        scale: multiplies dot products of queries and keys.
        keys: per head the matrix [C, P] that takes the plain part of a query to where latents are keys.
        values: per head the matrix [V, C] that makes values of latents.
        queries: [T, Hq, C], what `keys` makes, and then sums of latents; its contents are undefined.
    """

    scale: float
    keys: Matrix
    values: Matrix
    queries: torch.Tensor


class AttentionBackend(ABC):
    """Owns the KV cache layout and the kernels that read and write it; single-threaded.

    Attributes:
        can_be_captured: write() and attend() only enqueue kernels, so a CUDA graph can capture them.
    """

    can_be_captured = True

    @abstractmethod
    def allocate(self, shape: BlockShape, num_blocks: int) -> torch.Tensor:
        """Allocate the caches of all layers; pages may be backed by memory only when first written.

        Returns:
            [num_layers, shape.layer_pieces, num_blocks, ...], keys before values; each piece,
            [layer, 0 or 1, block], is contiguous and has shape.piece_elements elements.

        Raises:
            OSError, RuntimeError: there is not enough memory.
        """

    def begin_step(self, meta: AttentionMetadata) -> None:
        """Called before the first layer of each step; discards plans made for the last one."""
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
        """Normalise and rotate this step's queries and keys, and write keys and values into the cache.

        Args:
            q: [T, Hq, D], in place; q, k and v may be strided slices of one fused buffer whose last dimension
                is dense.
            k: [T, Hkv, D]; its contents are undefined afterwards.
            v: [T, Hkv, D].
            kv_cache: this layer's cache.
            meta: layout of the step.
            rotation: None writes keys unchanged and leaves queries alone.
        """

    @abstractmethod
    def attend(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        kv_cache: KVCache,
        meta: AttentionMetadata,
        scores: Scores,
    ) -> None:
        """Causal attention over the cache, after write() has added this step's keys and values.

        Args:
            out: [T, Hq, D], overwritten.
            q: [T, Hq, D], as write() left it.
            kv_cache: this layer's cache.
            meta: layout of the step.
            scores: how they are computed.
        """

    def attend_whole(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        meta: AttentionMetadata,
        scores: WholeScores,
    ) -> None:
        """Attention within the rows of a step, which are whole sequences: no token is hidden from another.

        Only of backends that are chosen for models that need it, see AttentionNeeds.

        Args:
            out: [T, Hq, D], overwritten.
            q: [T, Hq, D]; its contents are undefined afterwards.
            k: [T, Hkv, D], likewise.
            v: [T, Hkv, D].
            meta: layout of the step.
            scores: how they are computed.
        """
        raise AssertionError(f"{type(self).__name__} attends over a cache only")

    def write_latents(
        self,
        q: torch.Tensor,
        latents: torch.Tensor,
        kv_cache: KVCache,
        meta: AttentionMetadata,
        rotation: LatentRotation,
    ) -> None:
        """Prepare this step's latents and rotary keys, write them into the cache, and rotate ends of queries.

        Only of backends that are chosen for models that need it, see AttentionNeeds.

        Args:
            q: [T, Hq, R], the ends that turn, in place.
            latents: [T, C + R]: latents, then rotary keys.
            kv_cache: this layer's cache.
            meta: layout of the step.
            rotation: of the layer.
        """
        raise AssertionError(f"{type(self).__name__} has no latents")

    def attend_latents(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        kv_cache: KVCache,
        meta: AttentionMetadata,
        scores: LatentScores,
    ) -> None:
        """Causal attention over cached latents, after write_latents() has added this step's.

        Args:
            out: [T, Hq, V], overwritten.
            q: [T, Hq, P + R], whose ends write_latents() has rotated.
            kv_cache: this layer's cache.
            meta: layout of the step.
            scores: how they are computed.
        """
        raise AssertionError(f"{type(self).__name__} has no latents")
