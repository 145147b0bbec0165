"""Latent attention over a cache of int8 or E4M3 codes: that over what the codes stand for, bit by bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops
from tests.worker.ops.helpers import assert_same_bits
from tests.worker.ops.test_coded_attention import FP8, INT8, stood_for
from tests.worker.ops.test_latents import NARROW, SCALE, SHAPES, Latents, Shape

BF16 = torch.bfloat16


@pytest.fixture(params=[INT8, FP8], ids=["int8", "fp8"])
def codes(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def parts_of(rows: Tensor, latent: int) -> list[Tensor]:
    return [rows[..., :latent], rows[..., latent:]]


def coded(rows: Tensor, codes: torch.dtype, latent: int) -> Tensor:
    """The codes of rows [.., C + R], and of int8 the scales of latents and of rotary keys."""
    if codes == FP8:
        return rows.float().clamp(-448, 448).to(torch.float8_e4m3fn).view(FP8)
    units, scales = [], []
    for part in parts_of(rows, latent):
        quotient = part.float().abs().amax(-1, keepdim=True) / 127
        scale = ((quotient.view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32)
        magnitude = (part.float().abs() * (1 / scale)).round().nan_to_num(0)
        units.append((magnitude + 128 * part.signbit()).to(torch.uint8).view(INT8))
        scales.append(scale.to(BF16).view(INT8))
    return torch.cat([*units, *scales], -1)


def meant(rows: Tensor, codes: torch.dtype, latent: int) -> Tensor:
    return torch.cat([stood_for(part, codes).to(BF16) for part in parts_of(rows, latent)], -1)


def with_codes(batch: Latents, codes: torch.dtype) -> tuple[Latents, Latents]:
    """A batch over codes of its rows, and one over what these stand for; keys are larger than latents."""
    latent = batch.shape.latent
    scaled = copy.copy(batch)
    scaled.cache = batch.cache.clone()
    scaled.cache[..., latent:] *= 23
    stored = copy.copy(scaled)
    scaled.cache = meant(scaled.cache, codes, latent)
    stored.cache = coded(stored.cache, codes, latent)
    return stored, scaled


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_is_that_over_what_the_codes_stand_for(shape: Shape, codes: torch.dtype) -> None:
    stored, plain = with_codes(Latents(shape, [1, 63, 130], BF16), codes)
    for spans in ([(0, 1), (0, 63), (0, 130)], [(0, 1), (62, 63), (129, 130)], [(0, 0), (5, 40), (64, 129)]):
        for out, expected in zip(stored.attend(*spans), plain.attend(*spans), strict=True):
            assert out.isfinite().all()
            assert_same_bits(out, expected)


def test_a_long_context_is_split_over_threads_with_the_same_bits(codes: torch.dtype) -> None:
    length = 2100
    stored, plain = with_codes(Latents(NARROW, [length], BF16), codes)
    (whole,) = plain.attend((0, length))
    for threads in (1, 2, 7):
        ops.set_num_threads(threads)
        for span in [(1023, 1026), (length - 1, length)]:
            (part,) = stored.attend(span)
            assert_same_bits(part, whole[slice(*span)])


def test_a_latent_that_is_no_number_spoils_no_earlier_row(codes: torch.dtype) -> None:
    batch = Latents(NARROW, [80], BF16)
    cache = torch.zeros(len(batch.cache), 1, 16, 96 + 4 * (codes == INT8), dtype=codes)
    norm, turn = torch.ones(64, dtype=BF16), torch.ones(1, 32)
    outputs = []
    for value in (1.0, float("nan")):
        batch.rows[0][12, 3] = value
        positions = torch.arange(80)
        slots = batch.tables[0, positions // 16].long() * 16 + positions % 16
        q = batch.q[0][..., 64:].clone()
        ops.latents.write(q, batch.rows[0], torch.zeros(80).int(), turn, cache, slots.int(), norm, 1e-6)
        batch.cache = cache
        outputs += batch.attend((0, 80))
    clean, dirty = outputs
    assert_same_bits(dirty[:12], clean[:12])
    assert not dirty[12:, :, 3].isfinite().any()


def test_writing_makes_codes_of_what_a_plain_cache_holds(codes: torch.dtype) -> None:
    latent, rotary, size, eps = 64, 32, 8, 1e-6
    rows, q = torch.randn(6, latent + rotary).to(BF16), torch.randn(6, 3, rotary).to(BF16)
    rows[:, latent:] *= torch.logspace(-6, 3, 6).to(BF16)[:, None]
    rows[4, :latent] = 0
    norm, cos_sin = torch.rand(latent).to(BF16), torch.randn(40, rotary)
    positions = torch.tensor([3, 0, 39, 7, 8, 9], dtype=torch.int32)
    slots = torch.tensor([17, 2, -1, 3, 4, 5], dtype=torch.int32)
    caches = []
    for dtype, more in ((BF16, 0), (codes, 4 * (codes == INT8))):
        cache = torch.full((3, 1, size, latent + rotary + more), 9, dtype=dtype)
        ops.latents.write(q.clone(), rows, positions, cos_sin, cache, slots, norm, eps)
        caches.append(cache.view(3 * size, -1))
    plain, stored = caches
    kept = slots[slots >= 0].long()
    assert torch.equal(stored[kept].view(FP8), coded(plain[kept], codes, latent).view(FP8))
    untouched = torch.ones(3 * size, dtype=torch.bool)
    untouched[kept] = False
    assert (stored[untouched] == 9).all()


@pytest.mark.parametrize(
    ("dtype", "width", "error"),
    [(torch.float32, 96, TypeError), (BF16, 95, ValueError), (BF16, 100, ValueError)],
)
def test_codes_that_the_kernel_cannot_read_are_refused(
    dtype: torch.dtype, width: int, error: type[Exception]
) -> None:
    q = torch.zeros(1, 2, 96, dtype=dtype)
    rows = (torch.zeros(1, 2).int(), torch.tensor([0, 1]).int(), torch.tensor([16]).int())
    cache = torch.zeros(4, 1, 16, width, dtype=FP8)
    with pytest.raises(error, match="cache"):
        ops.latents.attend(torch.empty_like(q[..., :64]), q[..., :64], q[..., 64:], cache, rows, SCALE)
