"""lora on a GPU: deltas of adapters, each row by its own, the same bits in any batch."""

from __future__ import annotations

import pytest
import torch

from splitserve.worker.ops.layers.lora import LoraRows, LoraWeights
from tests.gpu.conftest import Gpu
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits
from tests.worker.ops.test_lora import reference, rows_of, weights_of

SLOTS = [2, -1, 0, 2, 3, 1]


def _add(
    gpu: Gpu, out: torch.Tensor, x: torch.Tensor, weights: LoraWeights, slots: list[int]
) -> torch.Tensor:
    result = out.to(gpu.device, copy=True)
    rows = LoraRows(*(each.to(gpu.device) for each in rows_of(slots, weights.a.shape[2])))
    there = LoraWeights(*(each.to(gpu.device) for each in weights))
    gpu.ops.lora.add(result, x.to(gpu.device), there, rows)
    return result.cpu()


@pytest.mark.parametrize(("depth", "cols", "room"), [(33, 300, 16), (70, 7, 48)])
def test_each_row_gets_the_delta_of_its_adapter(
    gpu: Gpu, depth: int, cols: int, room: int, dtype: torch.dtype
) -> None:
    weights = weights_of([room, 1, room - 3, 0], (depth, cols, room), dtype, 1)
    weights.a[3].zero_()
    x, out = torch.randn(len(SLOTS), depth).to(dtype), torch.randn(len(SLOTS), cols).to(dtype)
    ours = _add(gpu, out, x, weights, SLOTS)
    exact, torchs = (reference(out, x, weights, SLOTS, kind) for kind in (torch.float64, dtype))
    assert_as_exact_as_torch(ours, torchs, exact)
    for row, slot in enumerate(SLOTS):
        if slot in (-1, 3):
            assert_same_bits(ours[row], out[row])
        alone = _add(gpu, out[row : row + 1], x[row : row + 1], weights, [slot])
        assert_same_bits(alone[0], ours[row])


def test_a_slot_that_does_not_exist_is_no_adapter(gpu: Gpu) -> None:
    weights = weights_of([4, 4], (8, 6, 16), torch.float32, 1)
    out = torch.randn(2, 6)
    assert_same_bits(_add(gpu, out, torch.randn(2, 8), weights, [2, -7]), out)
