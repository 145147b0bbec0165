"""Rounding to int8 and int4: error bounds, and matrices that are awkward."""

import pytest
import torch

from splitserve.worker.ops.quantization import Quantized, quantize_int4, quantize_int8


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
