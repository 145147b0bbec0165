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

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.kv_cache.block_indexer import BlockIndexer
from splitserve.engine_core.kv_cache.leaving import watch_windows
from splitserve.engine_core.kv_cache.prefix_cache import PrefixCache
from splitserve.engine_core.kv_cache.prefix_finder import PrefixFinder
from splitserve.engine_core.kv_cache.table_check import RowTables, check_tables
from splitserve.engine_core.kv_cache.window import LEFT, RowBounds
from splitserve.engine_core.request import Request

IntColumn = npt.NDArray[np.int64]


class KVCacheManager:
    """One block table per row over a cache of prefixes.

    Attributes:
        cache: the blocks and the prefixes they hold.
        indexer: which blocks of the rows can be found as prefixes.
        tables: block ids by row; LEFT where a block has left the window, if all layers have one.
        window_tables: by row, a block id of each window group for each block of `tables`; LEFT where it has
            left the window of its group. Always empty if all layers are alike.
        num_window_groups: see RowBounds.
        capacity: int64 [max_num_seqs]; tokens that a row's blocks hold, 0 for free rows.
        bounds: what a row may hold.
        leaving: what has left of each of bounds.groups.

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
        self.num_window_groups = bounds.num_window_groups
        self.tables: list[list[int]] = [[] for _ in range(max_num_seqs)]
        self.window_tables: list[list[int]] = [[] for _ in range(max_num_seqs)]
        self.leaving = watch_windows(bounds, self.tables, self.window_tables)
        self._sliding = [leaving for leaving in self.leaving if leaving.window]
        self.capacity = np.zeros(max_num_seqs, np.int64)
        self._num_groups = np.array([group.num_groups for group in bounds.groups])
        # Of each of bounds.groups, the blocks of tokens up to which a row takes what it is promised.
        self._promised = np.zeros((len(bounds.groups), max_num_seqs), np.int64)
        self.indexer = BlockIndexer(cache, self.tables, bounds.block_size, self.window_tables)
        self._finder = PrefixFinder(cache.index, cache.offload, bounds)
        self._enable_prefix_caching = enable_prefix_caching

    @property
    def blocks_per_entry(self) -> int:
        """Blocks that a row takes for block_size tokens more."""
        return self.num_window_groups + 1

    def find_prefix(self, request: Request) -> list[int]:
        """Return the places of the longest cached prefix that a waiting request may use, see PrefixFinder."""
        if not self._enable_prefix_caching or request.needs_all_tokens:
            return []
        return self._finder.find(request)

    def num_cached_blocks(self, request: Request) -> int:
        """Return the length of that prefix in blocks of tokens."""
        return len(self.find_prefix(request)) // self.blocks_per_entry

    def admit(self, row: int, request: Request, num_spare_blocks: int) -> int | None:
        """Give a free row blocks for all known tokens of a request, shared ones first.

        The whole prompt is allocated at once, so that a half-prefilled request never has to wait for, or
        preempt others over, blocks that admission already saw. With a sliding window that is as many as
        the row ever holds at once in the narrowest; what the wider groups take beyond that is promised, which
        later admissions respect. Offloaded hits are loaded, however many they are.

        Args:
            row: the row it will have.
            request: waiting.
            num_spare_blocks: blocks that must stay free afterwards.

        Returns:
            Tokens whose KV is cached, or None when the blocks do not suffice; nothing has changed then.
        """
        hits = self.find_prefix(request)
        wanted = self._wanted_blocks(request, hits, num_spare_blocks)
        if wanted is None:
            return None
        num_new = min(wanted)
        assert not self.tables[row], "the row must be free"
        held = self.cache.hold(request, hits)
        new = self.cache.allocate(num_new * self.blocks_per_entry)
        num_hits = len(hits) // self.blocks_per_entry
        self.tables[row] = held[:num_hits] + new[:num_new]
        self.capacity[row] = len(self.tables[row]) * self.block_size
        if self.num_window_groups:
            self.window_tables[row] = held[num_hits:] + new[num_new:]
            self._promised[:, row] = [num_hits + num_blocks for num_blocks in wanted]
        if self._enable_prefix_caching:
            self.indexer.begin(row, request, num_hits)
        for leaving in self._sliding:
            leaving.begin(row, num_hits * self.block_size)
        return num_hits * self.block_size

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
        if len(loads) <= num_now or self._wanted_blocks(request, hits, num_spare_blocks) is None:
            return False
        end = hits.index(loads[num_now])
        held = self.cache.hold(request, hits[:end] + [LEFT] * (len(hits) - end))
        held = [block_id for block_id in held if block_id != LEFT]
        self.cache.release(held[::-1], min(end, len(hits) // self.blocks_per_entry))
        return True

    def grow(self, rows: IntColumn, counts: IntColumn) -> tuple[list[int], list[int]]:
        """Append new blocks to the tables of rows, all allocated in one call.

        Args:
            rows: int64 [k], each once.
            counts: int64 [k], blocks of tokens for each; the caller has checked num_free.

        Returns:
            Row of each that was appended, those of the first row first; and their block ids, blocks_per_entry
            of each, that of the first group before those of window groups.
        """
        grown = rows.repeat(counts).tolist()
        self.capacity[rows] += counts * self.block_size
        tables = self.tables
        if self.num_window_groups:
            width = self.blocks_per_entry
            block_ids = self.cache.allocate(len(grown) * width)
            for at, row in enumerate(grown):
                tables[row].append(block_ids[at * width])
                self.window_tables[row] += block_ids[at * width + 1 : (at + 1) * width]
            return grown, block_ids
        block_ids = self.cache.allocate(len(grown))
        for row, block_id in zip(grown, block_ids, strict=True):
            tables[row].append(block_id)
        return grown, block_ids

    def first_block(self, row: int) -> int:
        """Return the index of the first block that a row holds in `tables`."""
        return self.leaving[0].num_left(row)

    def first_window_block(self, row: int) -> int:
        """Return the index of the first block of tokens that a row holds in any window group."""
        return self.leaving[1].num_left(row) if self.num_window_groups else 0

    def leave_window(self, rows: IntColumn, num_computed_tokens: IntColumn) -> None:
        """Give back the blocks that no later query of the rows sees; they become the first to be evicted.

        A step in flight may still read them; see above why that is safe. Blocks that are yet to be indexed
        are kept until they are.

        Args:
            rows: int64 [n], in use.
            num_computed_tokens: int64 [n], steps in flight included.
        """
        for leaving in self._sliding:
            crossing = (num_computed_tokens >= leaving.next_leave_at[rows]).nonzero()[0]
            for row, computed in zip(
                rows[crossing].tolist(), num_computed_tokens[crossing].tolist(), strict=True
            ):
                num_indexed = self.indexer.num_indexed(row)
                gone = leaving.leave(row, computed, num_indexed)
                if gone:
                    self.cache.release(gone, num_indexed)

    def free(self, row: int) -> None:
        """Give back a row's blocks; the end of the sequence becomes the first to be evicted."""
        num_indexed = self.indexer.num_indexed(row)
        if self.num_window_groups:
            self.cache.release(self._held_in_windows(row)[::-1], num_indexed)
            self.window_tables[row] = []
            self._promised[:, row] = 0
        self.cache.release(self.tables[row][self.first_block(row) :][::-1], num_indexed)
        self.tables[row] = []
        self.capacity[row] = 0
        for leaving in self._sliding:
            leaving.end(row)
        self.indexer.end(row)

    def in_windows(self, row: int) -> list[int]:
        """Return the entries of a row's window table from first_window_block() on."""
        return self.window_tables[row][self.first_window_block(row) * self.num_window_groups :]

    def distrust(self, row: int) -> None:
        """Let nobody find the blocks of a row: what they hold may be why its request failed."""
        self.cache.uncache(self.tables[row][self.first_block(row) :] + self._held_in_windows(row))

    def reset_prefix_cache(self) -> int:
        """Forget every cached prefix; returns how many blocks held one. Running rows keep their blocks."""
        # Chains of running rows start from the old secret, so nobody will look for them.
        self.indexer.announced.clear()
        return self.cache.reset()

    def check_integrity(self, num_computed_tokens: dict[int, int]) -> None:
        """Check that tables, pool, index and columns agree; see engine_core.kv_cache.table_check.

        Args:
            num_computed_tokens: of every running row.

        Raises:
            IntegrityError: names the first disagreement.
        """
        rows = [
            RowTables(*tables, self._num_left(row) if tables[0] else [], int(self.capacity[row]))
            for row, tables in enumerate(zip(self.tables, self.window_tables, strict=True))
        ]
        check_tables(rows, self.bounds, self.cache, num_computed_tokens)

    def _num_left(self, row: int) -> list[int]:
        return [leaving.num_left(row) for leaving in self.leaving]

    def _held_in_windows(self, row: int) -> list[int]:
        return [block_id for block_id in self.in_windows(row) if block_id != LEFT]

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _wanted_blocks(self, request: Request, hits: list[int], num_spare_blocks: int) -> list[int] | None:
        """Return the blocks of tokens that a request takes beside its hits in each of bounds.groups.

        It gets the least of them at once. None unless the blocks for these, for what is to be loaded and for
        what is promised are free.
        """
        num_hits = len(hits) // self.blocks_per_entry
        num_missing = self._num_blocks_for(request.num_stored_tokens) - num_hits
        num_left, cached = self.bounds.num_left, num_hits * self.block_size
        wanted = [
            min(num_missing, max_blocks - (num_hits - num_left(window, cached)))
            for window, _num_groups, max_blocks in self.bounds.groups
        ]
        num_new = min(wanted)
        if self.num_window_groups:
            num_open = np.maximum(self._promised - self.capacity // self.block_size, 0).sum(axis=1)
            num_spare_blocks += int((num_open + wanted - num_new) @ self._num_groups)
        num_taken = num_new * self.blocks_per_entry
        return wanted if self.cache.is_enough_free(hits, num_taken + num_spare_blocks) else None
