"""multiply_peak: what it says it did, and what it refuses."""

import pytest
import torch

from splitserve.worker.ops.cpu import ops


@pytest.mark.parametrize("threads", [1, 2])
def test_counts_two_operations_per_product_and_thread(threads: int, dtype: torch.dtype) -> None:
    ops.set_num_threads(threads)
    assert ops.multiply_peak(torch.ones(32, dtype=dtype), 3) == 2 * threads * 3 * 32768


def test_refuses_other_operands() -> None:
    with pytest.raises(ValueError, match="x"):
        ops.multiply_peak(torch.ones(31), 1)
    with pytest.raises(TypeError, match="x"):
        ops.multiply_peak(torch.ones(32, dtype=torch.int64), 1)
    for rounds in (0, 2**32 + 1):
        with pytest.raises(ValueError, match=r"rounds: expected 1 to 2\^32"):
            ops.multiply_peak(torch.ones(32), rounds)
