"""Calls with so many inputs that what is made of them is made of some rows at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import WeightForm
from tests.worker.ops.helpers import assert_same_bits

# At a byte for each input more than 16 MiB.
ROWS, DEPTH = 2_061, 8_192
SOME = torch.arange(0, ROWS, 103)
FORMS: list[WeightForm] = ["plain", "int8", "w8a8"]


def inputs(rows: int, depth: int) -> Tensor:
    """Rows that differ, of few numbers."""
    return torch.randn(rows, 1).bfloat16() * torch.randn(depth).bfloat16()


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("form", FORMS)
def test_rows_have_the_bits_of_a_smaller_call(form: WeightForm, out_dtype: torch.dtype) -> None:
    x, weight = inputs(ROWS, DEPTH), PackedWeight.of(torch.randn(8, DEPTH).bfloat16(), form)
    bias = torch.randn(8).bfloat16()
    # Beside other columns, so that rows are not as far apart as they are long.
    wide, some = torch.zeros(ROWS, 24, dtype=out_dtype), torch.empty(len(SOME), 8, dtype=out_dtype)
    ops.set_num_threads(2)
    ops.linear(wide[:, 8:16], x, weight, bias)
    ops.linear(some, x[SOME], weight, bias)
    assert_same_bits(wide[SOME, 8:16], some)
    assert wide[:, :8].count_nonzero() + wide[:, 16:].count_nonzero() == 0
    assert (wide[:, 8:16] != 0).any(dim=1).all()


@pytest.mark.parametrize("form", FORMS)
def test_experts_keep_their_rows(form: WeightForm) -> None:
    """One has none, one a few, one most of them; some rows in front and behind are no expert's."""
    starts = torch.tensor([7, 7, 40, 1_650, 1_657, ROWS - 5], dtype=torch.int32)
    counts = starts.diff().tolist()
    matrices = [torch.randn(64, DEPTH).bfloat16() / 64 for _ in counts]
    weight = PackedWeight.of_experts(matrices, form)
    x, others = inputs(ROWS, DEPTH), [*range(7), *range(ROWS - 5, ROWS)]
    x[others] = torch.nan
    products = torch.full((ROWS, 64), 7.0).bfloat16()
    gated = torch.full((ROWS, 32), 7.0).bfloat16()
    ops.set_num_threads(2)
    ops.experts.linear(products, x, weight, starts)
    ops.activated.gated(gated, x, weight, "silu", starts=starts)
    assert (products[others] == 7).all()
    assert (gated[others] == 7).all()
    for expert, (begin, count) in enumerate(zip(starts[:-1].tolist(), counts, strict=True)):
        rows = torch.arange(begin, begin + count, 57)
        own = PackedWeight.of(matrices[expert], form)
        some = torch.empty(len(rows), 64, dtype=torch.bfloat16)
        ops.linear(some, x[rows], own)
        assert_same_bits(products[rows], some)
        own_starts = torch.where(torch.arange(len(counts) + 1) > expert, len(rows), 0).int()
        units = torch.empty(len(rows), 32, dtype=torch.bfloat16)
        ops.activated.gated(units, x[rows], weight, "silu", starts=own_starts)
        assert_same_bits(gated[rows], units)


def test_heads_keep_their_rows() -> None:
    weight = PackedWeight.of_experts([torch.randn(8, 512).bfloat16() for _ in range(16)])
    x = inputs(ROWS, 16 * 512).view(ROWS, 16, 512)
    out, some = (torch.empty(n, 16, 8, dtype=torch.bfloat16) for n in (ROWS, len(SOME)))
    ops.set_num_threads(2)
    ops.latents.multiply_heads(out, x, weight)
    ops.latents.multiply_heads(some, x[SOME], weight)
    assert_same_bits(out[SOME], some)
