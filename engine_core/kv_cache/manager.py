"""Which blocks does each running row take, share, cache and give back? The rows' block tables.

A block freed while a step that uses it is still in flight may be handed out by the next plan. That is safe:
workers run steps in the order they were planned, so every read and write of the older step is over before
the new owner's first write. Two rules make it so for shared blocks too. A block is indexed only after the
step that filled it has been applied, so a hit never reads KV not yet written. And rows only write
past their num_computed_tokens, while indexed blocks lie wholly below it, so no step in flight writes to an
indexed block. A block loaded from the CPU offload is indexed at once: the move is done before the step
computes that it is planned with, and every step that may use the block comes later.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.kv_cache.block_indexer import NEVER, BlockIndexer
from splitserve.engine_core.kv_cache.prefix_cache import PrefixCache
from splitserve.engine_core.kv_cache.prefix_finder import PrefixFinder
from splitserve.engine_core.kv_cache.window import LEFT, RowBounds
from splitserve.engine_core.request import Request

IntColumn = npt.NDArray[np.int64]


class KVCacheManager:
    """One block table per row over a cache of prefixes.

    Attributes:
        cache: the blocks and the prefixes they hold.
        indexer: which blocks of the rows can be found as prefixes.
        tables: block ids by row; LEFT where a block has left the window of a sliding-window model.
        capacity: int64 [max_num_seqs]; tokens that a row's blocks hold, 0 for free rows.
        next_leave_at: int64 [max_num_seqs]; num_computed_tokens at which its next block leaves the window.
        bounds: what a row may hold.

    Args:
        cache: with nothing in use.
        bounds: see bound_rows().
        max_num_seqs: rows.
        enable_prefix_caching: whether rows find prefixes and leave theirs behind.
    """

    def __init__(
        self, cache: PrefixCache, bounds: RowBounds, max_num_seqs: int, *, enable_prefix_caching: bool = True
    ) -> None:
        self.cache = cache
        self.bounds = bounds
        self.block_size = bounds.block_size
        self.tables: list[list[int]] = [[] for _ in range(max_num_seqs)]
        self.capacity = np.zeros(max_num_seqs, np.int64)
        self.next_leave_at = np.full(max_num_seqs, NEVER)
        self.indexer = BlockIndexer(cache, self.tables, bounds.block_size)
        self._finder = PrefixFinder(cache.index, cache.offload, bounds)
        self._enable_prefix_caching = enable_prefix_caching

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks num_tokens take."""
        return -(-num_tokens // self.block_size)

    def max_blocks_for(self, num_tokens: int) -> int:
        """Return the most blocks a row holds at any one time while it computes num_tokens."""
        return min(self.num_blocks_for(num_tokens), self.bounds.max_blocks)

    def find_prefix(self, request: Request) -> list[int]:
        """Return the places of the longest cached prefix that a waiting request may use."""
        if not self._enable_prefix_caching or request.needs_all_tokens:
            return []
        return self._finder.find(request)

    def admit(self, row: int, request: Request, num_spare_blocks: int) -> int | None:
        """Give a free row blocks for all known tokens of a request, shared ones first.

        The whole prompt is allocated at once, so that a half-prefilled request never has to wait for, or
        preempt others over, blocks that admission already saw. With a sliding window that is as many as
        the row ever holds at once. Offloaded hits are loaded, however many they are.

        Args:
            row: the row it will have.
            request: waiting.
            num_spare_blocks: blocks that must stay free afterwards.

        Returns:
            Tokens whose KV is cached, or None when the blocks do not suffice; nothing has changed then.
        """
        hits = self.find_prefix(request)
        num_new = self._num_new_blocks(request, hits, num_spare_blocks)
        if num_new is None:
            return None
        assert not self.tables[row], "the row must be free"
        self.tables[row] = self.cache.hold(request, hits) + self.cache.allocate(num_new)
        self.capacity[row] = len(self.tables[row]) * self.block_size
        if self._enable_prefix_caching:
            self.indexer.begin(row, request, len(hits))
        if self.bounds.window:
            self.next_leave_at[row] = self.bounds.next_leave_at(hits.count(LEFT))
        return len(hits) * self.block_size

    def load_ahead(self, request: Request, num_spare_blocks: int) -> bool:
        """Load the first blocks of a prefix that has more offloaded blocks than one step may load.

        They become cached blocks of the pool, the last to be evicted, where the request finds them when the
        next steps have loaded the others.

        Args:
            request: waiting, the next to be admitted.
            num_spare_blocks: blocks that must stay free when it is.

        Returns:
            Whether the request has to wait for that. Also False if it has to wait for free blocks.
        """
        offload = self.cache.offload
        if offload is None:
            return False
        hits = self.find_prefix(request)
        loads = offload.loads(hits)
        num_now = offload.num_loads_left()
        if len(loads) <= num_now or self._num_new_blocks(request, hits, num_spare_blocks) is None:
            return False
        hits = hits[: hits.index(loads[num_now])]
        held = self.cache.hold(request, hits)[hits.count(LEFT) :]
        self.cache.release(held[::-1], len(hits))
        return True

    def grow(self, rows: IntColumn, counts: IntColumn) -> tuple[list[int], list[int]]:
        """Append new blocks to the tables of rows, all allocated in one call.

        Args:
            rows: int64 [k], each once.
            counts: int64 [k], blocks for each; the caller has checked num_free.

        Returns:
            Row and block of each that was appended, those of the first row first.
        """
        grown = rows.repeat(counts).tolist()
        block_ids = self.cache.allocate(len(grown))
        self.capacity[rows] += counts * self.block_size
        tables = self.tables
        for row, block_id in zip(grown, block_ids, strict=True):
            tables[row].append(block_id)
        return grown, block_ids

    def num_left(self, row: int) -> int:
        """Return how many of a row's first blocks have left its window."""
        if not self.bounds.window:
            return 0
        return (int(self.next_leave_at[row]) - self.bounds.window + 1) // self.block_size - 1

    def leave_window(self, rows: IntColumn, num_computed_tokens: IntColumn) -> None:
        """Give back the blocks that no later query of the rows sees; they become the first to be evicted.

        A step in flight may still read them; see above why that is safe. Blocks that are yet to be indexed
        are kept until they are.

        Args:
            rows: int64 [n], in use.
            num_computed_tokens: int64 [n], steps in flight included.
        """
        leaving = (num_computed_tokens >= self.next_leave_at[rows]).nonzero()[0]
        for row, computed in zip(rows[leaving].tolist(), num_computed_tokens[leaving].tolist(), strict=True):
            num_indexed = self.indexer.num_indexed(row)
            first, end = self.num_left(row), min(self.bounds.num_left(computed), num_indexed)
            if first < end:
                self.cache.release(self.tables[row][first:end], num_indexed)
                self.tables[row][first:end] = [LEFT] * (end - first)
                self.next_leave_at[row] = self.bounds.next_leave_at(end)

    def free(self, row: int) -> None:
        """Give back a row's blocks; the end of the sequence becomes the first to be evicted."""
        self.cache.release(self.tables[row][self.num_left(row) :][::-1], self.indexer.num_indexed(row))
        self.tables[row] = []
        self.capacity[row] = 0
        self.next_leave_at[row] = NEVER
        self.indexer.end(row)

    def distrust(self, row: int) -> None:
        """Let nobody find the blocks of a row: what they hold may be why its request failed."""
        self.cache.uncache(self.tables[row][self.num_left(row) :])

    def reset_prefix_cache(self) -> int:
        """Forget every cached prefix; returns how many blocks held one. Running rows keep their blocks."""
        # Chains of running rows start from the old secret, so nobody will look for them.
        self.indexer.announced.clear()
        return self.cache.reset()

    def check_integrity(self, num_computed_tokens: dict[int, int]) -> None:
        """Check that tables, pool, index and columns agree.

        Args:
            num_computed_tokens: of every running row.

        Raises:
            IntegrityError: names the first disagreement.
        """
        references: Counter[int] = Counter()
        for row, table in enumerate(self.tables):
            held = table[self.num_left(row) :] if table else []
            if len(set(held)) != len(held) or LEFT in held or len(held) > self.bounds.max_blocks:
                raise IntegrityError(f"row {row} holds a block twice, none, or too many: {table}")
            if self.capacity[row] != len(table) * self.block_size:
                raise IntegrityError(f"row {row}: capacity {self.capacity[row]} with {len(table)} blocks")
            if table and row not in num_computed_tokens:
                raise IntegrityError(f"row {row} is free but holds blocks {table}")
            references.update(held)
        self.cache.check_integrity(references)
        self._check_sharing(references, num_computed_tokens)

    def _check_sharing(self, references: Counter[int], num_computed_tokens: dict[int, int]) -> None:
        idx_of: dict[int, int] = {}
        for row, num_computed in num_computed_tokens.items():
            num_left = self.num_left(row)
            if num_left > self.bounds.num_left(num_computed) and self.bounds.window:
                raise IntegrityError(f"row {row} gave back a block inside its window")
            for block_idx, block_id in enumerate(self.tables[row][num_left:], num_left):
                if references[block_id] == 1 and not self.cache.pool.is_cached(block_id):
                    continue
                if idx_of.setdefault(block_id, block_idx) != block_idx:
                    raise IntegrityError(f"block {block_id} stands at two different indices")
                if (block_idx + 1) * self.block_size > num_computed:
                    raise IntegrityError(f"row {row} may still write to shared or cached block {block_id}")

    def _num_new_blocks(self, request: Request, hits: list[int], num_spare_blocks: int) -> int | None:
        """Return the blocks a request needs beside its hits, None unless these and those to load are free."""
        num_held = len(hits) - hits.count(LEFT)
        num_new = self.num_blocks_for(request.num_stored_tokens) - len(hits)
        num_new = min(num_new, self.bounds.max_blocks - num_held)
        return num_new if self.cache.is_enough_free(hits, num_new + num_spare_blocks) else None
