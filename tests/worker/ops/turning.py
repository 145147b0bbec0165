"""Norm and rotation of queries and keys in plain torch: what rotary_kv_write is compared with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def make_table(rot_dim: int, max_pos: int = 50) -> Tensor:
    """float32 [max_pos, rot_dim]: cosines, then sines."""
    angles = torch.arange(max_pos)[:, None] * 10000.0 ** (-torch.arange(0, rot_dim, 2) / rot_dim)
    return torch.cat([angles.cos(), angles.sin()], dim=1).float()


def turned(
    x: Tensor, positions: Tensor, table: Tensor, norm: Tensor | None = None, eps: float = 0.0
) -> Tensor:
    """Heads x [T, heads, D] normed, if there are weights [D], and turned, all in x's dtype."""
    if norm is not None:
        x = F.rms_norm(x, norm.shape, norm.to(x.dtype), eps)
    half = table.shape[1] // 2
    cos, sin = table[positions.long()].to(x.dtype)[:, None].split(half, dim=-1)
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)
