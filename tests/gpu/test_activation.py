"""Activations, sums, multiplication by a number and soft caps on a GPU."""

from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.gpu.conftest import Gpu
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits

# A row of one chunk, odd rows, rows of several blocks.
SIZES = [1, 15, 33, 256, 9000]


def spread(gpu: Gpu, tokens: int, size: int, dtype: torch.dtype) -> Tensor:
    """Values around 0 and far from it, where exponentials overflow or vanish."""
    x = gpu.randn(tokens, size)
    x[0] *= 100
    return x.to(dtype)


@pytest.mark.parametrize("size", SIZES)
def test_silu_and_mul_matches_reference(gpu: Gpu, size: int, dtype: torch.dtype) -> None:
    x = spread(gpu, 4, 2 * size, dtype)
    out = gpu.empty_like(x[:, :size])
    gpu.ops.silu_and_mul(out, x)
    gate, up = x.split(size, dim=1)
    assert_as_exact_as_torch(out, F.silu(gate) * up, F.silu(gate.double()) * up.double())


@pytest.mark.parametrize("size", SIZES)
def test_gelu_and_mul_matches_reference(gpu: Gpu, size: int, dtype: torch.dtype) -> None:
    x = spread(gpu, 4, 2 * size, dtype)
    out = gpu.empty_like(x[:, :size])
    gpu.ops.gelu_and_mul(out, x)
    gate, up = x.split(size, dim=1)
    exact = F.gelu(gate.double(), approximate="tanh") * up.double()
    assert_as_exact_as_torch(out, F.gelu(gate, approximate="tanh") * up, exact)


@pytest.mark.parametrize("size", [33, 256])
def test_sums_products_and_caps_match_reference(gpu: Gpu, size: int, dtype: torch.dtype) -> None:
    x, y = spread(gpu, 4, size, dtype), spread(gpu, 4, 2 * size, dtype)[:, size:]
    out = gpu.empty_like(x)
    gpu.ops.add(out, x, y)
    assert_same_bits(out, x + y)
    gpu.ops.add(out, out, y)
    assert_same_bits(out, x + y + y)
    gpu.ops.scale(out, x, 0.22)
    assert_same_bits(out, (x.float() * 0.22).to(dtype))
    gpu.ops.soft_cap(out, x, 5.0)
    assert_as_exact_as_torch(out, 5 * (x / 5).tanh(), 5 * (x.double() / 5).tanh())


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("size", SIZES)
def test_gelu_matches_reference(
    gpu: Gpu, size: int, approximate: Literal["none", "tanh"], dtype: torch.dtype
) -> None:
    for x in (spread(gpu, 4, size, dtype), gpu.randn(4, size, dtype=dtype)):
        out = gpu.empty_like(x)
        gpu.ops.gelu(out, x, approximate)
        exact = F.gelu(x.double(), approximate=approximate)
        assert_as_exact_as_torch(out, F.gelu(x, approximate=approximate), exact)


@pytest.mark.parametrize("size", [77, 1024])
def test_rows_do_not_depend_on_the_batch_nor_on_where_they_lie(
    gpu: Gpu, size: int, dtype: torch.dtype
) -> None:
    x = spread(gpu, 40, 2 * size, dtype)
    whole = gpu.empty_like(x[:, :size])
    gpu.ops.silu_and_mul(whole, x)
    shifted = torch.empty(40 * 2 * size + 1, dtype=dtype, device=gpu.device)[1:].view(40, 2 * size)
    shifted.copy_(x)
    for source in (x, shifted):
        part = gpu.empty_like(whole[:3])
        gpu.ops.silu_and_mul(part, source[20:23])
        assert_same_bits(part, whole[20:23])


def test_gelu_in_place_on_a_slice_leaves_the_rest_alone(gpu: Gpu, dtype: torch.dtype) -> None:
    wide = gpu.randn(5, 96, dtype=dtype)
    before, expected = wide.clone(), gpu.empty_like(wide[:, :32])
    gpu.ops.gelu(expected, wide[:, 32:64])
    gpu.ops.gelu(wide[:, 32:64], wide[:, 32:64])
    assert_same_bits(wide[:, 32:64].contiguous(), expected)
    assert_same_bits(wide[:, :32], before[:, :32])
    assert_same_bits(wide[:, 64:], before[:, 64:])


def test_gelu_refuses_an_unknown_form(gpu: Gpu) -> None:
    x = gpu.randn(2, 2)
    with pytest.raises(ValueError, match="approximate"):
        gpu.ops.gelu(x, x, "fast")  # type: ignore[arg-type]
