from __future__ import annotations

import numpy as np
import pytest

from engine_core.errors import IntegrityError
from engine_core.kv_cache.manager import KVCacheManager
from engine_core.request import Request
from engine_core.sampling_params import SamplingParams
from tests.engine_core.requests import make_request


def make_manager(num_blocks: int = 8, *, caching: bool = True) -> KVCacheManager:
    return KVCacheManager(
        num_blocks=num_blocks, block_size=2, max_num_seqs=4, secret=b"x" * 32, enable_prefix_caching=caching
    )


def index(manager: KVCacheManager, row: int, request: Request, num_computed_tokens: int) -> None:
    manager.index_full_blocks(np.array([row]), [request], np.array([num_computed_tokens]))


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
        (True, SamplingParams(seed=0, prompt_logprobs=0)),
        (False, SamplingParams(seed=0)),
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
    assert manager.pool.num_free == 4
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
    assert manager.pool.num_free == 3
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
    manager.pool.release([manager.tables[1][1]])
    manager.tables[1][1] = stolen
    manager.pool.ref_counts[stolen] = 2
    with pytest.raises(IntegrityError, match="may still write"):
        manager.check_integrity({0: 3, 1: 3})


def test_integrity_finds_blocks_of_a_free_row() -> None:
    manager = make_manager()
    manager.admit(0, make_request([1, 2, 3]), 0)
    with pytest.raises(IntegrityError, match="row 0 is free but holds"):
        manager.check_integrity({})
