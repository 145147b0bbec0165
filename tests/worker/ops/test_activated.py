"""Products that are activated on their way: the bits of a linear and the activation after it."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import GroupForm, WeightForm
from tests.worker.ops.helpers import assert_same_bits
from tests.worker.ops.quantized import draw_group_codes

FORMS: list[tuple[torch.dtype, WeightForm]] = [
    (torch.float32, "plain"),
    (torch.bfloat16, "plain"),
    (torch.bfloat16, "int8"),
    (torch.bfloat16, "w8a8"),
    (torch.bfloat16, "int4"),
]
GROUP_FORMS = [
    GroupForm(4, 32, True),
    GroupForm(4, 32, True, has_units=True),
    GroupForm(6, 16, False, has_units=True),
    GroupForm(6, 16, True, has_units=True),
    GroupForm(4, 32, True, takes_int8=True, has_units=True),
    GroupForm(8, 32, False),
]
ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


def activate(out: Tensor, x: Tensor, activation: str) -> None:
    """The activation on its own."""
    if activation == "silu":
        ops.silu_and_mul(out, x)
    else:
        ops.gelu_and_mul(out, x, "tanh" if activation == "gelu_tanh" else "none")


@pytest.mark.parametrize(("dtype", "form"), FORMS)
@pytest.mark.parametrize(("rows", "units", "depth"), [(1, 32, 70), (40, 96, 300), (700, 64, 96)])
def test_units_have_the_bits_of_products_activated_afterwards(
    rows: int, units: int, depth: int, dtype: torch.dtype, form: WeightForm
) -> None:
    weight = PackedWeight.of(torch.randn(2 * units, depth).to(dtype) / 8, form)
    x, bias = torch.randn(rows, depth).to(dtype), torch.randn(2 * units).to(dtype)
    products, expected = torch.empty(rows, 2 * units, dtype=dtype), torch.empty(rows, units, dtype=dtype)
    for threads, activation in zip((1, 2, 2), ACTIVATIONS, strict=True):
        ops.set_num_threads(threads)
        for added in (None, bias):
            ops.linear(products, x, weight, added)
            activate(expected, products, activation)
            wide = torch.full((rows, units + 9), torch.nan, dtype=dtype)
            ops.activated.gated(wide[:, 3 : units + 3], x, weight, activation, added)
            assert_same_bits(wide[:, 3 : units + 3], expected)
            assert wide[:, :3].isnan().all()
            assert wide[:, units + 3 :].isnan().all()


@pytest.mark.parametrize(("dtype", "form"), FORMS)
def test_units_of_experts_have_the_bits_of_their_products(dtype: torch.dtype, form: WeightForm) -> None:
    weight = PackedWeight.of_experts([torch.randn(128, 80).to(dtype) / 8 for _ in range(5)], form)
    starts = torch.tensor([0, 0, 1, 90, 90, 97], dtype=torch.int32)
    x, bias = torch.randn(97, 80).to(dtype), torch.randn(5 * 128).to(dtype)
    products, expected = torch.empty(97, 128, dtype=dtype), torch.empty(97, 64, dtype=dtype)
    ops.experts.linear(products, x, weight, starts, bias)
    ops.silu_and_mul(expected, products)
    for threads in (1, 2):
        ops.set_num_threads(threads)
        out = torch.full((97, 64), torch.nan, dtype=dtype)
        ops.activated.gated(out, x, weight, "silu", bias, starts)
        assert_same_bits(out, expected)


@pytest.mark.parametrize("form", GROUP_FORMS, ids=lambda form: "-".join(map(str, form)))
def test_experts_of_group_codes_have_the_bits_of_their_own_products(form: GroupForm) -> None:
    """Also those with as few rows as read codes from memory, beside one with more."""
    weight = PackedWeight((5 * 128, 200), torch.bfloat16, form, num_experts=5)
    starts = [0, 0, 1, 90, 98, 107]
    x, products = torch.randn(107, 200).bfloat16(), torch.empty(107, 128, dtype=torch.bfloat16)
    for expert, (begin, end) in enumerate(pairwise(starts)):
        own, codes = PackedWeight((128, 200), torch.bfloat16, form), draw_group_codes(128, 200, form)
        own.fill_group_codes(codes)
        weight.fill_group_codes(codes, expert * 128)
        ops.linear(products[begin:end], x[begin:end], own)
    out, gated = torch.empty_like(products), torch.empty(107, 64, dtype=torch.bfloat16)
    activated = torch.empty_like(gated)
    ops.silu_and_mul(activated, products)
    for threads in (1, 2):
        ops.set_num_threads(threads)
        ops.experts.linear(out, x, weight, torch.tensor(starts, dtype=torch.int32))
        assert_same_bits(out, products)
        ops.activated.gated(gated, x, weight, "silu", starts=torch.tensor(starts, dtype=torch.int32))
        assert_same_bits(gated, activated)


def test_what_does_not_fit_is_refused() -> None:
    weight = PackedWeight.of(torch.zeros(128, 8))
    x, out = torch.zeros(3, 8), torch.zeros(3, 64)
    with pytest.raises(ValueError, match="activation: expected silu, gelu or gelu_tanh, got 'tanh'"):
        ops.activated.gated(out, x, weight, "tanh")
    with pytest.raises(ValueError, match="weight: expected a multiple of 64 outputs, got 96"):
        ops.activated.gated(out, x, PackedWeight.of(torch.zeros(96, 8)), "silu")
    with pytest.raises(ValueError, match="out: expected size 64"):
        ops.activated.gated(torch.zeros(3, 128), x, weight, "silu")
    with pytest.raises(ValueError, match="starts: expected 0 to 3"):
        ops.activated.gated(out, x, weight, "silu", starts=torch.tensor([0, 4], dtype=torch.int32))
    with pytest.raises(TypeError, match="out: "):
        ops.activated.gated(torch.zeros(3, 64, dtype=torch.bfloat16), x, weight, "silu")


@pytest.mark.parametrize(("dtype", "form"), FORMS)
@pytest.mark.parametrize(("rows", "cols", "depth"), [(1, 9, 70), (40, 96, 300), (700, 70, 96)])
def test_gelus_have_the_bits_of_products_activated_afterwards(
    rows: int, cols: int, depth: int, dtype: torch.dtype, form: WeightForm
) -> None:
    weight = PackedWeight.of(torch.randn(cols, depth).to(dtype) / 8, form)
    x, bias = torch.randn(rows, depth).to(dtype), torch.randn(cols).to(dtype)
    products, expected, out = (torch.empty(rows, cols, dtype=dtype) for _ in range(3))
    approximations: tuple[Literal["none", "tanh"], ...] = ("none", "tanh")
    for approximate in approximations:
        for added in (None, bias):
            ops.linear(products, x, weight, added)
            ops.gelu(expected, products, approximate)
            ops.activated.gelu(out, x, weight, added, approximate)
            assert_same_bits(out, expected)


def test_a_gelu_that_does_not_exist_is_refused() -> None:
    x, packed = torch.randn(2, 8), PackedWeight.of(torch.randn(8, 8))
    with pytest.raises(ValueError, match="approximate"):
        ops.activated.gelu(torch.empty(2, 8), x, packed, None, "erf")  # type: ignore[arg-type]
