"""move_blocks: whole blocks between pool and host memory, one move after the other."""

import random

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops
from tests.worker.ops.helpers import assert_same_bits

PIECES, NUM_BLOCKS, NUM_HOST_BLOCKS, ELEMENTS = 6, 7, 5, 48
NUM_PLACES = NUM_BLOCKS + NUM_HOST_BLOCKS


def memory(dtype: torch.dtype, elements: int = ELEMENTS) -> tuple[Tensor, Tensor]:
    pool = torch.randn(PIECES, NUM_BLOCKS, elements).to(dtype)
    return pool, torch.randn(NUM_HOST_BLOCKS, PIECES, elements).to(dtype)


def place(pool: Tensor, host: Tensor, index: int) -> Tensor:
    return pool[:, index] if index < pool.shape[1] else host[index - pool.shape[1]]


def moved_one_by_one(pool: Tensor, host: Tensor, moves: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    pool, host = pool.clone(), host.clone()
    for source, target in moves:
        place(pool, host, target).copy_(place(pool, host, source).clone())
    return pool, host


def move(
    pool: Tensor, host: Tensor, moves: list[tuple[int, int]], index_dtype: torch.dtype = torch.int32
) -> None:
    columns = [torch.tensor([each[i] for each in moves], dtype=index_dtype) for i in (0, 1)]
    ops.move_blocks(pool, host, *columns)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_a_block_goes_out_is_overwritten_and_comes_back_elsewhere(
    index_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    pool, host = memory(dtype)
    block, other = pool[:, 2].clone(), pool[:, 4].clone()
    move(pool, host, [(2, NUM_BLOCKS + 3), (4, 2), (NUM_BLOCKS + 3, 6)], index_dtype)
    assert_same_bits(host[3], block)
    assert_same_bits(pool[:, 6], block)
    assert_same_bits(pool[:, 2], other)


@pytest.mark.parametrize("threads", [1, 3])
# One size below and one above what is worth a second thread.
@pytest.mark.parametrize("elements", [1, 3000])
def test_any_list_does_what_its_moves_do_one_after_the_other(
    elements: int, threads: int, dtype: torch.dtype
) -> None:
    ops.set_num_threads(threads)
    rng = random.Random(elements)
    for _ in range(5):
        pool, host = memory(dtype, elements)
        # Few places, so most of them are read after they were written; some moves go nowhere.
        moves = [(rng.randrange(NUM_PLACES), rng.randrange(NUM_PLACES)) for _ in range(40)]
        expected_pool, expected_host = moved_one_by_one(pool, host, moves)
        move(pool, host, moves)
        assert_same_bits(pool, expected_pool)
        assert_same_bits(host, expected_host)


def test_blocks_may_lie_in_strided_memory(dtype: torch.dtype) -> None:
    wide = torch.randn(PIECES, NUM_BLOCKS, 2 * ELEMENTS).to(dtype)
    pool, host = wide[:, :, ELEMENTS:], memory(dtype)[1].transpose(0, 1).contiguous().transpose(0, 1)
    block, rest = pool[:, 1].clone(), wide[:, :, :ELEMENTS].clone()
    move(pool, host, [(1, NUM_BLOCKS), (NUM_BLOCKS, 0)])
    assert_same_bits(host[0], block)
    assert_same_bits(pool[:, 0], block)
    assert_same_bits(wide[:, :, :ELEMENTS], rest)


def test_without_host_blocks_and_without_moves_there_is_nothing_to_do(dtype: torch.dtype) -> None:
    pool, host = memory(dtype)
    before = pool.clone()
    move(pool, host[:0], [])
    assert_same_bits(pool, before)
    move(pool, host[:0], [(0, 1)])
    assert_same_bits(pool[:, 1], before[:, 0])


@pytest.mark.parametrize(("name", "index"), [("moves_from", 0), ("moves_to", 1)])
@pytest.mark.parametrize("wrong", [-1, NUM_PLACES])
def test_a_place_outside_is_refused_before_anything_is_copied(name: str, index: int, wrong: int) -> None:
    pool, host = memory(torch.float32)
    before = pool.clone(), host.clone()
    bad = [2, 2]
    bad[index] = wrong
    with pytest.raises(ValueError, match=f"{name}: {wrong} is outside the {NUM_PLACES} places"):
        move(pool, host, [(0, 1), (bad[0], bad[1])])
    assert_same_bits(pool, before[0])
    assert_same_bits(host, before[1])


def test_shapes_and_dtypes_are_checked() -> None:
    pool, host = memory(torch.float32)
    one, two = torch.zeros(1, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    for message, arguments in {
        "pool: expected 3": (pool[0], host, one, one),
        "host: expected size 6": (pool, host[:, :5], one, one),
        "host: expected size 48": (pool, host[:, :, :47], one, one),
        "pool: the last dim": (pool.transpose(1, 2), host, one, one),
        "moves_from: expected 1": (pool, host, one[None], one),
        "moves_to: expected size 2": (pool, host, two, one),
    }.items():
        with pytest.raises(ValueError, match=message):
            ops.move_blocks(*arguments)
    with pytest.raises(TypeError, match="host: dtype differs"):
        ops.move_blocks(pool, host.bfloat16(), one, one)
    with pytest.raises(TypeError, match="moves_to: unsupported"):
        ops.move_blocks(pool, host, one, one.float())
