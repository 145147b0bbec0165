"""rms_norm, layer_norm and their fused residual forms on a GPU."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.gpu.conftest import Gpu
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits

# One lane, odd rows, several lanes of a warp, whole warps, a full block of fp32.
SIZES = [1, 7, 64, 100, 129, 1000, 1024, 5120]
EPS = 1e-6


def make(gpu: Gpu, tokens: int, hidden: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    x = gpu.randn(tokens, hidden).mul(3).add(0.5).to(dtype)
    return x, gpu.randn(hidden, dtype=dtype), gpu.randn(hidden, dtype=dtype)


@pytest.mark.parametrize("hidden", SIZES)
def test_rms_norm_matches_reference(gpu: Gpu, hidden: int, dtype: torch.dtype) -> None:
    x, weight, _ = make(gpu, 5, hidden, dtype)
    out = gpu.empty_like(x)
    gpu.ops.rms_norm(out, x, weight, EPS)
    exact = F.rms_norm(x.double(), (hidden,), weight.double(), EPS)
    assert_as_exact_as_torch(out, F.rms_norm(x, (hidden,), weight, EPS), exact)


@pytest.mark.parametrize("hidden", [1, 100])
def test_an_offset_is_added_to_the_weights_unrounded(gpu: Gpu, hidden: int, dtype: torch.dtype) -> None:
    x, weight, _ = make(gpu, 5, hidden, dtype)
    out, residual = gpu.empty_like(x), gpu.randn(5, hidden, dtype=dtype)
    gpu.ops.rms_norm(out, x, weight, EPS, 1.0)
    exact = F.rms_norm(x.double(), (hidden,), 1 + weight.double(), EPS)
    torchs = F.rms_norm(x.float(), (hidden,), 1 + weight.float(), EPS).to(dtype)
    assert_as_exact_as_torch(out, torchs, exact)
    total, fused = residual + x, gpu.empty_like(x)
    gpu.ops.rms_norm(out, total, weight, EPS, 1.0)
    gpu.ops.fused_add_rms_norm(fused, x, residual, weight, EPS, 1.0)
    assert_same_bits(fused, out)


@pytest.mark.parametrize("hidden", SIZES[1:])
def test_layer_norm_matches_reference(gpu: Gpu, hidden: int, dtype: torch.dtype) -> None:
    x, weight, bias = make(gpu, 5, hidden, dtype)
    out = gpu.empty_like(x)
    gpu.ops.layer_norm(out, x, weight, bias, EPS)
    exact = F.layer_norm(x.double(), (hidden,), weight.double(), bias.double(), EPS)
    assert_as_exact_as_torch(out, F.layer_norm(x, (hidden,), weight, bias, EPS), exact)


def test_the_longest_row_fits_and_a_longer_one_is_refused(gpu: Gpu, dtype: torch.dtype) -> None:
    longest = 65536 // dtype.itemsize
    x, weight, _ = make(gpu, 1, longest, dtype)
    out = gpu.empty_like(x)
    gpu.ops.rms_norm(out, x, weight, EPS)
    exact = F.rms_norm(x.double(), (longest,), weight.double(), EPS)
    assert_as_exact_as_torch(out, F.rms_norm(x, (longest,), weight, EPS), exact)
    x, weight, _ = make(gpu, 1, longest + 1, dtype)
    with pytest.raises(ValueError, match=f"x: a last dimension of {longest + 1} takes more than 65536 bytes"):
        gpu.ops.rms_norm(x, x, weight, EPS)


@pytest.mark.parametrize("hidden", [100, 2048])
def test_fused_forms_round_the_residual_and_norm_it(gpu: Gpu, hidden: int, dtype: torch.dtype) -> None:
    x, weight, bias = make(gpu, 5, hidden, dtype)
    before = gpu.randn(5, hidden, dtype=dtype)
    forms: tuple[tuple[Any, Any, tuple[Tensor, ...]], ...] = (
        (gpu.ops.fused_add_rms_norm, gpu.ops.rms_norm, (weight,)),
        (gpu.ops.fused_add_layer_norm, gpu.ops.layer_norm, (weight, bias)),
    )
    for fused, plain, parameters in forms:
        residual, expected_residual = before.clone(), before + x
        out, expected = gpu.empty_like(x), gpu.empty_like(x)
        plain(expected, expected_residual, *parameters, EPS)
        fused(out, x, residual, *parameters, EPS)
        assert_same_bits(residual, expected_residual)
        assert_same_bits(out, expected)
        # The output may take the input's place.
        in_place, residual = x.clone(), before.clone()
        fused(in_place, in_place, residual, *parameters, EPS)
        assert_same_bits(in_place, expected)


@pytest.mark.parametrize("hidden", [100, 128, 1024, 4096])
def test_rows_do_not_depend_on_the_batch_nor_on_where_they_lie(
    gpu: Gpu, hidden: int, dtype: torch.dtype
) -> None:
    x, weight, bias = make(gpu, 67, hidden, dtype)
    whole_rms, whole_layer = gpu.empty_like(x), gpu.empty_like(x)
    gpu.ops.rms_norm(whole_rms, x, weight, EPS)
    gpu.ops.layer_norm(whole_layer, x, weight, bias, EPS)
    # One element off, no row is aligned, so every access is of one element.
    shifted = torch.empty(67 * hidden + 1, dtype=dtype, device=gpu.device)[1:].view(67, hidden)
    shifted.copy_(x)
    for source in (x, shifted):
        for start, end in [(0, 1), (3, 10), (66, 67)]:
            part = gpu.empty_like(x[start:end])
            gpu.ops.rms_norm(part, source[start:end], weight, EPS)
            assert_same_bits(part, whole_rms[start:end])
            gpu.ops.layer_norm(part, source[start:end], weight, bias, EPS)
            assert_same_bits(part, whole_layer[start:end])


def test_a_nan_stays_within_its_row(gpu: Gpu, dtype: torch.dtype) -> None:
    # 32 rows of 64 elements share warps.
    x, weight, _ = make(gpu, 32, 64, dtype)
    expected = gpu.empty_like(x)
    gpu.ops.rms_norm(expected, x, weight, EPS)
    x[5, 3] = float("nan")
    out = gpu.empty_like(x)
    gpu.ops.rms_norm(out, x, weight, EPS)
    assert out[5].isnan().all()
    assert_same_bits(out[:5], expected[:5])
    assert_same_bits(out[6:], expected[6:])
