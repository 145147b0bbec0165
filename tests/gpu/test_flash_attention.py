"""Each FlashAttention that is installed, through its adapter on a GPU: as exact as torch, as ours."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.gpu.conftest import Gpu
from tests.gpu.paged import attend, paged
from tests.worker.ops.helpers import assert_as_exact_as_torch
from tests.worker.ops.paged import PagedBatch, Sequence, Shape, reference, widened
from worker.attention.flash import FlashAttention
from worker.attention.flash_editions import EDITIONS, Edition, open_edition
from worker.attention.metadata import AttentionMetadata
from worker.attention.needs import AttentionNeeds
from worker.kv_cache import KVCache

# What an edition compiles for one of these takes it a few seconds.
CASES = [
    (128, torch.bfloat16, 0),
    (128, torch.bfloat16, 150),
    (128, torch.float16, 0),
    (64, torch.bfloat16, 0),
    (256, torch.bfloat16, 0),
]
# Chunks, a whole prompt and decode rows; and decode rows alone, which are computed by other code.
MIXED = [(100, 300), (0, 70), (299, 300), (0, 1), (511, 700)]
DECODE = [(end - 1, end) for _, end in MIXED]


def opened(gpu: Gpu, edition: Edition, needs: AttentionNeeds) -> FlashAttention:
    major = torch.cuda.get_device_capability()[0]
    if major not in edition.majors:
        pytest.skip(f"{edition.name} has no pages for compute capability {major}.x")
    found = open_edition(edition, needs, gpu.device)
    if found.attend is None:
        pytest.skip(found.reason)
    return FlashAttention(gpu.ops, gpu.device, found.attend)


def attend_by(
    device: torch.device,
    backend: FlashAttention,
    batch: PagedBatch,
    spans: list[tuple[int, int]],
    sliding_window: int,
) -> list[Tensor]:
    """Positions [begin, end) of each sequence; slots without a token, and blocks of no sequence, hold NaN."""
    lengths = [end - begin for begin, end in spans]
    q = torch.cat([s.q[begin:end] for s, (begin, end) in zip(batch.sequences, spans, strict=True)]).to(device)
    ends = torch.tensor([end for _, end in spans]).int().to(device)
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).int().to(device)
    caches = (x.transpose(1, 2).contiguous().to(device) for x in (batch.k_cache, batch.v_cache))
    tables = batch.block_tables.clone()
    for table, (begin, _) in zip(tables, spans, strict=True):
        if sliding_window:
            table[: max(0, begin - sliding_window + 1) // batch.shape.block_size] = -1
    meta = AttentionMetadata(ends, ends, tables.to(device), cu_seqlens, ends)
    out = torch.full_like(q, float("nan"))
    backend.begin_step(meta)
    backend.attend(out, q, KVCache(*caches), meta, batch.shape.scale, sliding_window)
    return list(out.cpu().split(lengths))


@pytest.mark.gpu
@pytest.mark.parametrize("edition", EDITIONS, ids=lambda edition: edition.name)
@pytest.mark.parametrize(("head_dim", "dtype", "sliding_window"), CASES, ids=str)
def test_an_edition_attends_as_we_do(
    real_gpu: Gpu, edition: Edition, head_dim: int, dtype: torch.dtype, sliding_window: int
) -> None:
    block_size = max(16, edition.block_multiple)
    backend = opened(real_gpu, edition, AttentionNeeds(dtype, block_size, head_dim, 8, 2))
    shape = Shape(8, 2, head_dim, block_size)
    sequences = [Sequence.random(shape, end, dtype) for _, end in MIXED]
    batch = paged(shape, sequences)
    for spans in (MIXED, DECODE):
        outputs = attend_by(real_gpu.device, backend, batch, spans, sliding_window)
        ours = attend(real_gpu, batch, spans, sliding_window=sliding_window)
        for sequence, (begin, _), out, our in zip(sequences, spans, outputs, ours, strict=True):
            options = {"begin": begin, "sliding_window": sliding_window}
            exact = reference(widened(sequence), shape.scale, **options)
            assert_as_exact_as_torch(out, reference(sequence, shape.scale, **options), exact)
            torch.testing.assert_close(out, our, atol=0.02, rtol=0.02)
