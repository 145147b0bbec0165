"""Random steps of paged attention, through any backend: rows in scattered blocks, in chunks and decode."""

from __future__ import annotations

import random
from typing import NamedTuple

import torch
from torch import Tensor

from splitserve.worker.attention.base import AttentionBackend, Rotation, Scores
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.kv_cache.layout import BlockShape, layer_caches
from tests.worker.ops.turning import make_table

NUM_BLOCKS = 40


class Case(NamedTuple):
    """Heads and blocks of one attention layer, and what its queries and keys go through."""

    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    block_size: int = 4
    sliding_window: int = 0
    dtype: torch.dtype = torch.float32
    turns: bool = False
    norms: bool = False
    turned: int = 16
    norm_offset: float = 0.0
    softcap: float = 0.0
    sinks: bool = False

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5


def run_steps(backend: AttentionBackend, case: Case, seed: int = 0) -> Tensor:
    """Outputs of all tokens of a few rows whose lengths, chunks and blocks the seed decides."""
    shape = BlockShape(1, case.num_kv_heads, case.block_size, case.head_dim, case.dtype)
    (cache,) = layer_caches(backend.allocate(shape, NUM_BLOCKS))
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    blocks = rng.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    rows = [blocks[10 * i : 10 * i + 10] for i in range(3)]
    rotation = _rotation(case, generator)
    sinks = None
    if case.sinks:
        # From hardly there to the highest score of all.
        sinks = torch.linspace(-3, 9, case.num_heads).to(case.dtype)
    computed, outputs = [0, 0, 0], []
    for _ in range(5):
        counts = [rng.choice([1, 1, 2, 7]) for _ in rows]
        meta = _metadata(rows, computed, counts, case.block_size)
        widths = [case.num_heads, case.num_kv_heads, case.num_kv_heads]
        qkv = torch.randn(sum(counts), sum(widths), case.head_dim, generator=generator).to(case.dtype)
        q, k, v = qkv.split(widths, dim=1)
        out = torch.full(q.shape, float("nan"), dtype=case.dtype)
        backend.begin_step(meta)
        backend.write(q, k, v, cache, meta, rotation)
        backend.attend(out, q, cache, meta, Scores(case.scale, case.sliding_window, case.softcap, sinks))
        outputs.append(out)
        computed = [begin + count for begin, count in zip(computed, counts, strict=True)]
    return torch.cat(outputs)


def _rotation(case: Case, generator: torch.Generator) -> Rotation | None:
    if not case.turns:
        return None
    if not case.norms:
        return Rotation(make_table(case.turned))
    q_norm, k_norm = torch.randn(2, case.head_dim, generator=generator).to(case.dtype)
    return Rotation(make_table(case.turned), q_norm, k_norm, 1e-5, case.norm_offset)


def _metadata(
    rows: list[list[int]], computed: list[int], counts: list[int], block_size: int
) -> AttentionMetadata:
    spans = [range(begin, begin + count) for begin, count in zip(computed, counts, strict=True)]
    places = [(row, i) for row, span in zip(rows, spans, strict=True) for i in span]
    width = -(-max(span.stop for span in spans) // block_size)

    def int32(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    return AttentionMetadata(
        positions=int32([i for _, i in places]),
        slot_mapping=int32([row[i // block_size] * block_size + i % block_size for row, i in places]),
        block_tables=torch.tensor([row[:width] for row in rows], dtype=torch.int32),
        cu_seqlens_q=torch.tensor([0, *counts]).cumsum(0).int(),
        seq_lens=int32([span.stop for span in spans]),
    )
