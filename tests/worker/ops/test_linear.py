"""linear: reference, and the same bits for a row in every batch."""

import pytest
import torch
import torch.nn.functional as F

from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits
from worker import ops

SHAPES = [(1, 1, 1), (1, 64, 9), (2, 33, 5), (3, 100, 64), (5, 257, 131), (18, 128, 70)]


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("rows", "depth", "cols"), SHAPES)
def test_matches_reference(rows: int, depth: int, cols: int, has_bias: bool, dtype: torch.dtype) -> None:
    x, weight = torch.randn(rows, depth).to(dtype), torch.randn(cols, depth).to(dtype)
    bias = torch.randn(cols).to(dtype) if has_bias else None
    out = torch.empty(rows, cols, dtype=dtype)
    ops.linear(out, x, weight, bias)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert_as_exact_as_torch(out, F.linear(x, weight, bias), exact)


@pytest.mark.parametrize(("rows", "depth", "cols"), SHAPES)
def test_float32_logits_from_bfloat16_keep_float32_precision(rows: int, depth: int, cols: int) -> None:
    x, weight = torch.randn(rows, depth).bfloat16(), torch.randn(cols, depth).bfloat16()
    out = torch.empty(rows, cols)
    ops.linear(out, x, weight)
    exact = F.linear(x.double(), weight.double())
    # The products are exact in float32; the sum of their magnitudes bounds what float32 additions lose.
    bound = F.linear(x.double().abs(), weight.double().abs()).max().item() * torch.finfo(torch.float32).eps
    assert (out - exact).abs().max().item() <= bound


def test_writes_only_its_slice_and_reads_strided_rows(dtype: torch.dtype) -> None:
    wide_x, wide_out = torch.randn(5, 100).to(dtype), torch.zeros(5, 90, dtype=dtype)
    weight = torch.randn(30, 40).to(dtype)
    dense = torch.empty(5, 30, dtype=dtype)
    ops.linear(dense, wide_x[:, 20:60].contiguous(), weight)
    ops.linear(wide_out[:, 30:60], wide_x[:, 20:60], weight)
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
    whole = torch.empty(259, cols, dtype=out_type)
    ops.set_num_threads(2)
    ops.linear(whole, x, weight, bias.to(dtype))
    for threads in (1, 2):
        ops.set_num_threads(threads)
        for start, end in [(0, 1), (258, 259), (1, 3), (5, 8), (9, 13), (100, 105), (17, 50)]:
            part = torch.empty(end - start, cols, dtype=out_type)
            ops.linear(part, x[start:end], weight, bias.to(dtype))
            assert_same_bits(part, whole[start:end])


def test_columns_do_not_depend_on_how_the_weight_is_sharded(dtype: torch.dtype) -> None:
    x, weight = torch.randn(9, 130).to(dtype), torch.randn(77, 130).to(dtype)
    whole, shard = torch.empty(9, 77, dtype=dtype), torch.empty(9, 30, dtype=dtype)
    ops.linear(whole, x, weight)
    ops.linear(shard, x, weight[41:71])
    assert_same_bits(shard, whole[:, 41:71])
