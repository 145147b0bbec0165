"""embedding on a GPU: copies indexed rows."""

import pytest
import torch

from splitserve.worker.ops.dense_weight import DenseWeight
from tests.gpu.conftest import Gpu
from tests.worker.ops.helpers import assert_same_bits


@pytest.mark.parametrize("hidden", [1, 33, 256, 9000])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_embedding_copies_rows(gpu: Gpu, hidden: int, index_dtype: torch.dtype, dtype: torch.dtype) -> None:
    weight, ids = gpu.randn(20, hidden, dtype=dtype), torch.tensor([3, 19, 0, 3], dtype=index_dtype)
    out = torch.full((4, hidden), float("nan"), dtype=dtype, device=gpu.device)
    gpu.ops.embedding(out, ids.to(gpu.device), DenseWeight.of(weight))
    assert_same_bits(out, weight[ids.long().to(gpu.device)])


@pytest.mark.parametrize("token_id", [-1, 20, 2**31 - 1])
@pytest.mark.parametrize("hidden", [33, 64])
def test_an_id_outside_the_vocabulary_makes_its_own_row_nan(
    gpu: Gpu, hidden: int, token_id: int, dtype: torch.dtype
) -> None:
    weight, ids = gpu.randn(20, hidden, dtype=dtype), torch.tensor([3, token_id, 5])
    out = gpu.randn(3, hidden, dtype=dtype)
    gpu.ops.embedding(out, ids.to(gpu.device), DenseWeight.of(weight))
    assert out[1].isnan().all()
    assert_same_bits(out[[0, 2]], weight[[3, 5]])


def test_shapes_and_dtypes_are_checked(gpu: Gpu) -> None:
    weight, ids = gpu.randn(20, 8), torch.zeros(3, dtype=torch.int32, device=gpu.device)
    with pytest.raises(ValueError, match="out: expected size 8"):
        gpu.ops.embedding(gpu.randn(3, 7), ids, DenseWeight.of(weight))
    with pytest.raises(TypeError, match="out: dtype differs"):
        gpu.ops.embedding(gpu.randn(3, 8, dtype=torch.float16), ids, DenseWeight.of(weight))
    with pytest.raises(TypeError, match="token_ids: unsupported"):
        gpu.ops.embedding(gpu.randn(3, 8), gpu.randn(3), DenseWeight.of(weight))
