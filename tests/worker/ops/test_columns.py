"""The declarations of a decode step's columns, and the memory that is made from them."""

from __future__ import annotations

import numpy as np
import pytest

from splitserve.worker._native import load_library
from splitserve.worker.ops.columns import (
    Array,
    BatchColumns,
    DrawColumns,
    LayoutColumns,
    SamplingColumns,
    Width,
    allocate,
    check_columns,
    declared,
    describe_columns,
)


@pytest.mark.parametrize("kind", [BatchColumns, LayoutColumns, SamplingColumns, DrawColumns])
def test_memory_is_as_declared(kind: type[BatchColumns[Array]]) -> None:
    columns = allocate(kind, 5, {Width.TOKENS: 7, Width.BLOCKS: 3})
    for (name, column), array in zip(declared(kind).items(), columns, strict=True):
        assert array is getattr(columns, name)
        assert array.dtype == column.dtype
        assert (array == column.initial).all()


def test_a_row_has_as_many_elements_as_its_width_says() -> None:
    columns = allocate(BatchColumns[Array], 5, {Width.TOKENS: 7, Width.BLOCKS: 3})
    assert columns.tokens.shape == (5, 7)
    assert columns.block_table.shape == (5, 3)
    assert columns.num_tokens.shape == (5,)


def test_columns_do_not_share_memory() -> None:
    columns = allocate(SamplingColumns[Array], 2)
    columns.temperature[:] = 3
    assert [array.tolist() for array in columns[1:]] == [[0, 0], [1, 1], [0, 0], [0, 0]]
    assert not any(np.shares_memory(columns.temperature, array) for array in columns[1:])


DESCRIBED = load_library("splitserve_cpu").decode_columns()


def test_the_kernels_read_the_columns_that_are_declared() -> None:
    assert DESCRIBED.splitlines() == describe_columns().splitlines()


@pytest.mark.parametrize(
    "drifted",
    [
        DESCRIBED.replace("features uint16", "features int32"),
        DESCRIBED.replace("block_table int32 2", "block_table int32 1"),
        DESCRIBED.replace("occupied bool 1\nfeatures uint16 1", "features uint16 1\noccupied bool 1"),
        DESCRIBED.replace("seq_lens int32 1\n", ""),
        "",
    ],
    ids=["dtype", "dimensions", "order", "missing", "no description"],
)
def test_kernels_built_for_other_columns_are_refused(drifted: str) -> None:
    assert drifted != DESCRIBED
    with pytest.raises(ImportError, match="build them again with `pip install"):
        check_columns(drifted)
