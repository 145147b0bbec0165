"""Which waiting requests should wait for a prefix that a running row is computing right now?

Requests with the same prefix often arrive together: the n sequences of one prompt, or a burst sharing one
system prompt. The first is admitted and computes; the others follow it until the full blocks they share
are indexed, and are then admitted with a prefix hit. Without this each of them would compute and store the
same blocks, as a prefix can be found only once it is computed.

A request follows only a row that is served before it in the order, so this delays nobody's first token by
more than the steps in flight. When the leader is preempted or ends, its followers look again: one of them
goes on, and the others follow that one.
"""

from __future__ import annotations

import numpy as np

from splitserve.engine_core.kv_cache.manager import KVCacheManager
from splitserve.engine_core.request import TOKEN_BYTES, Request, RequestState
from splitserve.engine_core.scheduler.running import RunningRows


class Followers:
    """Decides over one waiting request at a time; the state is `leader` and `num_awaited_tokens` of each."""

    def __init__(self, kv: KVCacheManager, running: RunningRows) -> None:
        self._kv = kv
        self._running = running
        # The next request often has the prefix of the last leader, and then need not hash it again.
        self._last_leader: Request | None = None

    def is_held(self, request: Request) -> bool:
        """Whether a request that could be admitted should wait for its leader; O(1) while the leader runs."""
        leader = request.leader
        if leader is not None:
            if self._computes(leader, request.num_awaited_tokens):
                return True
            self._adopt_hashes(request, leader)
            request.leader = None
        if not len(self._kv.indexer.announced) or request.needs_all_tokens:
            return False
        if self._last_leader is not None:
            self._adopt_hashes(request, self._last_leader)
        leader = self._find_leader(request)
        if leader is None:
            return False
        request.leader = self._last_leader = leader
        request.num_awaited_tokens = self._num_shared_tokens(request, leader)
        return True

    def _computes(self, leader: Request, num_tokens: int) -> bool:
        if leader.state is not RequestState.RUNNING:
            return False
        return int(self._kv.indexer.next_hash_at[leader.row]) <= num_tokens

    def _find_leader(self, request: Request) -> Request | None:
        """Return the request ahead of it that is computing the first full block it lacks."""
        row = self._kv.indexer.row_filling(request, self._kv.num_cached_blocks(request))
        if row is None:
            return None
        leader = self._running.request_at(row)
        return leader if leader.sort_key < request.sort_key else None

    def _adopt_hashes(self, request: Request, other: Request) -> None:
        """Copy the hashes of common blocks: 256 followers of 8,000 tokens would spend 90 ms hashing."""
        num_known = len(request.block_hashes)
        if num_known < len(other.block_hashes) and request.namespace == other.namespace:
            num_blocks = self._num_shared_tokens(request, other) // self._kv.block_size
            request.block_hashes += other.block_hashes[num_known:num_blocks]

    def _num_shared_tokens(self, request: Request, other: Request) -> int:
        """Return the length in tokens of their common full blocks, excluding the request's last token."""
        block_size = self._kv.block_size
        num_blocks = min(request.num_stored_tokens - 1, other.num_stored_tokens) // block_size
        end = num_blocks * block_size * TOKEN_BYTES
        # Slices copy: an array that views a request's own column would keep the column from growing.
        ours, theirs = request.token_ids[:end], other.token_ids[:end]
        if ours == theirs:
            return num_blocks * block_size
        differing = (np.frombuffer(ours, "<i4") != np.frombuffer(theirs, "<i4")).nonzero()[0]
        return int(differing[0]) // block_size * block_size
