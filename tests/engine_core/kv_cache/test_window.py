from __future__ import annotations

import pytest

from splitserve.engine_core.kv_cache.window import LayerWindows, bound_rows


@pytest.mark.parametrize("window", [1, 2, 5, 8, 17])
@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_a_block_has_left_exactly_when_no_later_query_sees_any_of_it(window: int, block_size: int) -> None:
    bounds = bound_rows(100, block_size, 4, LayerWindows(window))
    for num_computed in range(60):
        first_seen = max(0, num_computed + 1 - window)
        assert bounds.num_left(window, num_computed) == first_seen // block_size
        num_left = bounds.num_left(window, num_computed)
        leaves_at = bounds.next_leave_at(window, num_left)
        assert leaves_at > num_computed
        assert bounds.num_left(window, leaves_at) == num_left + 1


def test_without_a_window_the_pool_limits_sequences() -> None:
    bounds = bound_rows(10, 4, 16)
    assert (bounds.has_window, bounds.max_chunk, bounds.max_cached_tokens) == (False, 16, 40)


def test_chunks_are_cut_so_that_one_row_fits_the_pool() -> None:
    bounds = bound_rows(10, 4, 1000, LayerWindows(9))
    assert bounds.max_chunk == 18
    assert bounds.max_blocks_for(10_000) == 10
    assert bounds.max_cached_tokens == 0


def test_a_pool_too_small_for_the_window_keeps_all_blocks() -> None:
    bounds = bound_rows(10, 4, 16, LayerWindows(35))
    assert (bounds.has_window, bounds.max_cached_tokens) == (False, 40)
