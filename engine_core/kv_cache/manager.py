"""Block tables of the running rows: what they take, share, cache and give back.

A block freed while a step that uses it is still in flight may be handed out by the next plan. That is safe:
workers run steps in the order they were planned, so every read and write of the older step is over before
the new owner's first write. Two rules make it so for shared blocks too. A block is indexed only after the
step that filled it has been applied, so a hit never reads KV that is still to come. And rows only write
past their num_computed_tokens, while indexed blocks lie wholly below it, so no step in flight writes to an
indexed block. A block loaded from the host tier is indexed at once: the move is done before the step computes
that it is planned with, and every step that may use the block comes later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.kv_cache.announced import AnnouncedBlocks
from splitserve.engine_core.kv_cache.block_pool import BlockPool
from splitserve.engine_core.kv_cache.offload import Offload
from splitserve.engine_core.kv_cache.prefix_finder import PrefixFinder
from splitserve.engine_core.kv_cache.prefix_index import PrefixIndex, chain_hash
from splitserve.engine_core.kv_cache.window import LEFT, RowBounds
from splitserve.engine_core.kv_events.recorder import KVEventRecorder
from splitserve.engine_core.request import TOKEN_BYTES, Request

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
        offload: the host tier behind the pool, None without one.
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
        offload: Offload | None = None,
        kv_events: KVEventRecorder | None = None,
    ) -> None:
        self.block_size = block_size
        self._block_bytes = block_size * TOKEN_BYTES
        self.bounds = bounds
        self.pool = BlockPool(num_blocks)
        self.index = PrefixIndex(secret)
        self.announced = AnnouncedBlocks()
        self.offload = offload
        self._finder = PrefixFinder(self.index, offload, bounds)
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
        """Return the places of the longest cached prefix that a waiting request may use."""
        if not self.enable_prefix_caching or request.wants_prompt_logprobs:
            return []
        return self._finder.find(request)

    def admit(self, row: int, request: Request, num_spare_blocks: int) -> int | None:
        """Give a free row blocks for all known tokens of a request, shared ones first.

        The whole prompt is allocated at once, so that a half-prefilled request never has to wait for, or
        preempt others over, blocks that admission already saw. With a sliding window that is as many as
        the row ever holds at once. Hits in the host tier are loaded, however many they are.

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
        self.tables[row] = self._hold(request, hits) + self._allocate(num_new)
        self.capacity[row] = len(self.tables[row]) * self.block_size
        if self.enable_prefix_caching:
            self.next_hash_at[row] = (len(hits) + 1) * self.block_size
            self._announce(row, request, len(hits))
        if self.bounds.window:
            self.next_leave_at[row] = self.bounds.next_leave_at(hits.count(LEFT))
        return len(hits) * self.block_size

    def load_ahead(self, request: Request, num_spare_blocks: int) -> bool:
        """Load the first blocks of a prefix of which more stands in the host tier than one step may load.

        They become cached blocks of the pool, the last to be evicted, where the request finds them when the
        next steps have loaded the others.

        Args:
            request: waiting, the next to be admitted.
            num_spare_blocks: blocks that must stay free when it is.

        Returns:
            Whether it has to wait for that. False, too, if blocks are what it has to wait for.
        """
        if self.offload is None:
            return False
        hits = self.find_prefix(request)
        loads = self.offload.loads(hits)
        num_now = self.offload.num_loads_left()
        if len(loads) <= num_now or self._num_new_blocks(request, hits, num_spare_blocks) is None:
            return False
        hits = hits[: hits.index(loads[num_now])]
        held = self._hold(request, hits)[hits.count(LEFT) :]
        self._release(held[::-1], len(hits))
        return True

    def row_filling(self, request: Request, place: int) -> int | None:
        """Return the row that computes the block at `place` of a waiting request.

        None when nobody does, or when a hit there would not count as it holds the request's last token.
        """
        if (place + 1) * self.block_size >= request.num_stored_tokens:
            return None
        self._finder.extend_chain(request, place + 1)
        return self.announced.row_of(request.block_hashes[place])

    def next_hash(self, row: int, request: Request) -> bytes | None:
        """Return the chain hash of the block that is indexed next for a row, if it is known yet."""
        place = int(self.next_hash_at[row]) // self.block_size - 1
        return request.block_hashes[place] if place < len(request.block_hashes) else None

    def grow(self, rows: IntColumn, counts: IntColumn) -> tuple[list[int], list[int]]:
        """Append new blocks to the tables of rows, all allocated in one call.

        Args:
            rows: int64 [k], each once.
            counts: int64 [k], blocks for each; the caller has checked num_free.

        Returns:
            Row and block of each that was appended, those of the first row first.
        """
        grown = rows.repeat(counts).tolist()
        block_ids = self._allocate(len(grown))
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
            num_indexed = int(self.next_hash_at[row]) // self.block_size - 1
            first, end = self.num_left(row), min(self.bounds.num_left(computed), num_indexed)
            if first < end:
                self._release(self.tables[row][first:end], num_indexed)
                self.tables[row][first:end] = [LEFT] * (end - first)
                self.next_leave_at[row] = self.bounds.next_leave_at(end)

    def free(self, row: int) -> None:
        """Give back a row's blocks; the end of the sequence becomes the first to be evicted."""
        num_indexed = int(self.next_hash_at[row]) // self.block_size - 1
        self._release(self.tables[row][self.num_left(row) :][::-1], num_indexed)
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
        filled = rows.tolist(), requests, num_indexed.tolist(), num_full.tolist()
        tables, block_bytes = self.tables, self._block_bytes
        hashes: list[bytes] = []
        block_ids: list[int] = []
        # Nearly always one block per row, its hash unknown yet. Slices and ranges for one block would cost
        # as much as SHA-256.
        for row, request, place, end in zip(*filled, strict=True):
            chain, table = request.block_hashes, tables[row]
            while place < end:
                if place == len(chain):
                    start = place * block_bytes
                    parent = chain[-1] if chain else request.namespace
                    chain.append(chain_hash(parent, request.token_ids[start : start + block_bytes]))
                hashes.append(chain[place])
                block_ids.append(table[place])
                place += 1
        if len(self.announced):
            for row, request, _first, end in zip(*filled, strict=True):
                if row in self.announced:
                    self._announce(row, request, end)
        indexed = self._index(hashes, block_ids)
        if self._kv_events is not None:
            inserted = None if len(indexed) == len(block_ids) else set(indexed)
            for row, request, first, end in zip(*filled, strict=True):
                if inserted is not None:
                    self._report_stored(self._kv_events, request, first, tables[row][first:end], inserted)
                elif first < end:
                    self._kv_events.stored(request, first, end)

    def reset_prefix_cache(self) -> int:
        """Forget every cached prefix; returns how many blocks held one. Running rows keep their blocks."""
        num_cached = len(self.index)
        self.index.reset()
        self.pool.uncache_all()
        # Chains of running rows start from the old secret, so nobody will look for them.
        self.announced.clear()
        if self.offload is not None:
            self.offload.reset()
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
        if self.offload is not None:
            self.offload.check_integrity()

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

    def _num_new_blocks(self, request: Request, hits: list[int], num_spare_blocks: int) -> int | None:
        """Return the blocks a request needs beside its hits, None unless these and those to load are free."""
        shared = self._of_pool(hits)
        num_held = len(hits) - hits.count(LEFT)
        num_new = self.num_blocks_for(request.num_stored_tokens) - len(hits)
        num_new = min(num_new, self.bounds.max_blocks - num_held)
        num_free_hits = sum(1 for block_id in shared if self.pool.ref_counts[block_id] == 0)
        num_wanted = num_new + num_held - len(shared) + num_spare_blocks
        return num_new if self.pool.num_free - num_free_hits >= num_wanted else None

    def _of_pool(self, places: list[int]) -> list[int]:
        return [place for place in places if LEFT < place < self.pool.num_blocks]

    def _hold(self, request: Request, hits: list[int]) -> list[int]:
        """Take a reference to every hit, loading those of the tier; returns their blocks and every LEFT."""
        for block_id in self._of_pool(hits):
            self.pool.acquire(block_id)
        if self.offload is None or not (loads := self.offload.loads(hits)):
            return hits
        self.offload.pin(loads)
        block_ids = self._allocate(len(loads))
        self.offload.load(loads, block_ids)
        block_of = dict(zip(loads, block_ids, strict=True))
        hashes = [request.block_hashes[i] for i, place in enumerate(hits) if place in block_of]
        self._index(hashes, block_ids)
        held = [block_of.get(place, place) for place in hits]
        if self._kv_events is not None:
            self._report_stored(self._kv_events, request, 0, held, set(block_ids))
        return held

    def _announce(self, row: int, request: Request, place: int) -> None:
        """Announce the row's block at `place` if all of its tokens are known, else nothing more."""
        if (place + 1) * self._block_bytes > len(request.token_ids):
            self.announced.withdraw(row)
            return
        self._finder.extend_chain(request, place + 1)
        self.announced.announce(row, request.block_hashes[place])

    def _index(self, hashes: list[bytes], block_ids: list[int]) -> list[int]:
        """Let blocks in use be found as prefixes; returns those that are, not their equals."""
        inserted = self.index.insert(hashes, block_ids)
        self.pool.mark_cached(inserted)
        return inserted

    def _allocate(self, count: int) -> list[int]:
        block_ids, num_evicted = self.pool.allocate(count)
        if num_evicted:
            evicted = block_ids[count - num_evicted :]
            hashes = [self.index.forget(block_id) for block_id in evicted]
            if self.offload is not None:
                self.offload.evicted(evicted, hashes)
            if self._kv_events is not None:
                self._kv_events.removed(hashes)
        return block_ids

    def _release(self, block_ids: list[int], num_indexed: int) -> None:
        """Drop a row's references, of a sequence with so many indexed blocks; the first are evicted first."""
        self.pool.release(block_ids)
        if self.offload is not None:
            self.offload.released(block_ids, num_indexed)

    def _report_stored(
        self, events: KVEventRecorder, request: Request, first: int, block_ids: list[int], inserted: set[int]
    ) -> None:
        """Report the inserted ones of a request's blocks from place `first` on, in consecutive runs."""
        end = first + len(block_ids)
        for place, block_id in enumerate(block_ids, first):
            if block_id not in inserted:
                if first < place:
                    events.stored(request, first, place)
                first = place + 1
        if first < end:
            events.stored(request, first, end)
