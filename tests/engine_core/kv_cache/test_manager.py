from __future__ import annotations

import numpy as np
import pytest

from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.kv_cache.manager import KVCacheManager
from splitserve.engine_core.kv_cache.prefix_cache import PrefixCache
from splitserve.engine_core.kv_cache.window import LEFT, LayerWindows, bound_rows
from splitserve.engine_core.request import Request
from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.engine_core.requests import make_request


def make_manager(
    num_blocks: int = 8, *, caching: bool = True, window: int = 0, max_chunk: int = 8
) -> KVCacheManager:
    bounds = bound_rows(num_blocks, 2, max_chunk, LayerWindows(window))
    return KVCacheManager(
        PrefixCache(num_blocks, b"x" * 32), bounds, max_num_seqs=4, enable_prefix_caching=caching
    )


def index(manager: KVCacheManager, row: int, request: Request, num_computed_tokens: int) -> None:
    manager.indexer.index_full_blocks(np.array([row]), [request], np.array([num_computed_tokens]))


def test_a_prompt_gets_all_its_blocks_at_once() -> None:
    manager = make_manager()
    assert manager.admit(0, make_request([1, 2, 3, 4, 5]), 0) == 0
    assert manager.tables[0] == [0, 1, 2]
    assert manager.capacity[0] == 6


def test_a_second_request_shares_the_full_blocks_of_an_indexed_prefix() -> None:
    manager = make_manager()
    first = make_request([1, 2, 3, 4, 5])
    manager.admit(0, first, 0)
    index(manager, 0, first, 5)
    second = make_request([1, 2, 3, 4, 6, 7])
    assert manager.admit(1, second, 0) == 4
    assert manager.tables[1][:2] == manager.tables[0][:2]
    assert manager.tables[1][2] not in manager.tables[0]
    manager.check_integrity({0: 5, 1: 4})


def test_a_fully_cached_prompt_still_computes_its_last_token() -> None:
    manager = make_manager()
    first = make_request([1, 2, 3, 4])
    manager.admit(0, first, 0)
    index(manager, 0, first, 4)
    assert manager.admit(1, make_request([1, 2, 3, 4]), 0) == 2


def test_a_prefix_is_found_only_once_it_is_computed() -> None:
    manager = make_manager()
    first = make_request([1, 2, 3, 4, 5])
    manager.admit(0, first, 0)
    assert manager.admit(1, make_request([1, 2, 3, 4, 5]), 0) == 0
    index(manager, 0, first, 3)
    assert manager.admit(2, make_request([1, 2, 3, 4, 5]), 0) == 2


def test_other_namespaces_share_nothing() -> None:
    manager = make_manager()
    first = make_request([1, 2, 3, 4, 5])
    manager.admit(0, first, 0)
    index(manager, 0, first, 5)
    assert manager.admit(1, make_request([1, 2, 3, 4, 5], namespace=b"m" * 32), 0) == 0


def test_prompt_logprobs_and_switched_off_caching_find_nothing() -> None:
    for caching, sampling in (
        (True, SequenceSampling(seed=0, prompt_logprobs=0)),
        (False, SequenceSampling(seed=0)),
    ):
        manager = make_manager(caching=caching)
        first = make_request([1, 2, 3, 4, 5])
        manager.admit(0, first, 0)
        if caching:
            index(manager, 0, first, 5)
        assert manager.admit(1, make_request([1, 2, 3, 4, 5], sampling=sampling), 0) == 0


def test_a_cached_prefix_outlives_its_request_until_its_blocks_are_needed() -> None:
    manager = make_manager(num_blocks=4)
    first = make_request([1, 2, 3, 4, 5])
    manager.admit(0, first, 0)
    index(manager, 0, first, 5)
    manager.free(0)
    assert manager.cache.pool.num_free == 4
    assert manager.admit(0, make_request([1, 2, 3, 4, 5]), 0) == 4
    manager.free(0)
    manager.admit(1, make_request([9] * 8), 0)
    manager.free(1)
    assert manager.admit(0, make_request([1, 2, 3, 4, 5]), 0) == 0
    manager.check_integrity({0: 0})


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    manager = make_manager(num_blocks=3)
    first = make_request([1, 2, 3, 4, 5, 6, 7][:6])
    manager.admit(0, first, 0)
    index(manager, 0, first, 6)
    manager.free(0)
    manager.admit(1, make_request([9, 9]), 0)
    manager.free(1)
    assert len(manager.find_prefix(make_request([1, 2, 3, 4, 5, 6, 7]))) == 2


def test_a_refused_admission_changes_nothing() -> None:
    manager = make_manager(num_blocks=3)
    first = make_request([1, 2, 3, 4])
    manager.admit(0, first, 0)
    index(manager, 0, first, 4)
    manager.free(0)
    # Two of the three free blocks are the hits themselves, so one is left for two new ones.
    assert manager.admit(1, make_request([1, 2, 3, 4, 5, 6, 7, 8]), 0) is None
    assert manager.admit(1, make_request([1, 2, 3, 4, 5, 6]), 1) is None
    assert manager.cache.pool.num_free == 3
    assert manager.admit(1, make_request([1, 2, 3, 4, 5, 6]), 0) == 4


def test_of_two_equal_blocks_only_the_first_is_indexed() -> None:
    manager = make_manager()
    first, second = make_request([1, 2, 3]), make_request([1, 2, 3])
    manager.admit(0, first, 0)
    manager.admit(1, second, 0)
    index(manager, 0, first, 3)
    index(manager, 1, second, 3)
    assert manager.find_prefix(make_request([1, 2, 3])) == [manager.tables[0][0]]
    manager.free(0)
    manager.free(1)
    manager.check_integrity({})


def test_reset_forgets_prefixes_but_not_tables() -> None:
    manager = make_manager()
    first = make_request([1, 2, 3, 4, 5])
    manager.admit(0, first, 0)
    index(manager, 0, first, 5)
    assert manager.reset_prefix_cache() == 2
    assert manager.tables[0] == [0, 1, 2]
    assert manager.find_prefix(make_request([1, 2, 3, 4, 5])) == []
    manager.check_integrity({0: 5})


def test_integrity_finds_a_block_that_two_rows_may_write_to() -> None:
    manager = make_manager()
    manager.admit(0, make_request([1, 2, 3]), 0)
    manager.admit(1, make_request([1, 2, 3]), 0)
    stolen = manager.tables[0][1]
    manager.cache.pool.release([manager.tables[1][1]])
    manager.tables[1][1] = stolen
    manager.cache.pool.ref_counts[stolen] = 2
    with pytest.raises(IntegrityError, match="may still write"):
        manager.check_integrity({0: 3, 1: 3})


def test_integrity_finds_blocks_of_a_free_row() -> None:
    manager = make_manager()
    manager.admit(0, make_request([1, 2, 3]), 0)
    with pytest.raises(IntegrityError, match="row 0 is free but holds"):
        manager.check_integrity({})


def windowed(num_blocks: int = 16) -> KVCacheManager:
    return make_manager(num_blocks, window=5, max_chunk=4)


def advance(manager: KVCacheManager, row: int, request: Request, num_computed_tokens: int) -> None:
    index(manager, row, request, num_computed_tokens)
    manager.leave_window(np.array([row]), np.array([num_computed_tokens]))
    manager.check_integrity({row: num_computed_tokens})


def test_blocks_out_of_the_window_are_given_back_and_stay_cached() -> None:
    manager = windowed()
    request = make_request(range(12))
    manager.admit(0, request, 0)
    held = list(manager.tables[0])
    advance(manager, 0, request, 5)
    assert manager.tables[0][0] != LEFT
    advance(manager, 0, request, 6)  # the next query sees positions 2 to 6
    assert manager.tables[0] == [LEFT, *held[1:]]
    assert manager.cache.pool.num_free == 16 - len(held) + 1
    assert manager.cache.pool.is_cached(held[0])
    manager.free(0)
    manager.check_integrity({})
    assert manager.cache.pool.num_free == 16


def test_a_block_is_not_given_back_before_it_is_indexed() -> None:
    manager = windowed()
    request = make_request(range(12))
    manager.admit(0, request, 0)
    manager.leave_window(np.array([0]), np.array([8]))
    assert LEFT not in manager.tables[0]
    advance(manager, 0, request, 8)
    assert manager.tables[0][:2] == [LEFT, LEFT]


def test_a_long_prompt_gets_only_what_it_ever_holds_at_once() -> None:
    manager = windowed(num_blocks=8)
    assert manager.admit(0, make_request(range(50)), 0) == 0
    assert len(manager.tables[0]) == manager.bounds.groups[0].max_blocks == 5


def indexed_and_freed(manager: KVCacheManager, num_tokens: int) -> Request:
    request = make_request(range(num_tokens))
    manager.admit(0, request, 0)
    index(manager, 0, request, num_tokens)
    manager.free(0)
    return request


def forget(manager: KVCacheManager, request: Request, place: int) -> None:
    block_id = manager.cache.index.lookup(request.block_hashes[place])
    assert block_id is not None
    manager.cache.index.forget(block_id)


def test_a_windowed_hit_needs_only_what_the_next_token_sees() -> None:
    manager = windowed()
    first = indexed_and_freed(manager, 10)
    seen = [manager.cache.index.lookup(block_hash) for block_hash in first.block_hashes[3:]]
    for place in range(3):
        forget(manager, first, place)
    again = make_request(range(12))
    assert manager.find_prefix(again) == [LEFT, LEFT, LEFT, *seen]
    assert manager.admit(2, again, 0) == 10
    assert manager.first_block(2) == 3
    assert manager.tables[2][:5] == [LEFT, LEFT, LEFT, *seen]


def test_a_gap_in_the_window_shortens_the_hit() -> None:
    manager = windowed()
    first = indexed_and_freed(manager, 10)
    seen = [manager.cache.index.lookup(block_hash) for block_hash in first.block_hashes[2:4]]
    forget(manager, first, 4)
    # 10 tokens would need place 4; 8 tokens need places 2 and 3.
    assert manager.find_prefix(make_request(range(11))) == [LEFT, LEFT, *seen]


def test_the_check_sees_a_block_given_back_too_early() -> None:
    manager = windowed()
    request = make_request(range(12))
    manager.admit(0, request, 0)
    advance(manager, 0, request, 8)
    with pytest.raises(IntegrityError, match="inside its window"):
        manager.check_integrity({0: 7})
