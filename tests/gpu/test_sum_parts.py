"""sum_parts on a GPU: the bits of the CPU's sum."""

import pytest
import torch

from tests.gpu.conftest import Gpu
from tests.worker.ops.helpers import assert_same_bits, sum_in_order
from tests.worker.ops.test_sum_parts import parts_of


@pytest.mark.parametrize("is_rounded_before", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("count", "rows", "width"), [(1, 3, 7), (2, 5, 64), (5, 3, 33), (8, 9, 520), (64, 1, 1)]
)
def test_parts_are_added_in_order(
    gpu: Gpu, count: int, rows: int, width: int, has_bias: bool, is_rounded_before: bool, dtype: torch.dtype
) -> None:
    parts = parts_of(count, rows * width, dtype if is_rounded_before else torch.float32)
    bias = torch.randn(width).to(dtype) if has_bias else None
    expected = sum_in_order([part.view(rows, width) for part in parts], bias, dtype)
    there = parts.to(gpu.device)
    out = gpu.empty_like(there[0].to(dtype))
    gpu.ops.sum_parts(out, there, None if bias is None else bias.to(gpu.device))
    assert_same_bits(out.cpu().view(rows, width), expected)


@pytest.mark.parametrize(("begin", "end"), [(0, 96), (16, 48), (8, 24), (7, 8), (33, 97), (50, 50)])
def test_a_run_of_elements_has_the_bits_of_the_whole_wherever_it_lies(
    gpu: Gpu, begin: int, end: int, dtype: torch.dtype
) -> None:
    parts, bias = parts_of(3, 128, torch.float32).to(gpu.device), gpu.randn(16, dtype=dtype)
    whole, run = gpu.empty_like(parts[0].to(dtype)), gpu.empty_like(parts[0].to(dtype))
    gpu.ops.sum_parts(whole, parts, bias)
    # Aligned or not.
    for shift in (0, 1):
        out = run[shift : shift + end - begin]
        gpu.ops.sum_parts(out, parts[:, begin:end], bias, begin)
        assert_same_bits(out, whole[begin:end])
    assert run[1 + end - begin :].isnan().all()
