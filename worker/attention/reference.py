"""Attention in plain torch, on any device: the slow reference that other backends are tested against."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from splitserve.worker.attention.base import AttentionBackend, Rotation, Scores
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.kv_cache.layout import BlockShape, KVCache


class TorchAttention(AttentionBackend):
    """The `torch` backend: gathers each row's keys and values and computes its softmax in float32.

    It synchronises with the device in every layer, so it is not meant for serving. Caches are
    [num_blocks, block_size, num_kv_heads, head_dim].

    Args:
        device: where the caches live.
    """

    can_be_captured = False

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocate(self, shape: BlockShape, num_blocks: int) -> torch.Tensor:
        """Allocate the caches."""
        block = (shape.block_size, shape.num_kv_heads, shape.head_dim)
        return torch.zeros(shape.num_layers, 2, num_blocks, *block, dtype=shape.dtype, device=self._device)

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
        if rotation is not None:
            cosine, sine = rotation.cos_sin[meta.positions.long()][:, None].chunk(2, dim=-1)
            q.copy_(_turned(_normed(q, rotation.q_norm, rotation), cosine, sine))
            k = _turned(_normed(k, rotation.k_norm, rotation), cosine, sine)
        kept = (meta.slot_mapping >= 0).nonzero().flatten()
        slots = meta.slot_mapping[kept].long()
        kv_cache.k.flatten(0, 1)[slots] = k[kept]
        kv_cache.v.flatten(0, 1)[slots] = v[kept]

    def attend(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        kv_cache: KVCache,
        meta: AttentionMetadata,
        scores: Scores,
    ) -> None:
        """See AttentionBackend.attend."""
        ends, lengths = meta.cu_seqlens_q.tolist(), meta.seq_lens.tolist()
        block_size = kv_cache.k.shape[1]
        for row, length in enumerate(lengths):
            span = slice(ends[row], ends[row + 1])
            first = _first_seen(length, span.stop - span.start, scores.sliding_window) // block_size
            blocks = meta.block_tables[row, first : -(-length // block_size)].long()
            keys = kv_cache.k[blocks].flatten(0, 1)[: length - first * block_size]
            values = kv_cache.v[blocks].flatten(0, 1)[: length - first * block_size]
            out[span] = _attend(q[span], keys, values, scores)


def _normed(x: torch.Tensor, weight: torch.Tensor | None, rotation: Rotation) -> torch.Tensor:
    if weight is None:
        return x
    factors = weight.float() + rotation.norm_offset
    return F.rms_norm(x.float(), weight.shape, factors, rotation.eps).to(x.dtype)


def _turned(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    half = cosine.shape[-1]
    first, second, rest = x.float().tensor_split((half, 2 * half), dim=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine, rest)
    return torch.cat(turned, dim=-1).to(x.dtype)


def _first_seen(length: int, num_queries: int, sliding_window: int) -> int:
    """First position visible to the last num_queries of `length` positions; earlier blocks may be freed."""
    return max(0, length - num_queries - sliding_window + 1) if sliding_window else 0


def _attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rule: Scores) -> torch.Tensor:
    """Causal attention of q [Q, Hq, D], the last Q positions of keys and values [L, Hkv, D]."""
    groups = q.shape[1] // keys.shape[1]
    keys, values = (x.float().repeat_interleave(groups, dim=1) for x in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * rule.scale
    if rule.softcap:
        scores = rule.softcap * (scores / rule.softcap).tanh()
    position = torch.arange(len(keys), device=q.device)
    distance = position[len(keys) - len(q) :, None] - position
    hidden = distance < 0
    if rule.sliding_window:
        hidden |= distance >= rule.sliding_window
    scores.masked_fill_(hidden, -torch.inf)
    if rule.sinks is not None:
        sinks = rule.sinks.float()[:, None, None].expand(-1, len(q), 1)
        scores = torch.cat((scores, sinks), dim=-1)
    weights = scores.softmax(dim=-1)[..., : len(keys)]
    return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
