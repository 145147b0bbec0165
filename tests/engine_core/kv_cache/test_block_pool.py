from __future__ import annotations

import pytest

from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.kv_cache.block_pool import BlockPool


def test_plain_blocks_go_out_lowest_first() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) == ([0, 1, 2], 0)
    assert pool.num_free == 1


def test_plain_blocks_go_before_cached_ones() -> None:
    pool = BlockPool(3)
    pool.allocate(3)
    pool.mark_cached([1])
    pool.release([1, 2, 0])
    block_ids, num_evicted = pool.allocate(3)
    assert set(block_ids[:2]) == {0, 2}
    assert block_ids[2:] == [1]
    assert num_evicted == 1


def test_the_least_recently_freed_cached_block_is_evicted_first() -> None:
    pool = BlockPool(3)
    pool.allocate(3)
    for block_id in range(3):
        pool.mark_cached([block_id])
    pool.release([2, 0, 1])
    assert pool.allocate(2) == ([2, 0], 2)
    assert not pool.is_cached(2)
    assert pool.is_cached(1)


def test_a_hit_takes_a_block_out_of_the_middle_of_the_free_list() -> None:
    pool = BlockPool(3)
    pool.allocate(3)
    for block_id in range(3):
        pool.mark_cached([block_id])
    pool.release([0, 1, 2])
    pool.acquire(1)
    assert pool.num_free == 2
    assert pool.allocate(2).block_ids == [0, 2]


def test_a_shared_block_is_free_only_after_its_last_release() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    pool.mark_cached([0])
    pool.acquire(0)
    pool.release([0])
    assert pool.num_free == 0
    pool.release([0])
    assert pool.num_free == 1


def test_releasing_too_often_is_caught() -> None:
    pool = BlockPool(1)
    with pytest.raises(AssertionError):
        pool.release([0])


def test_uncached_blocks_are_not_shared() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    with pytest.raises(AssertionError):
        pool.acquire(0)


def test_uncache_all_keeps_every_block_free() -> None:
    pool = BlockPool(2)
    pool.allocate(2)
    pool.mark_cached([0])
    pool.release([0, 1])
    pool.uncache_all()
    assert pool.num_free == 2
    assert pool.allocate(2).num_evicted == 0
    pool.check_integrity({0: 1, 1: 1})


@pytest.mark.parametrize("references", [{}, {0: 2}, {0: 1, 1: 1}])
def test_integrity_compares_ref_counts_with_the_tables(references: dict[int, int]) -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    pool.check_integrity({0: 1})
    with pytest.raises(IntegrityError, match="ref count"):
        pool.check_integrity(references)


def test_integrity_finds_a_lost_block() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    pool.ref_counts[0] = 0
    with pytest.raises(IntegrityError, match="0 used and 1 free blocks of 2"):
        pool.check_integrity({})
