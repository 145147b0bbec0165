"""Blocks of the batch's rows: who holds which, and where in them a token's keys and values go."""

from __future__ import annotations

import numpy as np
import pytest

from splitserve.engine_core.errors import WorkerError
from splitserve.worker.batch.block_tables import BlockTables
from splitserve.worker.ops.columns import Int32

BLOCK_SIZE, POOL_SIZE = 4, 40


def int32(*values: int) -> Int32:
    return np.array(values, np.int32)


@pytest.fixture
def blocks() -> BlockTables:
    """Row 0 holds blocks 7 and 9, row 2 holds block 3; row 1 has none."""
    blocks = BlockTables(np.zeros((3, 5), np.int32), np.zeros(3, np.int32), BLOCK_SIZE, POOL_SIZE)
    blocks.enter(0, 0, int32(7, 9))
    blocks.enter(2, 0, int32(3))
    return blocks


def test_a_row_may_get_several_blocks_in_one_step(blocks: BlockTables) -> None:
    blocks.append(int32(0, 2, 0), int32(20, 30, 21))
    assert blocks.num_blocks.tolist() == [4, 0, 2]
    assert blocks.table[0, :4].tolist() == [7, 9, 20, 21]
    assert blocks.table[2, :2].tolist() == [3, 30]
    assert blocks.room(np.array([0, 2])).tolist() == [16, 8]


def test_blocks_before_the_first_have_left_the_window(blocks: BlockTables) -> None:
    blocks.enter(1, 2, int32(5))
    assert blocks.table[1, :3].tolist() == [-1, -1, 5]
    assert blocks.num_blocks[1] == 3


def test_a_slot_is_a_place_in_the_block_of_a_position(blocks: BlockTables) -> None:
    slots = blocks.slots(np.array([0, 0, 2]), np.array([3, 4, 2]))
    assert slots.tolist() == [7 * 4 + 3, 9 * 4, 3 * 4 + 2]
    assert slots.dtype == np.int32


def test_tables_of_a_step_are_as_wide_as_its_longest_row_needs(blocks: BlockTables) -> None:
    assert blocks.of(np.array([2, 0]), int32(1, 5)).tolist() == [[3, 0], [7, 9]]
    assert blocks.of(np.array([2, 0]), int32(4, 4)).tolist() == [[3], [7]]
    assert blocks.of(np.array([], np.intp), int32()).shape == (0, 1)


@pytest.mark.parametrize("block_id", [-1, POOL_SIZE])
def test_a_block_outside_the_pool_is_refused_before_anything_changes(
    blocks: BlockTables, block_id: int
) -> None:
    with pytest.raises(WorkerError, match="outside the KV cache"):
        blocks.append(int32(0), int32(block_id))
    with pytest.raises(WorkerError, match="outside the KV cache"):
        blocks.enter(1, 0, int32(1, block_id))
    assert blocks.num_blocks.tolist() == [2, 0, 1]


def test_more_blocks_than_the_longest_sequence_needs_are_refused(blocks: BlockTables) -> None:
    blocks.append(int32(0, 0, 0), int32(1, 2, 4))
    with pytest.raises(WorkerError, match="more blocks than the longest sequence"):
        blocks.append(int32(0), int32(5))
    with pytest.raises(WorkerError, match="more blocks than the longest sequence"):
        blocks.enter(1, 5, int32(5))


def test_columns_of_unequal_length_and_a_first_block_below_zero_are_refused(blocks: BlockTables) -> None:
    with pytest.raises(WorkerError, match="differ in length"):
        blocks.append(int32(0, 2), int32(1))
    with pytest.raises(WorkerError, match="begins at block -1"):
        blocks.enter(1, -1, int32(5))


@pytest.fixture
def grouped() -> BlockTables:
    """Tables of two window groups beside the first; row 1 has three blocks, one of which has left."""
    tables = np.zeros((2, 3, 5), np.int32)
    blocks = BlockTables(np.zeros((3, 5), np.int32), np.zeros(3, np.int32), BLOCK_SIZE, POOL_SIZE, tables)
    blocks.enter(1, 0, int32(7, 9, 4))
    blocks.enter_windows(1, 1, int32(10, 20, 11, 21))
    return blocks


def test_window_groups_have_tables_as_long_as_the_first(grouped: BlockTables) -> None:
    assert grouped.window_tables[0, 1, :3].tolist() == [-1, 10, 11]
    assert grouped.window_tables[1, 1, :3].tolist() == [-1, 20, 21]
    grouped.append(int32(1, 1), int32(1, 2, 3, 4, 5, 6))
    assert grouped.num_blocks.tolist() == [0, 5, 0]
    assert grouped.table[1].tolist() == [7, 9, 4, 1, 4]
    assert grouped.window_tables[:, 1].tolist() == [[-1, 10, 11, 2, 5], [-1, 20, 21, 3, 6]]


def test_slots_and_tables_of_window_groups(grouped: BlockTables) -> None:
    rows = np.array([1, 1])
    slots = grouped.window_slots(rows, np.array([5, 8]))
    assert slots.tolist() == [[10 * 4 + 1, 11 * 4], [20 * 4 + 1, 21 * 4]]
    assert slots.flags.c_contiguous
    tables = grouped.windows_of(np.array([1]), 3)
    assert tables.tolist() == [[[-1, 10, 11]], [[-1, 20, 21]]]


@pytest.mark.parametrize("count", [0, 3, 5, 6])
def test_a_row_that_lacks_blocks_of_a_group_is_refused(grouped: BlockTables, count: int) -> None:
    with pytest.raises(WorkerError, match="in window groups"):
        grouped.enter_windows(1, 1, int32(*range(count)))
    with pytest.raises(WorkerError, match="have left the window"):
        grouped.enter_windows(1, 4, int32())
    with pytest.raises(WorkerError, match="differ in length"):
        grouped.append(int32(1), int32(1, 2))
    with pytest.raises(WorkerError, match="outside the KV cache"):
        grouped.append(int32(1), int32(1, 2, POOL_SIZE))
