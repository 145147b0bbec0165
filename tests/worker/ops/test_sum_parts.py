"""sum_parts: the sum in the order of the parts, rounded once."""

import pytest
import torch

from splitserve.worker.ops.cpu import ops
from tests.worker.ops.helpers import assert_same_bits, sum_in_order

PART_DTYPES = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.bfloat16),
]


def parts_of(count: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Of such different sizes that every other order of adding them gives other bits somewhere."""
    return torch.stack([torch.randn(size) * 10.0 ** (i % 3) for i in range(count)]).to(dtype)


@pytest.mark.parametrize(("dtype", "part_dtype"), PART_DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("count", "rows", "width"), [(1, 3, 7), (2, 5, 64), (5, 3, 33), (64, 1, 1)])
def test_parts_are_added_in_order(
    count: int, rows: int, width: int, has_bias: bool, dtype: torch.dtype, part_dtype: torch.dtype
) -> None:
    parts = parts_of(count, rows * width, part_dtype)
    bias = torch.randn(width).to(dtype) if has_bias else None
    out = torch.full((rows * width,), float("nan"), dtype=dtype)
    ops.sum_parts(out, parts, bias)
    expected = sum_in_order([part.view(rows, width) for part in parts], bias, dtype)
    assert_same_bits(out.view(rows, width), expected)


@pytest.mark.parametrize(("dtype", "part_dtype"), PART_DTYPES)
@pytest.mark.parametrize(("begin", "end"), [(0, 70), (16, 48), (7, 8), (33, 97), (50, 50)])
def test_a_run_of_elements_has_the_bits_of_the_whole_wherever_it_lies(
    begin: int, end: int, dtype: torch.dtype, part_dtype: torch.dtype
) -> None:
    parts, bias = parts_of(3, 99, part_dtype), torch.randn(33).to(dtype)
    whole, run = torch.empty(99, dtype=dtype), torch.full((101,), float("nan"), dtype=dtype)
    ops.sum_parts(whole, parts, bias)
    # The parts are 99 elements apart, and begin anywhere.
    ops.sum_parts(run[1 : 1 + end - begin], parts[:, begin:end], bias, begin)
    assert_same_bits(run[1 : 1 + end - begin], whole[begin:end])
    assert run[0].isnan()
    assert run[1 + end - begin :].isnan().all()


def test_wrong_arguments_are_refused() -> None:
    out, parts = torch.empty(6), torch.randn(2, 6)
    with pytest.raises(ValueError, match="parts: expected size 6"):
        ops.sum_parts(out, parts[:, :5])
    with pytest.raises(ValueError, match="parts: expected at least one"):
        ops.sum_parts(out, parts[:0])
    with pytest.raises(TypeError, match="parts: dtype differs"):
        ops.sum_parts(out, parts.bfloat16())
    with pytest.raises(TypeError, match="bias: dtype differs"):
        ops.sum_parts(out, parts, torch.zeros(3, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="bias: expected at least one"):
        ops.sum_parts(out, parts, torch.zeros(0))
    with pytest.raises(ValueError, match="first: expected 0 or more"):
        ops.sum_parts(out, parts, None, -1)
