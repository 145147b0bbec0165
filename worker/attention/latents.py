"""Calls the custom kernels of latent attention, between the products that make its queries and outputs."""

from __future__ import annotations

from typing import NamedTuple

import torch

from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.ops.layers.latents import LatentOps
from splitserve.worker.ops.matrix import MatrixT_contra


class LatentStep(NamedTuple):
    """What one layer attends with.

    Attributes:
        q: [T, Hq, P + R], whose ends have been rotated.
        queries: [T, Hq, C], overwritten.
        cache: of latents.
        scale: of the scores.
    """

    q: torch.Tensor
    queries: torch.Tensor
    cache: torch.Tensor
    scale: float


def attend_latents(
    ops: LatentOps[MatrixT_contra],
    out: torch.Tensor,
    step: LatentStep,
    meta: AttentionMetadata,
    matrices: tuple[MatrixT_contra, MatrixT_contra],
) -> None:
    """Implement AttentionBackend.attend_latents.

    Args:
        ops: kernels for the tensors' device.
        out: [T, Hq, V], overwritten.
        step: of the layer.
        meta: layout of the step.
        matrices: per head those of keys, [C, P], and of values, [V, C].
    """
    keys, values = matrices
    q, queries, cache, scale = step
    plain_dim = keys.shape[1]
    ops.multiply_heads(queries, q[..., :plain_dim], keys)
    # A row's sum takes the place of its query, which nothing else reads.
    rows = (meta.block_tables, meta.cu_seqlens_q, meta.seq_lens)
    ops.attend(queries, queries, q[..., plain_dim:], cache, rows, scale)
    ops.multiply_heads(out, queries, values)
