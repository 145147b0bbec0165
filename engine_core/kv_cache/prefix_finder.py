"""Which places hold the longest cached prefix of a waiting request?

A place is a block of the pool or a slot of the CPU offload tier, numbered in that order; see
engine_core.kv_cache.offload.
"""

from __future__ import annotations

from collections.abc import Callable

from splitserve.engine_core.kv_cache.block_hash import extend_chain, group_names
from splitserve.engine_core.kv_cache.offload import Offload
from splitserve.engine_core.kv_cache.prefix_index import PrefixIndex
from splitserve.engine_core.kv_cache.window import LEFT, RowBounds
from splitserve.engine_core.request import TOKEN_BYTES, Request

Lookup = Callable[[bytes], int | None]


class PrefixFinder:
    """Looks prefixes up in the index and, if there is one, in the CPU offload; keeps nothing of its own."""

    def __init__(self, index: PrefixIndex, offload: Offload | None, bounds: RowBounds) -> None:
        self._index = index
        self._offload = offload
        self._bounds = bounds
        self._block_bytes = bounds.block_size * TOKEN_BYTES
        self._keeps_first = not bounds.groups[0].window
        # Of each group whose blocks must be there for a window only.
        of_groups = [group.window for group in bounds.groups for _ in range(group.num_groups)]
        self._windows = of_groups[1:] if self._keeps_first else of_groups
        self._find = self._find_last_windows if self._windows else self._find_whole

    def find(self, request: Request) -> list[int]:
        """Return the places of all blocks of the prefix, LEFT for those that have left the window.

        If layers differ, the places of the first group are followed by one of each window group for each of
        them.

        The last token is left out: its logits are needed, so it is always computed. With a sliding window
        only what the next token sees must be cached. Places of the tier, and what comes behind them, are
        left out if computing is cheaper than loading.
        """
        if self._offload is None:
            return self._find(request, self._index.lookup)
        hits = self._find(request, self._lookup)
        num_loads = len(self._offload.loads(hits))
        if num_loads:
            in_pool = self._find(request, self._index.lookup)
            per_block = self._bounds.num_window_groups + 1
            found = len(in_pool) // per_block, len(hits) // per_block
            if not self._offload.is_worth_loading(*found, num_loads):
                return in_pool
        return hits

    def _extend_chain(self, request: Request, num_blocks: int) -> None:
        """Hash those of the first num_blocks blocks of a request that are not hashed yet."""
        extend_chain(
            request.block_hashes, request.namespace, request.token_ids, num_blocks, self._block_bytes
        )

    def _lookup(self, block_hash: bytes) -> int | None:
        """Return the place of a prefix's last block, in the pool rather than in the tier."""
        assert self._offload is not None, "without a tier the index is asked alone"
        block_id = self._index.lookup(block_hash)
        return self._offload.lookup(block_hash) if block_id is None else block_id

    def _find_whole(self, request: Request, lookup: Lookup) -> list[int]:
        """Look for the longest prefix of which all blocks are cached."""
        hits: list[int] = []
        hashes = request.block_hashes
        for i in range((request.num_stored_tokens - 1) // self._bounds.block_size):
            if i >= len(hashes):
                self._extend_chain(request, i + 1)
            place = lookup(hashes[i])
            if place is None:
                break
            hits.append(place)
        return hits

    def _find_last_windows(self, request: Request, lookup: Lookup) -> list[int]:
        """Look for the longest prefix of which every group has what the next token sees.

        O(blocks of the request). A first group that sees all tokens has all blocks of it.
        """
        if self._keeps_first:
            whole = self._find_whole(request, lookup)
            end = len(whole)
        else:
            whole, end = [], (request.num_stored_tokens - 1) // self._bounds.block_size
            self._extend_chain(request, end)
        first, num_left = end, self._num_left(end)
        found: list[list[int]] = []  # of the blocks from `end` backwards to `first`, in each group
        while first > min(num_left):
            first -= 1
            names = self._names(request.block_hashes[first])
            of_groups = zip(names, num_left, strict=True)
            looked_up = (LEFT if first < gone else lookup(name) for name, gone in of_groups)
            places = [place for place in looked_up if place is not None]
            if len(places) < len(names):
                end, num_left = first, self._num_left(first)
                found.clear()
            else:
                found.append(places)
        entries = [[LEFT] * len(self._windows)] * first + found[::-1]
        if not self._keeps_first:
            whole, entries = [entry[0] for entry in entries], [entry[1:] for entry in entries]
        return whole[:end] + [place for entry in entries for place in entry]

    def _num_left(self, num_blocks: int) -> list[int]:
        """Return how many blocks of a prefix the next token does not see, in each group with a window."""
        computed = num_blocks * self._bounds.block_size
        return [self._bounds.num_left(window, computed) for window in self._windows]

    def _names(self, block_hash: bytes) -> list[bytes]:
        """Return the names of a block in each group with a window."""
        names = group_names([block_hash], self._bounds.num_window_groups)
        return names if self._keeps_first else [block_hash, *names]
