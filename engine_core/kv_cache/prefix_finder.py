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
        self._find = self._find_window if bounds.window else self._find_whole
        if bounds.num_window_groups:
            self._find = self._find_in_groups

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

    def _find_window(self, request: Request, lookup: Lookup) -> list[int]:
        """Look for the longest prefix of which the last window is cached; O(blocks of the request)."""
        block_size = self._bounds.block_size
        end = first = (request.num_stored_tokens - 1) // block_size
        self._extend_chain(request, end)
        hits: list[int] = []  # from `end` backwards to `first`
        while first > self._bounds.num_left(end * block_size):
            first -= 1
            place = lookup(request.block_hashes[first])
            if place is None:
                end = first
                hits.clear()
            else:
                hits.append(place)
        return [LEFT] * first + hits[::-1]

    def _find_in_groups(self, request: Request, lookup: Lookup) -> list[int]:
        """Look for the longest prefix of which the first group has all, and window groups the window."""
        whole = self._find_whole(request, lookup)
        num_groups, block_size = self._bounds.num_window_groups, self._bounds.block_size
        end = first = len(whole)
        places: list[int] = []  # of window groups, from `end` backwards to `first`
        while first > self._bounds.num_left(end * block_size):
            first -= 1
            names = group_names(request.block_hashes[first : first + 1], num_groups)
            found = [place for name in names if (place := lookup(name)) is not None]
            if len(found) < num_groups:
                end = first
                places.clear()
            else:
                places += found[::-1]
        return whole[:end] + [LEFT] * (first * num_groups) + places[::-1]
