"""Latent attention on a GPU: writing latents, a reference, and the same bits in prefill, chunk and decode."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.cuda import CudaLatentOps
from splitserve.worker.ops.dense_weight import DenseWeight
from splitserve.worker.ops.invariant import InvariantLatentOps
from tests.gpu.conftest import Gpu
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits
from tests.worker.ops.test_latents import SCALE, Latents, Shape, reference

pytestmark = pytest.mark.slow

# As in DeepSeek, heads that share a tile with the next token's, many of them, and sizes of neither.
SHAPES = [Shape(16, 512, 64), Shape(6, 64, 32, 8), Shape(33, 32, 32, 5), Shape(1, 96, 128, 48)]


def attend(gpu: Gpu, batch: Latents, *spans: tuple[int, int]) -> list[Tensor]:
    """Attention of positions [begin, end) of each sequence in one call, in place of queries; on the CPU."""
    q = torch.cat([q[begin:end] for q, (begin, end) in zip(batch.q, spans, strict=True)])
    lengths = [end - begin for begin, end in spans]
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    ends = torch.tensor([end for _, end in spans], dtype=torch.int32)
    latent = q[..., : batch.shape.latent].transpose(0, 1).contiguous().to(gpu.device).transpose(0, 1)
    rotary, cache = q.to(gpu.device)[..., batch.shape.latent :], batch.cache.to(gpu.device)
    tables, starts, ends = (x.to(gpu.device) for x in (batch.tables, starts, ends))
    gpu.ops.latents.attend(latent, latent, rotary, cache, (tables, starts, ends), SCALE)
    return list(latent.cpu().split(lengths))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_of_latents_are_those_of_the_reference(gpu: Gpu, shape: Shape, dtype: torch.dtype) -> None:
    lengths = [1, 31, 70]
    batch = Latents(shape, lengths, dtype)
    outputs = attend(gpu, batch, *((0, n) for n in lengths))
    for out, q, rows in zip(outputs, batch.q, batch.rows, strict=True):
        exact = reference(q.double(), rows.double(), shape.latent)
        assert_as_exact_as_torch(out, reference(q, rows, shape.latent), exact)


def test_chunks_and_decode_give_the_bits_of_a_prefill_in_any_company(gpu: Gpu, dtype: torch.dtype) -> None:
    batch = Latents(Shape(6, 64, 32, 8), [101, 77], dtype)
    whole, _ = attend(gpu, batch, (0, 101), (0, 77))
    for begin, end in [(0, 1), (0, 65), (31, 66), (13, 100), (100, 101)]:
        part, _ = attend(gpu, batch, (begin, end), (70, 70 + begin % 7))
        assert_same_bits(part, whole[begin:end])


def test_a_long_context_matches_the_reference(gpu: Gpu, dtype: torch.dtype) -> None:
    length, begin = 600, 598
    batch = Latents(Shape(5, 64, 32), [length], dtype)
    (out,) = attend(gpu, batch, (begin, length))
    exact = reference(batch.q[0][begin:].double(), batch.rows[0].double(), 64)
    assert_as_exact_as_torch(out, reference(batch.q[0][begin:], batch.rows[0], 64), exact)


def test_a_block_outside_the_cache_is_not_read(gpu: Gpu, dtype: torch.dtype) -> None:
    batch = Latents(Shape(2, 32, 32), [40], dtype)
    batch.tables[0, 1] = 1 << 30
    (out,) = attend(gpu, batch, (39, 40))
    assert out.isfinite().all()


def test_writing_norms_latents_and_turns_keys_and_queries(gpu: Gpu, dtype: torch.dtype) -> None:
    latent, rotary, size, eps = 64, 32, 8, 1e-6
    fused, heads = torch.randn(6, latent + rotary + 7).to(dtype), torch.randn(6, 3, 48 + rotary).to(dtype)
    norm, cos_sin = torch.rand(latent).to(dtype), torch.randn(40, rotary)
    # The last position is outside the table, and the slot before it outside the cache.
    positions = torch.tensor([3, 0, 39, 7, 8, 40], dtype=torch.int32)
    slots = torch.tensor([17, 2, -1, 3, 24, 4], dtype=torch.int32)
    cache = torch.full((3, 1, size, latent + rotary), 9.0, dtype=dtype)
    # Every number of 16 bits is one of 32.
    wide_q, wide_cache = heads[:5].clone().float(), cache.clone().float()
    within = torch.tensor([17, 2, -1, 3, -1], dtype=torch.int32)
    ops.latents.write(
        wide_q[..., 48:], fused[:5, 7:].float(), positions[:5], cos_sin, wide_cache, within, norm.float(), eps
    )
    own_heads, own_cache = heads.to(gpu.device), cache.to(gpu.device)
    own_fused, own_norm = fused.to(gpu.device), norm.to(gpu.device)
    gpu.ops.latents.write(
        own_heads[..., 48:],
        own_fused[:, 7:],
        positions.to(gpu.device),
        cos_sin.to(gpu.device),
        own_cache,
        slots.to(gpu.device),
        own_norm,
        eps,
    )
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(own_heads.cpu()[:5].float(), wide_q, rtol=tolerance, atol=tolerance)
    assert_same_bits(own_heads.cpu()[..., :48], heads[..., :48])
    assert own_heads.cpu()[5, :, 48:].isnan().all()
    found = own_cache.cpu()
    assert found[0, 0, 4, latent:].isnan().all()
    found[0, 0, 4] = 9.0
    torch.testing.assert_close(found.float(), wide_cache, rtol=tolerance, atol=tolerance)
    assert_same_bits(own_fused.cpu(), fused)


def test_each_head_is_multiplied_with_its_own_matrix(gpu: Gpu, dtype: torch.dtype) -> None:
    heads, outputs, inputs, count = 3, 40, 24, 130
    matrices = torch.randn(heads, outputs, inputs).to(dtype)
    weight = DenseWeight.of(matrices.flatten(0, 1).to(gpu.device))
    x = gpu.randn(count, heads, inputs + 8, dtype=dtype)[..., 8:]
    exact = torch.einsum("thk,hnk->thn", x.cpu().double(), matrices.double())
    torchs = torch.einsum("thk,hnk->thn", x.cpu(), matrices)
    for kind in (CudaLatentOps, InvariantLatentOps):
        out = gpu.randn(count, heads, outputs + 8, dtype=dtype)[..., 8:]
        latents = kind.__new__(kind)
        latents.multiply_heads(out, x, weight)
        assert_as_exact_as_torch(out.cpu(), torchs, exact)
    alone = torch.empty_like(out[:1])
    latents.multiply_heads(alone, x[129:], weight)
    assert_same_bits(alone[0].cpu(), out[129].cpu())


def test_what_the_kernel_cannot_read_is_refused(gpu: Gpu) -> None:
    q, ints = gpu.randn(1, 2, 96, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int32, device=gpu.device)
    cache, out = torch.zeros(4, 1, 16, 96, dtype=q.dtype, device=gpu.device), torch.empty_like(q[..., :64])
    rows = (ints.view(1, 2), ints, ints[:1])
    for latent, cached, word in (
        (40, cache, "latent size must be a multiple of 32"),
        (64, cache.flatten()[4 : 4 + 3 * 16 * 96].view(3, 1, 16, 96), "blocks must begin at multiples of 16"),
        (64, cache[..., :80], "cache: expected size 96"),
    ):
        with pytest.raises(ValueError, match=word):
            gpu.ops.latents.attend(out, q[..., :latent], q[..., 64:], cached, rows, SCALE)
