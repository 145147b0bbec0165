"""Calls the custom kernels that attend within whole sequences, with or without rotation."""

from __future__ import annotations

import torch

from splitserve.worker.attention.base import WholeScores
from splitserve.worker.attention.cache_writer import Projected
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.ops.layers.wholes import WholeOps


def attend_whole(
    ops: WholeOps, out: torch.Tensor, step: Projected, meta: AttentionMetadata, scores: WholeScores
) -> None:
    """Implement AttentionBackend.attend_whole.

    Args:
        ops: kernels for the tensors' device.
        out: [T, Hq, D], overwritten.
        step: queries, keys and values.
        meta: layout of the step.
        scores: how they are computed.
    """
    q, k, v = step
    if scores.cos_sin is not None:
        ops.rotate(q, meta.positions, scores.cos_sin)
        ops.rotate(k, meta.positions, scores.cos_sin)
    ops.attend(out, q, k, v, meta.cu_seqlens_q, scores.scale, scores.reach)
