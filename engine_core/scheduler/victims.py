"""Which row is preempted when a row needs a block and none is free?

One that comes after the row in need, from the worst priority class there; if there is none, the row itself.
Among the candidates "last" takes the last in order, and "cost" the one that is cheapest to bring back per
block it frees, the last one if several are equal.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from itertools import takewhile

from splitserve.engine_core.kv_cache.costs import KVCosts
from splitserve.engine_core.kv_cache.manager import KVCacheManager
from splitserve.engine_core.scheduler.running import RunningRows

# Prices are integers, scaled so that fractions of a nanosecond, or token, per block still count.
SCALE = 2**20


class Victims:
    """Chooses among the running rows; keeps no state."""

    def __init__(self, rule: str, kv: KVCacheManager, running: RunningRows, costs: KVCosts) -> None:
        self._by_cost = rule == "cost"
        self._kv = kv
        self._running = running
        self._costs = costs

    def choose(self, row: int) -> int:
        """Return the row to preempt for a running one; O(rows behind it, log of their blocks each)."""
        order = self._running.order
        last = int(order[-1])
        if not self._by_cost or last == row:
            return last
        worst = self._running.request_at(last).sort_key[0]
        candidates = takewhile(
            lambda other: other != row and self._running.request_at(other).sort_key[0] == worst,
            order[::-1].tolist(),
        )
        victim: int = min(candidates, key=self._price)
        return victim

    def _price(self, row: int) -> int:
        """Return the cost of bringing a row back per block that it frees.

        Shared blocks are assumed to be its first ones, as with prefixes they are, except for rows that
        computed equal blocks side by side.
        """
        ref_counts, table = self._kv.cache.pool.ref_counts, self._kv.tables[row]
        lo = self._kv.first_block(row)
        first = bisect_left(table, True, lo=lo, key=lambda block_id: ref_counts[block_id] == 1)
        if first == len(table):
            return sys.maxsize
        num_computed = int(self._running.num_computed_tokens[row])
        cost = self._costs.return_cost(first, num_computed, can_move=self._kv.cache.offload is not None)
        num_freed = sum(
            leaving.num_groups * (len(table) - max(first, leaving.num_left(row)))
            for leaving in self._kv.leaving
        )
        return cost * SCALE // num_freed
