"""Builds paged caches for the attention tests, and computes attention in float64 without paging."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops


@dataclass(slots=True)
class Shape:
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int = 16

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5


@dataclass(slots=True)
class Sequence:
    """One sequence: q [L, heads, D], k and v [L, kv_heads, D]."""

    q: Tensor
    k: Tensor
    v: Tensor

    @classmethod
    def random(cls, shape: Shape, length: int, dtype: torch.dtype) -> "Sequence":
        def draw(heads: int) -> Tensor:
            return torch.randn(length, heads, shape.head_dim).to(dtype)

        return cls(draw(shape.heads), draw(shape.kv_heads), draw(shape.kv_heads))

    def __len__(self) -> int:
        return self.q.shape[0]


class PagedBatch:
    """The caches of some sequences, in scattered blocks; every slot without a token holds NaN.

    `write` is the kv_write of the kernels under test: devices lay a block out as suits them. `codes` is the
    dtype of a cache that holds codes.
    """

    def __init__(
        self,
        shape: Shape,
        sequences: list[Sequence],
        write: Callable[..., None] = ops.kv_write,
        codes: torch.dtype | None = None,
    ) -> None:
        self.shape, self.sequences = shape, sequences
        counts = [-(-len(s) // shape.block_size) for s in sequences]
        num_blocks = sum(counts) + 2
        size = (num_blocks, shape.kv_heads, shape.block_size, shape.head_dim)
        self.k_cache = _nowhere_set(size, codes or sequences[0].q.dtype)
        self.v_cache = self.k_cache.clone()
        # Entries past a sequence's blocks are out of range: reading one would be an error.
        self.block_tables = torch.full((len(sequences), max(counts) + 1), 1 << 30, dtype=torch.int32)
        free = torch.randperm(num_blocks).int()
        for i, (sequence, count) in enumerate(zip(sequences, counts, strict=True)):
            self.block_tables[i, :count], free = free[:count], free[count:]
            positions = torch.arange(len(sequence))
            blocks = self.block_tables[i, positions // shape.block_size].long()
            slots = blocks * shape.block_size + positions % shape.block_size
            write(sequence.k, sequence.v, self.k_cache, self.v_cache, slots)

    def attend(self, spans: list[tuple[int, int]], **options: Any) -> list[Tensor]:
        """Attention of positions [begin, end) of each sequence, in one call."""
        q = torch.cat([s.q[begin:end] for s, (begin, end) in zip(self.sequences, spans, strict=True)])
        lengths = [end - begin for begin, end in spans]
        cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).int()
        seq_lens = torch.tensor([end for _, end in spans], dtype=torch.int32)
        out = torch.empty_like(q)
        ops.paged_attention(
            out,
            q,
            self.k_cache,
            self.v_cache,
            self.block_tables,
            cu_seqlens,
            seq_lens,
            self.shape.scale,
            **options,
        )
        return list(out.split(lengths))


def _nowhere_set(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        return torch.full(size, float("nan"), dtype=dtype)
    # A NaN in E4M3, and two of them as a scale in bfloat16.
    scale_bytes = 2 if dtype == torch.int8 else 0
    return torch.full((*size[:-1], size[-1] + scale_bytes), 0x7F, dtype=dtype)


def reference(
    sequence: Sequence,
    scale: float,
    begin: int = 0,
    sliding_window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention of the positions from `begin` on, in the dtype of the sequence's tensors."""
    length, heads = sequence.q.shape[:2]
    group = heads // sequence.k.shape[1]
    q, k, v = (x.transpose(0, 1) for x in (sequence.q[begin:], sequence.k, sequence.v))
    scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    visible = torch.ones(length, length, dtype=torch.bool).tril()
    if sliding_window:
        visible &= ~torch.ones(length, length, dtype=torch.bool).tril(-sliding_window)
    scores = scores.masked_fill(~visible[begin:], float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.to(scores.dtype)[:, None, None].expand(-1, length - begin, 1)), -1)
    weights = scores.softmax(-1)[..., :length]
    return (weights @ v.repeat_interleave(group, 0)).transpose(0, 1)


def widened(sequence: Sequence) -> Sequence:
    return Sequence(sequence.q.double(), sequence.k.double(), sequence.v.double())
