"""Layers with a window beside layers that see all tokens: two tables of a row, one pool."""

from __future__ import annotations

import numpy as np
import pytest

from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.kv_cache.block_hash import group_names
from splitserve.engine_core.kv_cache.costs import KVCosts
from splitserve.engine_core.kv_cache.manager import KVCacheManager
from splitserve.engine_core.kv_cache.prefix_cache import PrefixCache
from splitserve.engine_core.kv_cache.window import LEFT, LayerWindows, bound_rows
from splitserve.engine_core.request import Request
from tests.engine_core.requests import make_request

BLOCK = 2
WINDOW = 4
NUM_GROUPS = 2


def make_manager(
    num_blocks: int = 60, max_chunk: int = 4, windows: tuple[int, ...] = (WINDOW,) * NUM_GROUPS
) -> KVCacheManager:
    bounds = bound_rows(num_blocks, BLOCK, max_chunk, LayerWindows(0, windows))
    cache = PrefixCache(num_blocks, b"x" * 32, num_window_groups=len(windows))
    return KVCacheManager(cache, bounds, max_num_seqs=4)


def advance(manager: KVCacheManager, row: int, request: Request, num_computed: int) -> None:
    """Compute, index, and give back what has left."""
    rows, computed = np.array([row]), np.array([num_computed])
    manager.indexer.index_full_blocks(rows, [request], computed)
    manager.leave_window(rows, computed)


def computed(manager: KVCacheManager, num_tokens: int) -> Request:
    """A request that has computed its prompt in chunks, growing as it goes."""
    request = make_request(range(num_tokens))
    manager.admit(0, request, 0)
    for end in range(4, num_tokens + 1, 4):
        missing = -(-end // BLOCK) - len(manager.tables[0])
        if missing > 0:
            manager.grow(np.array([0]), np.array([missing]))
        advance(manager, 0, request, end)
    return request


def test_only_the_blocks_of_window_groups_leave() -> None:
    manager = make_manager()
    computed(manager, 24)
    assert LEFT not in manager.tables[0]
    # Token 24 sees positions from 21 on: 10 blocks of each group have left.
    assert manager.first_window_block(0) == 10
    assert manager.window_tables[0][: 10 * NUM_GROUPS] == [LEFT] * 10 * NUM_GROUPS
    assert len(manager.in_windows(0)) == 2 * NUM_GROUPS
    assert manager.cache.pool.num_free == 60 - 12 - 2 * NUM_GROUPS
    manager.check_integrity({0: 24})


def test_a_long_prompt_gets_what_windows_hold_at_once_and_the_rest_is_promised() -> None:
    manager = make_manager()
    assert manager.admit(0, make_request(range(80)), 0) == 0
    num_held = manager.bounds.groups[1].max_blocks
    assert len(manager.tables[0]) == num_held == 5
    assert manager.cache.pool.num_free == 60 - 3 * num_held
    # Of the 45 free blocks 35 are promised to the first row.
    assert manager.admit(1, make_request(range(100, 108)), 0) is None
    assert manager.admit(1, make_request(range(100, 106)), 0) == 0
    manager.free(0)
    assert manager.admit(2, make_request(range(100, 108)), 0) == 0


def test_rows_grow_by_a_block_of_each_group() -> None:
    manager = make_manager()
    for row in (0, 1):
        manager.admit(row, make_request([1 + row]), 0)
    rows, block_ids = manager.grow(np.array([0, 1]), np.array([2, 1]))
    assert rows == [0, 0, 1]
    assert len(block_ids) == 3 * (1 + NUM_GROUPS)
    assert manager.tables[0][1:] == [block_ids[0], block_ids[3]]
    assert manager.window_tables[0][NUM_GROUPS:] == [*block_ids[1:3], *block_ids[4:6]]
    assert manager.window_tables[1][NUM_GROUPS:] == block_ids[7:9]
    manager.check_integrity({0: 1, 1: 1})


def test_a_hit_needs_all_blocks_of_the_first_group_and_the_window_of_the_others() -> None:
    manager = make_manager()
    computed(manager, 24)
    row_blocks, in_windows = manager.tables[0], manager.in_windows(0)
    again = make_request([*range(24), 7, 8])
    assert manager.num_cached_blocks(again) == 12
    assert manager.admit(1, again, 0) == 24
    assert manager.tables[1][:12] == row_blocks
    assert manager.first_window_block(1) == 10
    assert manager.in_windows(1)[: len(in_windows)] == in_windows
    manager.check_integrity({0: 24, 1: 24})


@pytest.mark.parametrize("group", [0, 1, 2])
def test_a_block_that_is_gone_shortens_the_hit(group: int) -> None:
    manager = make_manager()
    request = computed(manager, 24)
    manager.free(0)
    name = [request.block_hashes[10], *group_names(request.block_hashes[10:11], NUM_GROUPS)][group]
    block_id = manager.cache.index.lookup(name)
    assert block_id is not None
    manager.cache.index.forget(block_id)
    again = make_request([*range(24), 7, 8])
    # Without block 10 a hit of 11 or 12 blocks lacks it, whichever group has lost it: both see it.
    assert manager.num_cached_blocks(again) == 10


def test_blocks_of_groups_have_names_of_their_own() -> None:
    names = group_names([b"a" * 32, b"b" * 32], 2)
    assert len(set(names)) == 4
    assert all(len(name) == 33 for name in names)
    assert group_names([b"a" * 32], 0) == []


@pytest.mark.parametrize("windows", [(WINDOW,) * NUM_GROUPS, (20, 8, 8, 1)])
@pytest.mark.parametrize("num_blocks", [5, 7, 14, 15, 16, 40, 60])
def test_the_longest_sequence_fits_the_pool(num_blocks: int, windows: tuple[int, ...]) -> None:
    bounds = bound_rows(num_blocks, BLOCK, 4, LayerWindows(0, windows))
    assert bounds.max_blocks_for(bounds.max_cached_tokens) <= num_blocks
    assert bounds.max_blocks_for(bounds.max_cached_tokens + 1) > num_blocks


def test_what_a_row_is_made_of_when_it_decodes() -> None:
    bounds = bound_rows(10_000, 16, 2048, LayerWindows(0, (1024,) * 6))
    assert bounds.max_blocks_for(32768) == 2048 + 6 * 257
    assert bounds.blocks_decoding_at(32768) == 2048 + 6 * 66
    assert bounds.blocks_decoding_at(16) == 7


def test_a_free_row_keeps_no_promise_and_no_block() -> None:
    manager = make_manager()
    computed(manager, 24)
    manager.free(0)
    assert manager.cache.pool.num_free == 60
    manager.check_integrity({})


def test_blocks_that_are_not_trusted_are_found_in_no_group() -> None:
    manager = make_manager()
    computed(manager, 8)
    manager.distrust(0)
    assert len(manager.cache.index) == manager.first_window_block(0) * NUM_GROUPS


def test_the_check_sees_a_block_of_a_group_given_back_too_early() -> None:
    manager = make_manager()
    computed(manager, 24)
    with pytest.raises(IntegrityError, match="inside its window"):
        manager.check_integrity({0: 22})


def test_the_check_sees_a_block_that_a_group_lacks() -> None:
    manager = make_manager()
    computed(manager, 24)
    manager.cache.release([manager.window_tables[0].pop()], 0)
    with pytest.raises(IntegrityError, match="in 2 groups"):
        manager.check_integrity({0: 24})


def test_moving_a_prefix_moves_the_last_window_of_each_group() -> None:
    costs = KVCosts(lambda first, end: 10 * (end - first), 1, 16, LayerWindows(0, (32, 32)))
    # 20 blocks, and three of each of two groups, out and back: 52 ns for 3,200 ns of computing.
    assert costs.return_cost(0, 320, can_move=True) == 52


SEVERAL = (8, 4, 4)


def test_blocks_leave_with_the_window_of_their_group() -> None:
    manager = make_manager(80, windows=SEVERAL)
    request = computed(manager, 24)
    # Token 24 sees positions from 17 on in one group, and from 21 on in two.
    assert [manager.window_tables[0][group::3].count(LEFT) for group in range(3)] == [8, 10, 10]
    assert (manager.first_window_block(0), len(manager.in_windows(0))) == (8, 4 * 3)
    assert manager.cache.pool.num_free == 80 - 12 - 4 - 2 * 2
    manager.check_integrity({0: 24})
    again = make_request([*range(24), 7, 8])
    assert manager.admit(1, again, 0) == 24
    assert manager.in_windows(1)[: 4 * 3] == manager.in_windows(0)
    manager.check_integrity({0: 24, 1: 24})
    manager.free(0)
    manager.free(1)
    assert manager.cache.pool.num_free == 80
    # Block 9 is seen in the group of the wider window only.
    wide, *narrow = group_names(request.block_hashes[9:10], 3)
    for name in narrow:
        block_id = manager.cache.index.lookup(name)
        assert block_id is None or manager.cache.index.forget(block_id)
    assert manager.num_cached_blocks(again) == 12
    block_id = manager.cache.index.lookup(wide)
    assert block_id is not None
    manager.cache.index.forget(block_id)
    assert manager.num_cached_blocks(again) == 9


def test_a_long_prompt_is_promised_what_wider_windows_take_beyond_the_narrowest() -> None:
    manager = make_manager(90, windows=(20, 4))
    assert manager.admit(0, make_request(range(80)), 0) == 0
    # Five blocks of each of three groups now; 35 more of the first, and up to 13 in all of the wider window.
    # That leaves 32: the 14, 13 and 5 of a prompt of 14 blocks.
    assert [group.max_blocks for group in manager.bounds.groups[1:]] == [13, 5]
    assert manager.cache.pool.num_free == 90 - 3 * 5
    assert manager.admit(1, make_request(range(100, 130)), 0) is None
    assert manager.admit(1, make_request(range(100, 128)), 0) == 0
    assert manager.admit(2, make_request(range(200, 202)), 0) is None
    manager.free(0)
    assert manager.admit(2, make_request(range(200, 202)), 0) == 0


def test_windows_of_all_layers_bound_a_row_of_any_length() -> None:
    windows = LayerWindows(20, (8, 4))
    bounds = bound_rows(40, BLOCK, 4, windows)
    assert bounds.max_cached_tokens == 0
    assert bounds.max_blocks_for(10_000) == (13 + 7 + 5)
    # A smaller pool cuts the chunk, and one too small for any keeps all blocks.
    assert bound_rows(22, BLOCK, 4, windows).max_chunk == 3
    small = bound_rows(20, BLOCK, 4, windows)
    assert (small.has_window, small.max_cached_tokens) == (False, 20 // 3 * BLOCK)
