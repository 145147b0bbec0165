"""Rounding to int8, int4 and MXFP4: error bounds, and matrices that are awkward."""

import pytest
import torch

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import (
    Quantized,
    dequantize_mxfp4,
    quantize_int4,
    quantize_int8,
    quantize_mxfp4,
)
from tests.worker.ops.quantized import MXFP4_VALUES, dequantized


def values_of(quantized: Quantized) -> torch.Tensor:
    codes, scales = quantized
    if scales.dim() == 1:
        return codes.float() * scales.unsqueeze(1)
    return codes.float() * scales.float().repeat_interleave(32, dim=1)[:, : codes.shape[1]]


@pytest.fixture
def matrix() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(20, 75, generator=generator) * torch.logspace(-20, 20, 20).unsqueeze(1)


def test_int8_is_off_by_half_a_scale_at_most(matrix: torch.Tensor) -> None:
    quantized = quantize_int8(matrix)
    errors = (values_of(quantized) - matrix).abs().amax(dim=1)
    assert (errors <= quantized.scales * 0.5001).all()
    assert quantized.codes.abs().amax(dim=1).tolist() == [127] * 20


def test_int4_is_off_by_half_a_scale_or_by_one_at_the_far_end(matrix: torch.Tensor) -> None:
    quantized = quantize_int4(matrix)
    scales = quantized.scales.float().repeat_interleave(32, dim=1)[:, :75]
    # In scales; the one value that would be +8 is cut to +7, and rounding a scale moves 8 of it by 2^-6.
    errors = (values_of(quantized) - matrix).abs() / scales.abs()
    assert errors.max() <= 1 + 2**-6
    assert (errors > 0.5).float().mean() < 0.05
    assert quantized.codes.amin() == -8
    assert quantized.codes.amax() == 7


@pytest.mark.parametrize("quantize", [quantize_int8, quantize_int4])
def test_zeros_and_the_smallest_numbers_stay_finite(quantize: object) -> None:
    matrix = torch.zeros(3, 40)
    matrix[1, 5] = 1e-44
    matrix[2, 39] = torch.finfo(torch.bfloat16).max
    found = values_of(quantize(matrix))  # type: ignore[operator]
    assert found.isfinite().all()
    assert found[0].count_nonzero() == 0
    assert found[2, 39] == pytest.approx(matrix[2, 39].item(), rel=0.005)


@pytest.mark.parametrize("quantize", [quantize_int8, quantize_int4])
def test_a_number_that_is_none_makes_its_scale_none(quantize: object) -> None:
    matrix = torch.randn(2, 40)
    matrix[1, 3] = torch.nan
    scales = quantize(matrix).scales.float()  # type: ignore[operator]
    assert scales[0].isfinite().all()
    assert scales[1].flatten()[0].isnan()


@pytest.mark.parametrize("quantize", [quantize_int8, quantize_int4])
def test_every_dtype_and_stride_is_rounded_alike(quantize: object) -> None:
    half = torch.randn(5, 45).bfloat16().half()
    plain = quantize(half.float())  # type: ignore[operator]
    for rows in (half, half.bfloat16(), half.t().contiguous().t()):
        assert all(torch.equal(a, b) for a, b in zip(quantize(rows), plain, strict=True))  # type: ignore[operator]


def test_ties_go_to_the_even_code() -> None:
    matrix = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]])
    assert quantize_int8(matrix).codes.tolist() == [[127, 0, 2, 2, 0, -2]]


def test_int4_groups_do_not_share_a_scale() -> None:
    matrix = torch.cat((torch.ones(1, 32), torch.full((1, 20), 1e-3)), dim=1)
    assert torch.allclose(values_of(quantize_int4(matrix)), matrix, rtol=0.005)


def stored_mxfp4(codes: torch.Tensor) -> torch.Tensor:
    """Codes [n, K] as a checkpoint holds them, two per byte."""
    return (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)


def test_stored_mxfp4_stands_for_codes_times_powers_of_two() -> None:
    codes = torch.arange(16).repeat(3, 4)
    scales = torch.tensor([[0, 127], [254, 100], [255, 3]], dtype=torch.uint8)
    found = dequantize_mxfp4(stored_mxfp4(codes), scales)
    factors = torch.exp2(scales.double() - 127).repeat_interleave(32, dim=1)
    exact = MXFP4_VALUES[codes].double() * factors
    # Bfloat16 ends before 6 times the largest power.
    exact[exact.abs() > 3.4e38] = torch.sign(exact[exact.abs() > 3.4e38]) * torch.inf
    exact[2, :32] = torch.nan
    # On some processors what is below 2^-126 becomes 0.
    near = exact.abs() >= 2**-126
    assert torch.equal(found.double()[near], exact[near])
    assert found[0, :32].abs().max() <= 6 * 2**-127
    assert found[2, :32].isnan().all()


def test_what_is_mxfp4_already_stays_as_it_is() -> None:
    codes = torch.randint(0, 16, (40, 96))
    scales = torch.randint(10, 245, (40, 3)).to(torch.uint8)
    values = dequantize_mxfp4(stored_mxfp4(codes), scales)
    assert torch.equal(dequantized(values, "mxfp4"), values.double())


def test_mxfp4_takes_the_nearest_code(matrix: torch.Tensor) -> None:
    found = dequantized(matrix, "mxfp4")
    scales = torch.exp2(quantize_mxfp4(matrix).scales.double() - 127).repeat_interleave(32, dim=1)[:, :75]
    candidates = scales.unsqueeze(-1) * MXFP4_VALUES.double()
    nearest = (candidates - matrix.double().unsqueeze(-1)).abs().amin(-1)
    assert torch.equal((found - matrix).abs(), nearest)
    # The largest of a group is at least 4 scales, and below 8.
    largest = (matrix / scales).abs()[:, :32].amax(1)
    assert (largest >= 4).all()
    assert (largest < 8).all()


def test_halves_between_two_codes_of_mxfp4_go_to_the_even_one() -> None:
    halves = torch.tensor([[6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -5.0, 7.9]])
    assert quantize_mxfp4(halves).codes.tolist() == [[7, 0, 2, 2, 4, 4, 6, 6, 8, 14, 7]]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_group_of_mxfp4_without_numbers_makes_its_products_none(bad: float) -> None:
    matrix = torch.randn(3, 70).bfloat16()
    matrix[1, 40] = bad
    out = torch.empty(1, 3)
    ops.linear(out, torch.ones(1, 70).bfloat16(), PackedWeight.of(matrix, "mxfp4"))
    assert out.isnan().tolist() == [[False, True, False]]


def test_zeros_of_mxfp4_stay_zeros() -> None:
    assert dequantized(torch.zeros(2, 40), "mxfp4").count_nonzero() == 0
