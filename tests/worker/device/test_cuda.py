"""What crosses between host and GPU, with the CPU's memory in the GPU's place."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch

from splitserve.worker.device.cuda import CudaDevice
from splitserve.worker.ops.cuda import CudaOps
from splitserve.worker.ops.dense_weight import DenseWeight

DEVICE = CudaDevice(cast("CudaOps", None), torch.device("cpu"))


def test_tensors_of_any_kind_share_one_copy() -> None:
    sources = [
        torch.arange(7, dtype=torch.int32),
        torch.tensor([2**40, -1], dtype=torch.int64),
        torch.randn(3, 5),
        torch.empty(0, dtype=torch.int32),
        torch.tensor([1.5], dtype=torch.float32),
    ]
    placed = DEVICE.place(sources)
    assert len({x.untyped_storage().data_ptr() for x in placed}) == 1
    for source, there in zip(sources, placed, strict=True):
        assert there.dtype == source.dtype
        assert torch.equal(there, source)
        assert there.numel() == 0 or there.data_ptr() % 16 == 0


def test_what_is_placed_is_a_copy() -> None:
    source = torch.zeros(3)
    (there,) = DEVICE.place([source])
    source += 1
    assert not there.any()


def test_histories_are_those_of_the_rows_asked_for() -> None:
    tokens = np.arange(40, dtype=np.int32).reshape(5, 8)
    history = DEVICE.histories(tokens, np.array([4, 1], np.int32), 3)
    assert history.token_ids[history.rows.long()].tolist() == [[32, 33, 34], [8, 9, 10]]


def test_a_weight_is_filled_by_rectangles_of_any_dtype() -> None:
    weight = DenseWeight((3, 4), torch.bfloat16, torch.device("cpu"))
    matrix = torch.randn(3, 4)
    weight.fill(matrix[:2])
    weight.fill(matrix[2:, :3].double(), 2)
    weight.fill(matrix[2:, 3:], 2, 3)
    assert torch.equal(weight.data, matrix.bfloat16())
    assert (weight.shape, weight.num_bytes) == ((3, 4), 24)
    with pytest.raises(ValueError, match="does not fit"):
        weight.fill(matrix, 1)
