"""What one change of the pool means to the index, the CPU offload and the KV events."""

from __future__ import annotations

from collections import Counter

import pytest

from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.kv_cache.costs import KVCosts, nothing_known
from splitserve.engine_core.kv_cache.offload import Offload
from splitserve.engine_core.kv_cache.prefix_cache import PrefixCache
from splitserve.engine_core.kv_cache.window import LEFT
from splitserve.engine_core.kv_events.format import AllBlocksCleared, BlockRemoved, BlockStored, external_hash
from splitserve.engine_core.kv_events.recorder import KVEventRecorder
from splitserve.engine_core.request import Request
from tests.engine_core.requests import make_request

A, B, C, D = (bytes([i]) * 32 for i in range(1, 5))


class Bench:
    """A cache of 4 blocks of 2 tokens, an offload tier of 4, and a recorder."""

    def __init__(self) -> None:
        self.events = KVEventRecorder(2, has_offload_tier=True)
        self.offload = Offload(4, 4, KVCosts(nothing_known, 0, 2), kv_events=self.events)
        self.cache = PrefixCache(4, b"s" * 32, self.offload, self.events)
        self.events.take()

    def store(self, *hashes: bytes) -> tuple[Request, list[int]]:
        """Fill blocks with a request's prefix, index and report them."""
        request = make_request(range(1, 2 * len(hashes) + 1))
        request.block_hashes = list(hashes)
        block_ids = self.cache.allocate(len(hashes))
        self.cache.insert(list(hashes), block_ids)
        self.cache.report_stored(request, 0, block_ids)
        return request, block_ids


def test_an_evicted_prefix_is_forgotten_saved_and_reported() -> None:
    bench = Bench()
    _request, block_ids = bench.store(A)
    bench.cache.release(block_ids, 1)
    bench.events.take()
    bench.cache.allocate(4)
    assert bench.cache.index.lookup(A) is None
    assert bench.offload.lookup(A) == 4
    assert bench.offload.num_saved == 1
    assert BlockRemoved([external_hash(A)], "GPU") in bench.events.take()


def test_an_offloaded_prefix_is_loaded_indexed_and_reported_when_it_is_held() -> None:
    bench = Bench()
    request, block_ids = bench.store(A)
    bench.cache.release(block_ids, 1)
    rest = bench.cache.allocate(4)
    bench.cache.release(rest, 0)
    bench.events.take()
    place = bench.offload.lookup(A)
    assert place == 4
    (loaded,) = bench.cache.hold(request, [place])
    assert bench.cache.index.lookup(A) == loaded
    assert bench.cache.pool.ref_counts[loaded] == 1
    (event,) = bench.events.take()
    assert isinstance(event, BlockStored)
    assert (event.block_hashes, event.medium) == ([external_hash(A)], "GPU")
    bench.cache.check_integrity(Counter([loaded]))


def test_free_hits_and_loads_are_not_counted_as_free_blocks() -> None:
    cache = Bench().cache
    assert cache.is_enough_free([], 4)
    assert not cache.is_enough_free([], 5)
    hits = cache.allocate(2)
    cache.insert([A, B], hits)
    assert cache.is_enough_free(hits, 2), "hits in use take nothing"
    cache.release(hits, 2)
    assert cache.is_enough_free(hits, 2)
    assert not cache.is_enough_free(hits, 3), "the two hits are free blocks themselves"
    assert not cache.is_enough_free([4, 5], 3), "two places of the tier have to be loaded"
    assert cache.is_enough_free([LEFT, LEFT], 4), "what has left the window takes nothing"


def test_of_equal_blocks_the_first_serves_the_prefix() -> None:
    cache = Bench().cache
    first, second, third = cache.allocate(3)
    assert cache.insert([A, B], [first, second]) == [first, second]
    assert cache.insert([A], [third]) == []
    assert cache.index.lookup(A) == first
    assert not cache.pool.is_cached(third)


def test_only_inserted_blocks_are_reported_in_consecutive_runs() -> None:
    bench = Bench()
    request = make_request(range(1, 9))
    request.block_hashes = [A, B, C, D]
    bench.cache.report_stored(request, 0, [0, 1, 2, 3], {0, 2, 3})
    stored = [event.block_hashes for event in bench.events.take() if isinstance(event, BlockStored)]
    assert stored == [[external_hash(A)], [external_hash(C), external_hash(D)]]


def test_a_reset_forgets_every_level_and_leaves_blocks_in_use() -> None:
    bench = Bench()
    _request, block_ids = bench.store(A, B)
    bench.cache.release(block_ids[1:], 2)
    assert bench.cache.reset() == 2
    assert [bench.cache.index.lookup(key) for key in (A, B)] == [None, None]
    assert bench.events.take()[-1] == AllBlocksCleared()
    bench.cache.check_integrity(Counter(block_ids[:1]))


def test_integrity_finds_a_cached_mark_without_a_prefix() -> None:
    cache = Bench().cache
    (block_id,) = cache.allocate(1)
    cache.pool.mark_cached([block_id])
    with pytest.raises(IntegrityError, match="cached marks and index differ"):
        cache.check_integrity(Counter([block_id]))
