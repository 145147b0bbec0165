from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from splitserve.engine_core.kv_cache.costs import KVCosts, RecomputeNs, nothing_known
from splitserve.engine_core.kv_cache.manager import KVCacheManager
from splitserve.engine_core.kv_cache.prefix_cache import PrefixCache
from splitserve.engine_core.kv_cache.window import bound_rows
from splitserve.engine_core.request import Request
from splitserve.engine_core.scheduler.running import RunningRows
from splitserve.engine_core.scheduler.victims import Victims
from tests.engine_core.requests import make_request

BLOCK_SIZE = 4


class Batch:
    """Rows 0, 1, ... in order of arrival, each with a prompt and so many of its tokens computed."""

    def __init__(self, *, recompute_ns: RecomputeNs = nothing_known, rule: str = "cost") -> None:
        cache = PrefixCache(100, b"s" * 32)
        self.kv = KVCacheManager(cache, bound_rows(100, BLOCK_SIZE, 64), max_num_seqs=8)
        self.running = RunningRows(8, BLOCK_SIZE)
        self.victims = Victims(rule, self.kv, self.running, KVCosts(recompute_ns, 0, BLOCK_SIZE))

    def add(self, prompt: Sequence[int], num_computed: int | None = None, priority: int = 0) -> Request:
        row = len(self.running)
        request = make_request(prompt, arrival=row, priority=priority)
        num_cached = self.kv.admit(row, request, 0)
        assert num_cached is not None
        self.running.admit(row, request, step=1, num_cached_tokens=num_cached)
        computed = len(prompt) if num_computed is None else num_computed
        self.running.num_computed_tokens[row] = computed
        self.kv.indexer.index_full_blocks(np.array([row]), [request], np.array([computed]))
        return request


def prompt(start: int, length: int) -> list[int]:
    return list(range(start, start + length))


def test_last_in_takes_the_last_row_whatever_it_costs() -> None:
    batch = Batch(rule="last")
    batch.add(prompt(1, 8))
    batch.add(prompt(20, 8), num_computed=0)
    batch.add(prompt(40, 8))
    assert batch.victims.choose(0) == 2


def test_of_equal_rows_the_last_gives_way() -> None:
    batch = Batch()
    for start in (1, 20, 40):
        batch.add(prompt(start, 8))
    assert batch.victims.choose(0) == 2


def test_a_half_computed_prompt_goes_before_a_computed_one() -> None:
    batch = Batch()
    batch.add(prompt(1, 8))
    batch.add(prompt(20, 8), num_computed=4)
    batch.add(prompt(40, 8))
    assert batch.victims.choose(0) == 1


def test_long_sequences_cost_more_per_block_when_context_costs() -> None:
    batch = Batch(recompute_ns=lambda first, end: end * end - first * first)
    batch.add(prompt(1, 8))
    batch.add(prompt(20, 8))
    batch.add(prompt(40, 40))
    assert batch.victims.choose(0) == 1


def test_nobody_before_the_row_in_need_gives_way() -> None:
    batch = Batch()
    batch.add(prompt(1, 8), num_computed=0)
    batch.add(prompt(20, 8))
    batch.add(prompt(40, 8))
    assert batch.victims.choose(1) == 2
    assert batch.victims.choose(2) == 2


def test_only_the_worst_priority_behind_the_row_gives_way() -> None:
    batch = Batch()
    batch.add(prompt(1, 8))
    batch.add(prompt(20, 8), num_computed=0)
    batch.add(prompt(40, 8), priority=1)
    batch.add(prompt(60, 8), priority=1, num_computed=7)
    assert batch.victims.choose(0) == 3


def test_shared_blocks_free_nothing_and_cost_nothing() -> None:
    # Row 2 has three of its four blocks from row 1, so what it frees, one block, costs less than row 3's.
    batch = Batch(recompute_ns=lambda first, end: 10 * (end - first) + (100 if end > 15 else 0))
    batch.add(prompt(1, 8))
    batch.add(prompt(20, 13), num_computed=13)
    batch.add([*prompt(20, 12), 7], num_computed=13)
    batch.add(prompt(60, 16))
    assert batch.victims.choose(0) == 2
    # Row 1 shares them too and frees as little.
    assert batch.victims._price(1) == batch.victims._price(2)


def test_a_row_of_shared_blocks_only_is_the_last_resort() -> None:
    batch = Batch()
    batch.add(prompt(1, 8))
    batch.add(prompt(60, 32))
    shared = batch.add(prompt(20, 9), num_computed=8)
    batch.kv.cache.pool.acquire(batch.kv.tables[shared.row][0])
    batch.kv.cache.pool.acquire(batch.kv.tables[shared.row][1])
    batch.kv.tables[shared.row].pop()
    assert batch.victims.choose(0) == 1
