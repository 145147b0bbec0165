"""Runs a PagedBatch of the CPU's tests through the attention of a GPU, with a plan and room for parts."""

from __future__ import annotations

import torch
from torch import Tensor

from splitserve.worker.ops.cuda import AttentionShape
from tests.gpu.conftest import Gpu
from tests.worker.ops.paged import PagedBatch, Sequence, Shape

# As csrc/cuda/attention.h has it: words before the values of a partial row.
PARTIAL_HEADER = 4
ROOM = 4096


def paged(shape: Shape, sequences: list[Sequence]) -> PagedBatch:
    """The caches of some sequences, on the CPU and as a GPU lays them out."""
    return PagedBatch(shape, sequences, _write_rows)


def paged_codes(gpu: Gpu, shape: Shape, sequences: list[Sequence], codes: torch.dtype) -> PagedBatch:
    """The same with caches of codes, which the GPU's kernel has written."""

    def write(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
        keys, values, *places = (x.to(gpu.device) for x in (k, v, k_cache, v_cache, slots))
        gpu.ops.kv_write(keys, values, places[0], places[1], places[2])
        k_cache.copy_(places[0])
        v_cache.copy_(places[1])

    return PagedBatch(shape, sequences, write, codes)


def _write_rows(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    blocks, offsets = slots // k_cache.shape[2], slots % k_cache.shape[2]
    k_cache[blocks, :, offsets], v_cache[blocks, :, offsets] = k, v


def attend(
    gpu: Gpu,
    batch: PagedBatch,
    spans: list[tuple[int, int]],
    partial_rows: int = ROOM,
    sliding_window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> list[Tensor]:
    """Attention of positions [begin, end) of each sequence in one call; results on the CPU."""
    shape = batch.shape
    q = torch.cat([s.q[begin:end] for s, (begin, end) in zip(batch.sequences, spans, strict=True)])
    lengths = [end - begin for begin, end in spans]
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).int().to(gpu.device)
    seq_lens = torch.tensor([end for _, end in spans], dtype=torch.int32).to(gpu.device)
    q, tables, k_cache, v_cache = (
        x.to(gpu.device) for x in (q, batch.block_tables, batch.k_cache, batch.v_cache)
    )
    bounds = AttentionShape(len(q), shape.heads, shape.kv_heads, tables.shape[1] * shape.block_size)
    size = gpu.ops.attention_plan_size(
        len(q), len(spans), shape.heads, shape.kv_heads, shape.head_dim, bounds.max_seq_len
    )
    plan = torch.full((size,), -1, dtype=torch.int32, device=gpu.device)
    partials = torch.full((partial_rows, PARTIAL_HEADER + shape.head_dim), float("nan"), device=gpu.device)
    gpu.ops.plan_attention(plan, partials, cu_seqlens, seq_lens, bounds, sliding_window)
    # Two layers with one plan: the second finds it as the first did.
    for out in (gpu.empty_like(q), gpu.empty_like(q)):
        gpu.ops.paged_attention(
            out,
            q,
            k_cache,
            v_cache,
            tables,
            cu_seqlens,
            seq_lens,
            shape.scale,
            sliding_window,
            softcap,
            None if sinks is None else sinks.to(gpu.device),
            plan=plan,
            partials=partials,
        )
    return list(out.cpu().split(lengths))
