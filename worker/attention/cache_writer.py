"""Calls the custom kernels that write the KV cache, with or without rotation."""

from __future__ import annotations

from typing import NamedTuple

import torch

from splitserve.worker.attention.base import Rotation
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.ops.interface import Kernels


class Projected(NamedTuple):
    """The projections of one layer in one step: q [T, Hq, D], k and v [T, Hkv, D]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


def write_cache(
    ops: Kernels,
    step: Projected,
    caches: tuple[torch.Tensor, torch.Tensor],
    meta: AttentionMetadata,
    rotation: Rotation | None,
) -> None:
    """Implement AttentionBackend.write.

    Args:
        ops: kernels for the tensors' device.
        step: queries, keys and values.
        caches: keys and values, [num_blocks, Hkv, block_size, D] each, in the layout of these kernels.
        meta: layout of the step.
        rotation: applied to queries and keys; None for none.
    """
    q, k, v = step
    if rotation is None:
        ops.kv_write(k, v, *caches, meta.slot_mapping)
        return
    cos_sin, q_norm, k_norm, *numbers = rotation
    places = (*caches, meta.slot_mapping)
    ops.rotary_kv_write(q, k, v, meta.positions, cos_sin, *places, q_norm, k_norm, *numbers)
