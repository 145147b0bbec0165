"""rms_norm, layer_norm and their fused residual forms."""

import pytest
import torch
import torch.nn.functional as F

from splitserve.worker.ops.cpu import ops
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits

SIZES = [1, 7, 64, 100, 129, 1000]
EPS = 1e-6


def make(tokens: int, hidden: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        torch.randn(tokens, hidden).mul(3).add(0.5).to(dtype),
        torch.randn(hidden).to(dtype),
        torch.randn(hidden).to(dtype),
    )


@pytest.mark.parametrize("hidden", SIZES)
def test_rms_norm_matches_reference(hidden: int, dtype: torch.dtype) -> None:
    x, weight, _ = make(5, hidden, dtype)
    out = torch.empty_like(x)
    ops.rms_norm(out, x, weight, EPS)
    exact = F.rms_norm(x.double(), (hidden,), weight.double(), EPS)
    assert_as_exact_as_torch(out, F.rms_norm(x, (hidden,), weight, EPS), exact)


@pytest.mark.parametrize("hidden", [1, 100])
def test_an_offset_is_added_to_the_weights_unrounded(hidden: int, dtype: torch.dtype) -> None:
    x, weight, _ = make(5, hidden, dtype)
    out, residual = torch.empty_like(x), torch.randn(5, hidden).to(dtype)
    ops.rms_norm(out, x, weight, EPS, 1.0)
    exact = F.rms_norm(x.double(), (hidden,), 1 + weight.double(), EPS)
    torchs = F.rms_norm(x.float(), (hidden,), 1 + weight.float(), EPS).to(dtype)
    assert_as_exact_as_torch(out, torchs, exact)
    total, fused = residual + x, torch.empty_like(x)
    ops.rms_norm(out, total, weight, EPS, 1.0)
    ops.fused_add_rms_norm(fused, x, residual, weight, EPS, 1.0)
    assert_same_bits(fused, out)


@pytest.mark.parametrize("hidden", SIZES[1:])
def test_layer_norm_matches_reference(hidden: int, dtype: torch.dtype) -> None:
    x, weight, bias = make(5, hidden, dtype)
    out = torch.empty_like(x)
    ops.layer_norm(out, x, weight, bias, EPS)
    exact = F.layer_norm(x.double(), (hidden,), weight.double(), bias.double(), EPS)
    assert_as_exact_as_torch(out, F.layer_norm(x, (hidden,), weight, bias, EPS), exact)


def test_layer_norm_of_one_element_is_the_bias(dtype: torch.dtype) -> None:
    x, weight, bias = make(3, 1, dtype)
    out = torch.empty_like(x)
    ops.layer_norm(out, x, weight, bias, EPS)
    assert_same_bits(out, bias.expand(3, 1))


def test_fused_add_rms_norm_rounds_the_residual_and_norms_it(dtype: torch.dtype) -> None:
    x, weight, _ = make(5, 100, dtype)
    residual = torch.randn(5, 100).to(dtype)
    expected_residual, expected, out = residual + x, torch.empty_like(x), torch.empty_like(x)
    ops.rms_norm(expected, expected_residual, weight, EPS)
    ops.fused_add_rms_norm(out, x, residual, weight, EPS)
    assert_same_bits(residual, expected_residual)
    assert_same_bits(out, expected)


def test_fused_add_layer_norm_rounds_the_residual_and_norms_it(dtype: torch.dtype) -> None:
    x, weight, bias = make(5, 100, dtype)
    residual = torch.randn(5, 100).to(dtype)
    expected_residual, expected = residual + x, torch.empty_like(x)
    ops.layer_norm(expected, expected_residual, weight, bias, EPS)
    ops.fused_add_layer_norm(x, x, residual, weight, bias, EPS)
    assert_same_bits(residual, expected_residual)
    assert_same_bits(x, expected)


@pytest.mark.parametrize("hidden", [100, 1024])
def test_rows_do_not_depend_on_batch_or_threads(hidden: int, dtype: torch.dtype) -> None:
    x, weight, bias = make(67, hidden, dtype)
    whole_rms, whole_layer = torch.empty_like(x), torch.empty_like(x)
    ops.set_num_threads(2)
    ops.rms_norm(whole_rms, x, weight, EPS)
    ops.layer_norm(whole_layer, x, weight, bias, EPS)
    ops.set_num_threads(1)
    for start, end in [(0, 1), (3, 10), (66, 67)]:
        part = torch.empty(end - start, hidden, dtype=dtype)
        ops.rms_norm(part, x[start:end], weight, EPS)
        assert_same_bits(part, whole_rms[start:end])
        ops.layer_norm(part, x[start:end], weight, bias, EPS)
        assert_same_bits(part, whole_layer[start:end])
