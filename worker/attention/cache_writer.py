"""How backends call the kernels of ours that write their cache: with a rotation on the way, or without."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from splitserve.worker.attention.base import Rotation
from splitserve.worker.attention.metadata import AttentionMetadata


class CacheWriter(Protocol):
    """What worker.ops.cpu and worker.ops.cuda.CudaOps have for it."""

    def kv_write(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """See worker.ops.cpu.kv_write."""

    def rotary_kv_write(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        q_norm: torch.Tensor | None = None,
        k_norm: torch.Tensor | None = None,
        eps: float = 0.0,
    ) -> None:
        """See worker.ops.cpu.rotary_kv_write."""


class Projected(NamedTuple):
    """What a layer projected for a step: q [T, Hq, D], k and v [T, Hkv, D]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


def write_cache(
    ops: CacheWriter,
    step: Projected,
    caches: tuple[torch.Tensor, torch.Tensor],
    meta: AttentionMetadata,
    rotation: Rotation | None,
) -> None:
    """Do what AttentionBackend.write asks for.

    Args:
        ops: kernels of the tensors' device.
        step: queries, keys and values.
        caches: of keys and of values, [num_blocks, Hkv, block_size, D] each, as these kernels lay blocks out.
        meta: layout of the step.
        rotation: of queries and keys.
    """
    q, k, v = step
    if rotation is None:
        ops.kv_write(k, v, *caches, meta.slot_mapping)
        return
    cos_sin, q_norm, k_norm, eps = rotation
    ops.rotary_kv_write(q, k, v, meta.positions, cos_sin, *caches, meta.slot_mapping, q_norm, k_norm, eps)
