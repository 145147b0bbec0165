"""Activations, sums, multiplication by a number and soft caps."""

from typing import Literal

import pytest
import torch
import torch.nn.functional as F

from splitserve.worker.ops.cpu import ops
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits

SIZES = [1, 15, 33, 256]


def spread(tokens: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Values around 0 and far from it, where exponentials overflow or vanish."""
    x = torch.randn(tokens, size)
    x[0] *= 100
    return x.to(dtype)


@pytest.mark.parametrize("size", SIZES)
def test_silu_and_mul_matches_reference(size: int, dtype: torch.dtype) -> None:
    x = spread(7, 2 * size, dtype)
    out = torch.empty(7, size, dtype=dtype)
    ops.silu_and_mul(out, x)
    gate, up = x.split(size, dim=1)
    assert_as_exact_as_torch(out, F.silu(gate) * up, F.silu(gate.double()) * up.double())


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("size", SIZES)
def test_gelu_and_mul_matches_reference(
    size: int, approximate: Literal["none", "tanh"], dtype: torch.dtype
) -> None:
    x = spread(7, 2 * size, dtype)
    out = torch.empty(7, size, dtype=dtype)
    ops.gelu_and_mul(out, x, approximate)
    gate, up = x.split(size, dim=1)
    exact = F.gelu(gate.double(), approximate=approximate) * up.double()
    assert_as_exact_as_torch(out, F.gelu(gate, approximate=approximate) * up, exact)


@pytest.mark.parametrize("size", SIZES)
def test_sums_and_products_are_rounded_once(size: int, dtype: torch.dtype) -> None:
    x, y = spread(7, size, dtype), spread(7, 2 * size, dtype)[:, size:]
    out = torch.empty_like(x)
    ops.add(out, x, y)
    assert_same_bits(out, x + y)
    ops.add(out, out, y)
    assert_same_bits(out, x + y + y)
    ops.add(out, x, y[3:4].expand(7, -1))
    assert_same_bits(out, x + y[3:4])
    ops.scale(out, x, 0.22)
    assert_same_bits(out, (x.float() * 0.22).to(dtype))
    ops.scale(out, out, 3.0)
    assert_same_bits(out, ((x.float() * 0.22).to(dtype).float() * 3.0).to(dtype))


@pytest.mark.parametrize("size", SIZES)
def test_a_soft_cap_matches_reference(size: int, dtype: torch.dtype) -> None:
    x = spread(7, size, dtype)
    out = x.clone()
    ops.soft_cap(out, out, 5.0)
    assert out.abs().max() <= 5.0
    assert_as_exact_as_torch(out, 5 * (x / 5).tanh(), 5 * (x.double() / 5).tanh())


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("size", SIZES)
def test_gelu_matches_reference(size: int, approximate: Literal["none", "tanh"], dtype: torch.dtype) -> None:
    for x in (spread(7, size, dtype), torch.randn(7, size).to(dtype)):
        out = torch.empty_like(x)
        ops.gelu(out, x, approximate)
        exact = F.gelu(x.double(), approximate=approximate)
        assert_as_exact_as_torch(out, F.gelu(x, approximate=approximate), exact)


def test_rows_do_not_depend_on_batch_or_threads(dtype: torch.dtype) -> None:
    x = spread(300, 2 * 77, dtype)
    whole = torch.empty(300, 77, dtype=dtype)
    ops.set_num_threads(2)
    ops.silu_and_mul(whole, x)
    ops.set_num_threads(1)
    part = torch.empty(3, 77, dtype=dtype)
    ops.silu_and_mul(part, x[150:153])
    assert_same_bits(part, whole[150:153])


def test_gelu_refuses_an_unknown_form() -> None:
    x = torch.randn(2, 2)
    with pytest.raises(ValueError, match="approximate"):
        ops.gelu(x, x, "fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="approximate"):
        ops.gelu_and_mul(x[:, :1], x[:, :2], "fast")  # type: ignore[arg-type]


def test_a_gelu_loses_nothing_of_small_tails_and_keeps_what_is_no_number(dtype: torch.dtype) -> None:
    x = torch.linspace(-9, 9, 4001).to(dtype)[None]
    out = torch.empty_like(x)
    ops.gelu(out, x)
    exact = x.double() / 2 * torch.special.erfc(-x.double() / 2**0.5)
    error = ((out.double() - exact) / exact.abs().clamp(min=1e-30)).abs().max().item()
    assert error < (2e-5 if dtype == torch.float32 else 2**-8 + 2**-12)
    ops.gelu(out[:, :2], torch.tensor([[torch.nan, torch.inf]], dtype=dtype))
    assert out[0, 0].isnan()
    assert out[0, 1].isinf()
