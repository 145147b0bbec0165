"""Each FlashAttention that is installed, through its adapter on a GPU: as exact as torch, as ours."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from splitserve.worker.attention.base import Rotation, Scores
from splitserve.worker.attention.cuda import CudaAttention
from splitserve.worker.attention.flash import FlashAttention
from splitserve.worker.attention.flash_editions import EDITIONS, Edition, open_edition
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.attention.needs import AttentionNeeds
from splitserve.worker.device.cuda import CudaDevice
from splitserve.worker.kv_cache.layout import BlockShape, KVCache, layer_caches
from tests.gpu.conftest import Gpu
from tests.gpu.paged import attend, paged
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits
from tests.worker.ops.paged import PagedBatch, Sequence, Shape, reference, widened
from tests.worker.ops.turning import make_table

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
    # As in serving, where queries are part of a wider row.
    q = torch.cat([q, q], dim=1)[:, : batch.shape.heads]
    ends = torch.tensor([end for _, end in spans]).int().to(device)
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).int().to(device)
    k, v = (x.transpose(1, 2).contiguous().to(device) for x in (batch.k_cache, batch.v_cache))
    tables = batch.block_tables.clone()
    for table, (begin, _) in zip(tables, spans, strict=True):
        if sliding_window:
            table[: max(0, begin - sliding_window + 1) // batch.shape.block_size] = -1
    meta = AttentionMetadata(ends, ends, tables.to(device), cu_seqlens, ends)
    out = torch.full_like(q, float("nan"))
    backend.begin_step(meta)
    backend.attend(out, q, KVCache(k, v), meta, Scores(batch.shape.scale, sliding_window))
    return list(out.cpu().split(lengths))


@pytest.mark.parametrize("rotation", [None, Rotation(make_table(64))], ids=["plain", "turned"])
def test_keys_and_values_are_written_where_the_packages_look(gpu: Gpu, rotation: Rotation | None) -> None:
    shape = BlockShape(2, 2, 16, 64, torch.bfloat16)
    q, k, v = (gpu.randn(5, heads, 64, dtype=shape.dtype) for heads in (4, 2, 2))
    slots, positions = torch.tensor([3, 16, 31, -1, 63]), torch.tensor([3, 0, 15, 7, 2])
    empty = torch.zeros(0, dtype=torch.int32)
    meta = AttentionMetadata(positions.int(), slots.int(), empty, empty, empty)
    meta = AttentionMetadata(*(x.to(gpu.device) for x in meta if x is not None))
    if rotation is not None:
        rotation = rotation._replace(cos_sin=rotation.cos_sin.to(gpu.device))
    written = []
    for backend in (
        FlashAttention(gpu.ops, gpu.device, lambda q, cache: q),
        CudaAttention(gpu.ops, gpu.device),
    ):
        pool = backend.allocate(shape, 4)
        queries = q.clone()
        backend.write(queries, k.clone(), v, layer_caches(pool)[1], meta, rotation)
        written.append((queries.cpu(), pool.cpu()))
    assert_same_bits(written[0][0], written[1][0])
    assert_same_bits(written[0][1].transpose(3, 4), written[1][1])
    assert (written[0][1] != 0).any(dim=-1).sum() == 2 * 2 * 4


@pytest.mark.gpu
@pytest.mark.parametrize("edition", EDITIONS, ids=lambda edition: edition.name)
@pytest.mark.parametrize("sliding_window", [0, 150])
def test_a_recorded_decode_step_is_replayed(real_gpu: Gpu, edition: Edition, sliding_window: int) -> None:
    block_size, device = max(16, edition.block_multiple), real_gpu.device
    backend = opened(real_gpu, edition, AttentionNeeds(torch.bfloat16, block_size, 128, 8, 2))
    shape = Shape(8, 2, 128, block_size)
    batch = paged(shape, [Sequence.random(shape, 300, torch.bfloat16) for _ in range(3)])
    q = torch.cat([sequence.q[-1:] for sequence in batch.sequences]).to(device)
    k, v = (x.transpose(1, 2).contiguous().to(device) for x in (batch.k_cache, batch.v_cache))
    caches = KVCache(k, v)
    lengths = torch.tensor([40, 41, 42]).int().to(device)
    cu_seqlens = torch.arange(4).int().to(device)
    meta = AttentionMetadata(lengths, lengths, batch.block_tables.to(device), cu_seqlens, lengths)
    out = torch.empty_like(q)

    def step() -> None:
        backend.begin_step(meta)
        backend.attend(out, q, caches, meta, Scores(shape.scale, sliding_window))

    # As a capture wants: kernels are loaded when they first run.
    step()
    replay = CudaDevice(real_gpu.ops, device).capture(step)
    # Later steps are longer.
    for length in (290, 300):
        lengths.fill_(length)
        out.fill_(float("nan"))
        replay()
        replayed = out.clone()
        step()
        torch.testing.assert_close(replayed, out, atol=0.02, rtol=0.02)
        assert out.isfinite().all()


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
            rule = (shape.scale, begin, sliding_window)
            assert_as_exact_as_torch(out, reference(sequence, *rule), reference(widened(sequence), *rule))
            torch.testing.assert_close(out, our, atol=0.02, rtol=0.02)
