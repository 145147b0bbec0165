"""pool_rows on a GPU: the bits of the CPU, whatever the steps."""

from __future__ import annotations

import pytest
import torch

from splitserve.worker.ops.cpu import ops
from tests.gpu.conftest import Gpu
from tests.worker.ops.helpers import assert_same_bits
from tests.worker.ops.test_pool_rows import KINDS, Kind, ints


@pytest.mark.parametrize("kind", KINDS)
def test_rows_have_the_bits_of_the_cpu_in_one_step_and_in_several(
    gpu: Gpu, kind: Kind, dtype: torch.dtype
) -> None:
    states, size = torch.randn(30, 130).to(dtype), 130
    states[25, 7] = float("nan")
    expected = torch.zeros(4, size)
    # Every number of 16 bits is one of 32.
    ops.sampling.pool_rows(expected, states.float(), ints(0, 10, 30), ints(3, 1), ints(0, 0), kind)
    totals = torch.zeros(4, size, device=gpu.device)

    def pool(part: torch.Tensor, *columns: torch.Tensor) -> None:
        ends, rows, positions = (x.to(gpu.device) for x in columns)
        gpu.ops.sampling.pool_rows(totals, part.to(gpu.device), ends, rows, positions, kind)

    pool(states[10:11], ints(0, 1), ints(1), ints(0))
    # A row outside the table gets nothing.
    rest = torch.cat((states[:10], states[11:30], states[:2]))
    pool(rest, ints(0, 10, 29, 31), ints(3, 1, 4), ints(0, 1, 0))
    numbers = expected.isfinite()
    assert_same_bits(totals.cpu()[numbers], expected[numbers])
    assert torch.equal(totals.cpu().isfinite(), numbers)
    assert not numbers[1, 7]
