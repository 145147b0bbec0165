"""Block tables of the running rows: what they take, share, cache and give back.

A block freed while a step that uses it is still in flight may be handed out by the next plan. That is safe:
workers run steps in the order they were planned, so every read and write of the older step is over before
the new owner's first write. Two rules make it so for shared blocks too. A block is indexed only after the
step that filled it has been applied, so a hit never reads KV that is still to come. And rows only write
past their num_computed_tokens, while indexed blocks lie wholly below it, so no step in flight writes to an
indexed block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine_core.errors import IntegrityError
from engine_core.kv_cache.announced import AnnouncedBlocks
from engine_core.kv_cache.block_pool import BlockPool
from engine_core.kv_cache.prefix_index import PrefixIndex, extend_chain
from engine_core.kv_cache.window import LEFT, RowBounds
from engine_core.kv_events.recorder import KVEventRecorder
from engine_core.request import TOKEN_BYTES, Request

IntColumn = npt.NDArray[np.int64]


class KVCacheManager:
    """Joins block pool, prefix index and one block table per row.

    Attributes:
        capacity: int64 [max_num_seqs]; tokens that a row's blocks hold, 0 for free rows.
        tables: block ids by row; LEFT where a block has left the window of a sliding-window model.
        next_hash_at: int64 [max_num_seqs]; num_computed_tokens at which the row's next block can be indexed.
        next_leave_at: int64 [max_num_seqs]; num_computed_tokens at which its next block leaves the window.
        announced: blocks of known tokens that rows are filling.
        bounds: what a row may hold.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        secret: bytes,
        enable_prefix_caching: bool,
        bounds: RowBounds,
        kv_events: KVEventRecorder | None = None,
    ) -> None:
        self.block_size = block_size
        self._block_bytes = block_size * TOKEN_BYTES
        self.bounds = bounds
        self.pool = BlockPool(num_blocks)
        self.index = PrefixIndex(secret)
        self.announced = AnnouncedBlocks()
        self._kv_events = kv_events
        self.enable_prefix_caching = enable_prefix_caching
        self.tables: list[list[int]] = [[] for _ in range(max_num_seqs)]
        self.capacity = np.zeros(max_num_seqs, np.int64)
        self.next_hash_at = np.full(max_num_seqs, np.iinfo(np.int64).max)
        self.next_leave_at = np.full(max_num_seqs, np.iinfo(np.int64).max)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return the blocks that num_tokens take."""
        return -(-num_tokens // self.block_size)

    def max_blocks_for(self, num_tokens: int) -> int:
        """Return the most blocks that a row holds at once while it computes num_tokens."""
        return min(self.num_blocks_for(num_tokens), self.bounds.max_blocks)

    def find_prefix(self, request: Request) -> list[int]:
        """Return the blocks that hold the longest cached prefix of a waiting request.

        The last token is left out: its logits are needed, so it is always computed. With a sliding window
        only what the next token sees must be cached; LEFT stands for the blocks before.
        """
        if not self.enable_prefix_caching or request.wants_prompt_logprobs:
            return []
        if self.bounds.window:
            return self._find_window(request)
        hits: list[int] = []
        hashes = request.block_hashes
        for i in range((request.num_stored_tokens - 1) // self.block_size):
            if i >= len(hashes):
                self._extend_chain(request, i + 1)
            block_id = self.index.lookup(hashes[i])
            if block_id is None:
                break
            hits.append(block_id)
        return hits

    def admit(self, row: int, request: Request, num_spare_blocks: int) -> int | None:
        """Give a free row blocks for all known tokens of a request, shared ones first.

        The whole prompt is allocated at once, so that a half-prefilled request never has to wait for, or
        preempt others over, blocks that admission already saw. With a sliding window that is as many as
        the row ever holds at once.

        Args:
            row: the row it will have.
            request: waiting.
            num_spare_blocks: blocks that must stay free afterwards.

        Returns:
            Tokens whose KV is cached, or None when the blocks do not suffice; nothing has changed then.
        """
        hits = self.find_prefix(request)
        num_left = hits.count(LEFT)
        shared = hits[num_left:]
        num_new = self.num_blocks_for(request.num_stored_tokens) - len(hits)
        num_new = min(num_new, self.bounds.max_blocks - len(shared))
        num_free_hits = sum(1 for block_id in shared if self.pool.ref_counts[block_id] == 0)
        if self.pool.num_free - num_free_hits < num_new + num_spare_blocks:
            return None
        assert not self.tables[row], "the row must be free"
        for block_id in shared:
            self.pool.acquire(block_id)
        self.tables[row] = hits + self._allocate(num_new)
        self.capacity[row] = len(self.tables[row]) * self.block_size
        if self.enable_prefix_caching:
            self.next_hash_at[row] = (len(hits) + 1) * self.block_size
            self._announce(row, request, len(hits))
        if self.bounds.window:
            self.next_leave_at[row] = self.bounds.next_leave_at(num_left)
        return len(hits) * self.block_size

    def row_filling(self, request: Request, place: int) -> int | None:
        """Return the row that computes the block at `place` of a waiting request.

        None when nobody does, or when a hit there would not count as it holds the request's last token.
        """
        if (place + 1) * self.block_size >= request.num_stored_tokens:
            return None
        self._extend_chain(request, place + 1)
        return self.announced.row_of(request.block_hashes[place])

    def next_hash(self, row: int, request: Request) -> bytes | None:
        """Return the chain hash of the block that is indexed next for a row, if it is known yet."""
        place = int(self.next_hash_at[row]) // self.block_size - 1
        return request.block_hashes[place] if place < len(request.block_hashes) else None

    def grow(self, rows: IntColumn, counts: IntColumn) -> list[int]:
        """Append new blocks to the tables of rows, all allocated in one call.

        Args:
            rows: int64 [k], each once.
            counts: int64 [k], blocks for each; the caller has checked num_free.

        Returns:
            The blocks, those of the first row first.
        """
        block_ids = self._allocate(int(counts.sum()))
        self.capacity[rows] += counts * self.block_size
        start = 0
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            self.tables[row] += block_ids[start : start + count]
            start += count
        return block_ids

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
            num_indexed = int(self.next_hash_at[row]) // self.block_size - 1
            first, end = self.num_left(row), min(self.bounds.num_left(computed), num_indexed)
            if first < end:
                self.pool.release(self.tables[row][first:end])
                self.tables[row][first:end] = [LEFT] * (end - first)
                self.next_leave_at[row] = self.bounds.next_leave_at(end)

    def free(self, row: int) -> None:
        """Give back a row's blocks; the end of the sequence becomes the first to be evicted."""
        self.pool.release(reversed(self.tables[row][self.num_left(row) :]))
        self.tables[row] = []
        self.capacity[row] = 0
        self.next_hash_at[row] = self.next_leave_at[row] = np.iinfo(np.int64).max
        self.announced.withdraw(row)

    def index_full_blocks(
        self, rows: IntColumn, requests: Sequence[Request], num_computed_tokens: IntColumn
    ) -> None:
        """Index every block that the applied steps have filled.

        Of rows that computed the same prefix side by side the first one's block is indexed.

        Args:
            rows: int64 [k], each once.
            requests: of these rows.
            num_computed_tokens: int64 [k], applied steps only.
        """
        num_full = num_computed_tokens // self.block_size
        num_indexed = self.next_hash_at[rows] // self.block_size - 1
        self.next_hash_at[rows] = (num_full + 1) * self.block_size
        tables, announced = self.tables, self.announced
        hashes: list[bytes] = []
        block_ids: list[int] = []
        places = zip(rows.tolist(), requests, num_indexed.tolist(), num_full.tolist(), strict=True)
        for row, request, first, end in places:
            chain = request.block_hashes
            if len(chain) < end:
                extend_chain(chain, request.namespace, request.token_ids, end, self._block_bytes)
            hashes += chain[first:end]
            block_ids += tables[row][first:end]
            if row in announced:
                self._announce(row, request, end)
        inserted = self.index.insert(hashes, block_ids)
        self.pool.mark_cached(inserted)
        if self._kv_events is not None:
            self._report_stored(self._kv_events, rows, requests, num_indexed, set(inserted))

    def reset_prefix_cache(self) -> int:
        """Forget every cached prefix; returns how many blocks held one. Running rows keep their blocks."""
        num_cached = len(self.index)
        self.index.reset()
        self.pool.uncache_all()
        # Chains of running rows start from the old secret, so nobody will look for them.
        self.announced.clear()
        if self._kv_events is not None:
            self._kv_events.cleared()
        return num_cached

    def check_integrity(self, num_computed_tokens: dict[int, int]) -> None:
        """Compare tables, pool, index and columns with each other.

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
        self.pool.check_integrity(references)
        self.index.check_integrity()
        cached = {block_id for block_id in range(self.pool.num_blocks) if self.pool.is_cached(block_id)}
        if cached != self.index.block_ids():
            raise IntegrityError(f"cached marks and index differ in blocks {cached ^ self.index.block_ids()}")
        self._check_sharing(references, num_computed_tokens)

    def _check_sharing(self, references: Counter[int], num_computed_tokens: dict[int, int]) -> None:
        place_of: dict[int, int] = {}
        for row, num_computed in num_computed_tokens.items():
            num_left = self.num_left(row)
            if num_left > self.bounds.num_left(num_computed) and self.bounds.window:
                raise IntegrityError(f"row {row} gave back a block inside its window")
            for place, block_id in enumerate(self.tables[row][num_left:], num_left):
                if references[block_id] == 1 and not self.pool.is_cached(block_id):
                    continue
                if place_of.setdefault(block_id, place) != place:
                    raise IntegrityError(f"block {block_id} stands at two different places")
                if (place + 1) * self.block_size > num_computed:
                    raise IntegrityError(f"row {row} may still write to shared or cached block {block_id}")

    def _find_window(self, request: Request) -> list[int]:
        """Look for the longest prefix of which the last window is cached; O(blocks of the request)."""
        end = place = (request.num_stored_tokens - 1) // self.block_size
        self._extend_chain(request, end)
        hits: list[int] = []  # from `end` backwards to `place`
        while place > self.bounds.num_left(end * self.block_size):
            place -= 1
            block_id = self.index.lookup(request.block_hashes[place])
            if block_id is None:
                end = place
                hits.clear()
            else:
                hits.append(block_id)
        return [LEFT] * place + hits[::-1]

    def _announce(self, row: int, request: Request, place: int) -> None:
        """Announce the row's block at `place` if all of its tokens are known, else nothing more."""
        if (place + 1) * self._block_bytes > len(request.token_ids):
            self.announced.withdraw(row)
            return
        self._extend_chain(request, place + 1)
        self.announced.announce(row, request.block_hashes[place])

    def _extend_chain(self, request: Request, num_blocks: int) -> None:
        extend_chain(
            request.block_hashes, request.namespace, request.token_ids, num_blocks, self._block_bytes
        )

    def _allocate(self, count: int) -> list[int]:
        block_ids, num_evicted = self.pool.allocate(count)
        if num_evicted:
            evicted = [self.index.forget(block_id) for block_id in block_ids[count - num_evicted :]]
            if self._kv_events is not None:
                self._kv_events.removed(evicted)
        return block_ids

    def _report_stored(
        self,
        events: KVEventRecorder,
        rows: IntColumn,
        requests: Sequence[Request],
        num_indexed: IntColumn,
        inserted: set[int],
    ) -> None:
        """Report the inserted ones of the rows' newly full blocks, in runs of consecutive blocks."""
        num_full = self.next_hash_at[rows] // self.block_size - 1
        places = zip(rows.tolist(), requests, num_indexed.tolist(), num_full.tolist(), strict=True)
        for row, request, first, end in places:
            for place, block_id in enumerate(self.tables[row][first:end], first):
                if block_id not in inserted:
                    if first < place:
                        events.stored(request, first, place)
                    first = place + 1
            if first < end:
                events.stored(request, first, end)
