"""move_blocks on a GPU: whole blocks between the pool and pinned host memory, one move after the other."""

import random

import pytest
import torch
from torch import Tensor

from tests.gpu.conftest import Gpu
from tests.worker.ops.helpers import assert_same_bits
from tests.worker.ops.test_move_blocks import ELEMENTS, NUM_BLOCKS, NUM_PLACES, memory, moved_one_by_one


def move(gpu: Gpu, pool: Tensor, host: Tensor, moves: list[tuple[int, int]]) -> None:
    columns = [torch.tensor([each[i] for each in moves], dtype=torch.int32) for i in (0, 1)]
    gpu.ops.move_blocks(pool, host, *columns)
    if not gpu.is_emulated:
        torch.cuda.synchronize()


# A vector, no whole vector, more than a launch takes at once over the bus.
@pytest.mark.parametrize("elements", [8, 3, 24000])
# Of the pool and the host, or of the pool alone, which more threads move.
@pytest.mark.parametrize("num_places", [NUM_PLACES, NUM_BLOCKS])
def test_any_list_does_what_its_moves_do_one_after_the_other(
    gpu: Gpu, elements: int, num_places: int, dtype: torch.dtype
) -> None:
    rng = random.Random(elements)
    cpu_pool, cpu_host = memory(dtype, elements)
    pool, host = cpu_pool.to(gpu.device, copy=True), gpu.pinned(cpu_host)
    # Few places, so most of them are read after they were written; some moves go nowhere.
    moves = [(rng.randrange(num_places), rng.randrange(num_places)) for _ in range(40)]
    expected_pool, expected_host = moved_one_by_one(cpu_pool, cpu_host, moves)
    move(gpu, pool, host, moves)
    assert_same_bits(pool.cpu(), expected_pool)
    assert_same_bits(host, expected_host)


def test_more_moves_than_one_launch_takes_keep_their_order(gpu: Gpu) -> None:
    rng = random.Random(0)
    cpu_pool, cpu_host = memory(torch.float16)
    pool, host = cpu_pool.to(gpu.device, copy=True), gpu.pinned(cpu_host)
    moves = [(rng.randrange(NUM_PLACES), rng.randrange(NUM_PLACES)) for _ in range(600)]
    expected_pool, expected_host = moved_one_by_one(cpu_pool, cpu_host, moves)
    move(gpu, pool, host, moves)
    assert_same_bits(pool.cpu(), expected_pool)
    assert_same_bits(host, expected_host)


def test_blocks_may_lie_in_strided_memory(gpu: Gpu, dtype: torch.dtype) -> None:
    cpu_pool, cpu_host = memory(dtype)
    wide = torch.cat([cpu_pool, cpu_pool], dim=2).to(gpu.device)
    host, rest = gpu.pinned(cpu_host), wide[:, :, :ELEMENTS].clone()
    move(gpu, wide[:, :, ELEMENTS:], host, [(1, NUM_BLOCKS), (NUM_BLOCKS, 0)])
    assert_same_bits(host[0], cpu_pool[:, 1])
    assert_same_bits(wide[:, 0, ELEMENTS:].cpu(), cpu_pool[:, 1])
    assert_same_bits(wide[:, :, :ELEMENTS], rest)


def test_without_host_blocks_and_without_moves_there_is_nothing_to_do(gpu: Gpu) -> None:
    cpu_pool, cpu_host = memory(torch.float32)
    pool = cpu_pool.to(gpu.device, copy=True)
    move(gpu, pool, cpu_host[:0], [])
    assert_same_bits(pool.cpu(), cpu_pool)
    move(gpu, pool, cpu_host[:0], [(0, 1)])
    assert_same_bits(pool[:, 1].cpu(), cpu_pool[:, 0])


@pytest.mark.parametrize(("name", "index"), [("moves_from", 0), ("moves_to", 1)])
@pytest.mark.parametrize("wrong", [-1, NUM_PLACES])
def test_a_place_outside_is_refused_before_anything_is_copied(
    gpu: Gpu, name: str, index: int, wrong: int
) -> None:
    cpu_pool, cpu_host = memory(torch.float32)
    pool = cpu_pool.to(gpu.device, copy=True)
    bad = [2, 2]
    bad[index] = wrong
    with pytest.raises(ValueError, match=f"{name}: {wrong} is outside the {NUM_PLACES} places"):
        move(gpu, pool, gpu.pinned(cpu_host), [(0, 1), (bad[0], bad[1])])
    assert_same_bits(pool.cpu(), cpu_pool)


@pytest.mark.gpu
def test_host_memory_that_is_not_pinned_is_refused(real_gpu: Gpu) -> None:
    cpu_pool, cpu_host = memory(torch.float32)
    with pytest.raises(ValueError, match="host: must be pinned memory"):
        move(real_gpu, cpu_pool.to(real_gpu.device), cpu_host, [(0, NUM_BLOCKS)])
