"""inputs.take: columns of a matrix in another order, bit by bit."""

import pytest
import torch

from splitserve.worker.ops.cpu import ops
from tests.worker.ops.helpers import assert_same_bits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width", "count"), [(1, 96, 96), (3, 33, 70), (40, 4096, 1000), (0, 8, 8)])
def test_each_row_has_the_columns_in_the_order_that_is_asked_for(
    rows: int, width: int, count: int, dtype: torch.dtype
) -> None:
    # Rows of a larger buffer, as layers' are.
    x = torch.randn(rows, width + 32).to(dtype)[:, :width]
    out = torch.full((rows, count + 32), float("nan"), dtype=dtype)
    order = torch.randint(-1, width, (count,), dtype=torch.int32)
    order[:2] = torch.tensor([-1, width - 1])
    ops.inputs.take(out[:, :count], x, order)
    assert_same_bits(out[:, :count], torch.where(order < 0, torch.zeros((), dtype=dtype), x[:, order.long()]))
    assert out[:, count:].isnan().all()


def test_wrong_arguments_are_refused() -> None:
    out, x, order = torch.empty(2, 4), torch.randn(2, 6), torch.arange(4, dtype=torch.int32)
    for column in (6, -2):
        with pytest.raises(ValueError, match=f"order: {column} is not a column of 6"):
            ops.inputs.take(out, x, torch.tensor([0, 1, column, 2], dtype=torch.int32))
    with pytest.raises(ValueError, match="order: expected size 4"):
        ops.inputs.take(out, x, order[:3])
    with pytest.raises(TypeError, match="order"):
        ops.inputs.take(out, x, order.long())
    with pytest.raises(TypeError, match="out: dtype differs"):
        ops.inputs.take(out.bfloat16(), x, order)
    with pytest.raises(ValueError, match="out: expected size 2"):
        ops.inputs.take(out[:1], x, order)
