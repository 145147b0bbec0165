"""linear: reference, and the same bits for a row in every batch."""

import pytest
import torch
import torch.nn.functional as F

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import WeightForm
from splitserve.worker.pages import zero_pages
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits

SHAPES = [(1, 1, 1), (1, 64, 9), (2, 33, 5), (3, 100, 64), (5, 257, 131), (18, 128, 70)]


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("rows", "depth", "cols"), SHAPES)
def test_matches_reference(rows: int, depth: int, cols: int, has_bias: bool, dtype: torch.dtype) -> None:
    x, weight = torch.randn(rows, depth).to(dtype), torch.randn(cols, depth).to(dtype)
    bias = torch.randn(cols).to(dtype) if has_bias else None
    out = torch.empty(rows, cols, dtype=dtype)
    ops.linear(out, x, PackedWeight.of(weight), bias)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert_as_exact_as_torch(out, F.linear(x, weight, bias), exact)


@pytest.mark.parametrize(("rows", "depth", "cols"), SHAPES)
def test_float32_logits_from_bfloat16_keep_float32_precision(rows: int, depth: int, cols: int) -> None:
    x, weight = torch.randn(rows, depth).bfloat16(), torch.randn(cols, depth).bfloat16()
    out = torch.empty(rows, cols)
    ops.linear(out, x, PackedWeight.of(weight))
    exact = F.linear(x.double(), weight.double())
    # The products are exact in float32; the sum of their magnitudes bounds what float32 additions lose.
    bound = F.linear(x.double().abs(), weight.double().abs()).max().item() * torch.finfo(torch.float32).eps
    assert (out - exact).abs().max().item() <= bound


def test_writes_only_its_slice_and_reads_strided_rows(dtype: torch.dtype) -> None:
    wide_x, wide_out = torch.randn(5, 100).to(dtype), torch.zeros(5, 90, dtype=dtype)
    packed = PackedWeight.of(torch.randn(30, 40).to(dtype))
    dense = torch.empty(5, 30, dtype=dtype)
    ops.linear(dense, wide_x[:, 20:60].contiguous(), packed)
    ops.linear(wide_out[:, 30:60], wide_x[:, 20:60], packed)
    assert_same_bits(wide_out[:, 30:60], dense)
    assert wide_out[:, :30].abs().sum() == 0
    assert wide_out[:, 60:].abs().sum() == 0


@pytest.mark.parametrize("out_dtype", ["same", "fp32"])
@pytest.mark.parametrize(("depth", "cols"), [(96, 200), (301, 67), (2048, 24)])
def test_rows_do_not_depend_on_batch_or_threads(
    depth: int, cols: int, out_dtype: str, dtype: torch.dtype
) -> None:
    x, weight, bias = torch.randn(259, depth).to(dtype), torch.randn(cols, depth).to(dtype), torch.randn(cols)
    out_type = dtype if out_dtype == "same" else torch.float32
    packed = PackedWeight.of(weight)
    whole = torch.empty(259, cols, dtype=out_type)
    ops.set_num_threads(2)
    ops.linear(whole, x, packed, bias.to(dtype))
    for threads in (1, 2):
        ops.set_num_threads(threads)
        for start, end in [(0, 1), (258, 259), (1, 3), (5, 8), (9, 13), (100, 105), (17, 50)]:
            part = torch.empty(end - start, cols, dtype=out_type)
            ops.linear(part, x[start:end], packed, bias.to(dtype))
            assert_same_bits(part, whole[start:end])


def test_rows_of_large_blocks_have_the_bits_of_a_row_alone(dtype: torch.dtype) -> None:
    x, packed = torch.randn(645, 545).to(dtype), PackedWeight.of(torch.randn(40, 545).to(dtype))
    whole, alone = torch.empty(645, 40, dtype=dtype), torch.empty(1, 40, dtype=dtype)
    ops.linear(whole, x, packed)
    for row in (0, 31, 320, 613, 644):
        ops.linear(alone, x[row : row + 1], packed)
        assert_same_bits(alone[0], whole[row])


@pytest.mark.parametrize(
    ("form", "out_dtype"), [("plain", torch.bfloat16), ("plain", torch.float32), ("w8a8", torch.bfloat16)]
)
def test_outputs_that_pass_the_caches_are_those_of_a_few_rows(
    form: WeightForm, out_dtype: torch.dtype
) -> None:
    # More than 2 MiB, rows of which begin cache lines or do not, and the last panel is not whole.
    x, packed = torch.randn(620, 40).bfloat16(), PackedWeight.of(torch.randn(1800, 40).bfloat16(), form)
    for first in (0, 1):
        wide = zero_pages((620, 1856), out_dtype)
        out = wide[:, first : first + 1800]
        ops.linear(out, x, packed)
        assert wide[:, :first].count_nonzero() + wide[:, first + 1800 :].count_nonzero() == 0
        for start, end in [(0, 30), (300, 301), (590, 620)]:
            part = torch.empty(end - start, 1800, dtype=out_dtype)
            ops.linear(part, x[start:end], packed)
            assert_same_bits(out[start:end], part)


def test_every_number_of_rows_gives_a_row_the_same_bits(dtype: torch.dtype) -> None:
    x, packed = torch.randn(40, 70).to(dtype), PackedWeight.of(torch.randn(72, 70).to(dtype))
    alone = torch.empty(40, 72, dtype=dtype)
    for row in range(40):
        ops.linear(alone[row : row + 1], x[row : row + 1], packed)
    for rows in range(2, 41):
        together = torch.empty(rows, 72, dtype=dtype)
        ops.linear(together, x[:rows], packed)
        assert_same_bits(together, alone[:rows])


def test_columns_do_not_depend_on_how_the_weight_is_sharded(dtype: torch.dtype) -> None:
    x, weight = torch.randn(9, 130).to(dtype), torch.randn(77, 130).to(dtype)
    whole, shard = torch.empty(9, 77, dtype=dtype), torch.empty(9, 30, dtype=dtype)
    ops.linear(whole, x, PackedWeight.of(weight))
    ops.linear(shard, x, PackedWeight.of(weight[41:71]))
    assert_same_bits(shard, whole[:, 41:71])


@pytest.mark.parametrize("depth", [1, 33, 40])
@pytest.mark.parametrize("rows", [1, 3, 17])
def test_what_lies_beside_the_rows_of_x_is_not_read(rows: int, depth: int, dtype: torch.dtype) -> None:
    wide = torch.full((rows, depth + 9), torch.nan).to(dtype)
    x, weight = torch.randn(rows, depth).to(dtype), PackedWeight.of(torch.randn(50, depth).to(dtype))
    wide[:, 3 : depth + 3] = x
    inside, alone = torch.empty(rows, 50, dtype=dtype), torch.empty(rows, 50, dtype=dtype)
    ops.linear(inside, wide[:, 3 : depth + 3], weight)
    ops.linear(alone, x, weight)
    assert_same_bits(inside, alone)
