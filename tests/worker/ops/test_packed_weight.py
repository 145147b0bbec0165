"""PackedWeight: filled in any pieces, it is the same memory."""

import pytest
import torch

from splitserve.worker.ops.packed_weight import PackedWeight
from tests.worker.ops.helpers import assert_same_bits


@pytest.mark.parametrize("shape", [(1, 1), (31, 3), (33, 8), (70, 129)])
def test_the_layout_is_the_documented_one(shape: tuple[int, int], dtype: torch.dtype) -> None:
    matrix = torch.randn(shape).to(dtype)
    weight = PackedWeight.of(matrix)
    pair = weight.data.shape[3]
    padded = torch.zeros(weight.data.shape[0] * 32, weight.data.shape[1] * pair, dtype=dtype)
    padded[: shape[0], : shape[1]] = matrix
    expected = padded.view(weight.data.shape[0], 32, -1, pair).transpose(1, 2)
    assert_same_bits(weight.data, expected.contiguous())


def test_pieces_of_any_size_give_what_the_whole_gives(dtype: torch.dtype) -> None:
    matrix = torch.randn(75, 37).to(dtype)
    weight = PackedWeight((75, 37), dtype)
    for row, rows in ((0, 1), (1, 40), (41, 34)):
        for column, columns in ((0, 5), (5, 1), (6, 31)):
            weight.fill(matrix[row : row + rows, column : column + columns], row, column)
    assert_same_bits(weight.data, PackedWeight.of(matrix).data)


def test_a_transposed_source_is_packed_by_its_strides(dtype: torch.dtype) -> None:
    matrix = torch.randn(50, 21).to(dtype)
    assert_same_bits(PackedWeight.of(matrix.t().contiguous().t()).data, PackedWeight.of(matrix).data)


def test_a_source_of_another_dtype_is_converted() -> None:
    matrix = torch.randn(40, 6)
    weight = PackedWeight((40, 6), torch.bfloat16)
    weight.fill(matrix)
    assert_same_bits(weight.data, PackedWeight.of(matrix.bfloat16()).data)


def test_an_empty_source_changes_nothing(dtype: torch.dtype) -> None:
    weight = PackedWeight((3, 4), dtype)
    weight.fill(torch.ones(0, 4), 3)
    weight.fill(torch.ones(3, 0), 0, 4)
    assert weight.data.count_nonzero() == 0
