"""What ends a plan's admission: no row, no block, no token, or a follower at the head."""

from __future__ import annotations

import numpy as np

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.kv_cache.assembly import make_kv_cache_manager
from splitserve.engine_core.kv_cache.costs import KVCosts, nothing_known
from splitserve.engine_core.kv_cache.window import ALL_SEE_ALL
from splitserve.engine_core.request import Request, RequestState
from splitserve.engine_core.scheduler.pacing.chunks import Chunks
from splitserve.engine_core.scheduler.row_admission import Admitted, RowAdmission
from splitserve.engine_core.scheduler.running import RunningRows
from splitserve.engine_core.scheduler.stopping import StopRules
from splitserve.engine_core.scheduler.waiting.policies import make_queue
from tests.engine_core.requests import make_request

NO_ROWS = np.zeros(0, np.int64)


class Bench:
    """Three rows over a pool of blocks of 4 tokens, and a queue."""

    def __init__(self, num_blocks: int = 8) -> None:
        config = SchedulerConfig(max_num_seqs=3, num_blocks=num_blocks, block_size=4)
        self.waiting = make_queue("fcfs")
        self.running = RunningRows(config.max_num_seqs, config.block_size)
        costs = KVCosts(nothing_known, 0, config.block_size)
        self.kv = make_kv_cache_manager(config, b"s" * 32, ALL_SEE_ALL, costs, None)
        stops = StopRules(1000, [])
        self.admission = RowAdmission(config, self.waiting, self.running, self.kv, stops)
        self.num_arrived = 0

    def add(self, num_tokens: int, *, first: int | None = None) -> Request:
        arrival = self.num_arrived
        self.num_arrived += 1
        start = 100 * (arrival + 1) if first is None else first
        request = make_request(range(start, start + num_tokens), arrival=arrival)
        self.waiting.add(request)
        return request

    def admit(self, num_tokens: int = 100) -> Admitted:
        return self.admission.admit(Chunks(NO_ROWS, NO_ROWS, NO_ROWS), None, num_tokens, step=1)


def test_rows_are_given_from_the_head_while_there_are_any() -> None:
    bench = Bench()
    requests = [bench.add(3) for _ in range(4)]
    admitted = bench.admit()
    assert [row.row for row in admitted.new_rows] == [0, 1, 2]
    assert not admitted.is_short_of_blocks
    assert [request.state for request in requests] == [RequestState.RUNNING] * 3 + [RequestState.WAITING]
    assert bench.admission.started == requests[:3]


def test_the_last_row_gets_what_is_left_of_the_budget() -> None:
    bench = Bench()
    for _ in range(3):
        bench.add(6)
    chunks = bench.admit(num_tokens=8).chunks
    assert (chunks.rows.tolist(), chunks.num_tokens.tolist()) == ([0, 1], [6, 2])
    assert chunks.ends.tolist() == [6, 2]


def test_a_head_that_finds_too_few_blocks_says_so_and_holds_the_others_back() -> None:
    bench = Bench()
    bench.add(20)
    big, small = bench.add(20), bench.add(2)
    admitted = bench.admit()
    assert [row.row for row in admitted.new_rows] == [0]
    assert admitted.is_short_of_blocks
    assert {big.state, small.state} == {RequestState.WAITING}


def test_a_follower_is_passed_over_but_a_row_is_kept_for_it() -> None:
    bench = Bench(num_blocks=32)
    bench.add(10)
    follower = bench.add(10, first=100)
    others = [bench.add(3), bench.add(3)]
    admitted = bench.admit()
    assert len(admitted.new_rows) == 2
    assert follower.state is RequestState.WAITING
    assert [request.state for request in others] == [RequestState.RUNNING, RequestState.WAITING]
    assert bench.waiting.head() is follower, "what was set aside stands where it stood"


def test_lookups_and_hits_of_the_prefix_cache_are_counted_in_tokens() -> None:
    bench = Bench()
    first = bench.add(9)
    bench.admit()
    bench.kv.indexer.index_full_blocks(np.array([0]), [first], np.array([9]))
    second = bench.add(9, first=100)
    bench.admit()
    assert (bench.admission.num_queried_tokens, bench.admission.num_hit_tokens) == (18, 8)
    assert second.num_cached_tokens == 8
