"""Which full blocks of the running rows can be found as prefixes, and which soon will be?

A block is indexed when the step that filled it has been applied. Until then, if all of its tokens are known,
its row announces it, so that whoever shares the prefix can wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.kv_cache.announced import AnnouncedBlocks
from splitserve.engine_core.kv_cache.block_hash import chain_hash, extend_chain, group_names
from splitserve.engine_core.kv_cache.prefix_cache import PrefixCache
from splitserve.engine_core.request import TOKEN_BYTES, Request

IntColumn = npt.NDArray[np.int64]
NEVER = np.iinfo(np.int64).max


class BlockIndexer:
    """How far each row's blocks are indexed.

    Attributes:
        next_hash_at: int64 [max_num_seqs]; num_computed_tokens at which the row's next block can be indexed;
            larger than any count for free rows, and without prefix caching.
        announced: blocks of known tokens that rows are filling.

    Args:
        cache: where blocks are indexed.
        tables: block ids by row, kept by the owner of the rows.
        block_size: tokens per block.
        window_tables: by row, the block ids of the cache's window groups for each block of `tables`.
    """

    def __init__(
        self,
        cache: PrefixCache,
        tables: Sequence[list[int]],
        block_size: int,
        window_tables: Sequence[list[int]] = (),
    ) -> None:
        self._cache = cache
        self._tables = tables
        self._window_tables = window_tables
        self._block_size = block_size
        self._block_bytes = block_size * TOKEN_BYTES
        self.next_hash_at = np.full(len(tables), NEVER)
        self.announced = AnnouncedBlocks()

    def begin(self, row: int, request: Request, num_indexed: int) -> None:
        """Index the blocks of a new row, of which the first num_indexed are."""
        self.next_hash_at[row] = (num_indexed + 1) * self._block_size
        self._announce(row, request, num_indexed)

    def end(self, row: int) -> None:
        """Stop indexing a row that becomes free."""
        self.next_hash_at[row] = NEVER
        self.announced.withdraw(row)

    def num_indexed(self, row: int) -> int:
        """Return how many blocks of a row, from the first, were indexed."""
        return int(self.next_hash_at[row]) // self._block_size - 1

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
        num_full = num_computed_tokens // self._block_size
        num_indexed = self.next_hash_at[rows] // self._block_size - 1
        self.next_hash_at[rows] = (num_full + 1) * self._block_size
        filled = rows.tolist(), requests, num_indexed.tolist(), num_full.tolist()
        tables, block_bytes = self._tables, self._block_bytes
        hashes: list[bytes] = []
        block_ids: list[int] = []
        # Nearly always one block per row, not hashed yet. Slices and ranges for one block would cost as much
        # as SHA-256.
        for row, request, block_idx, end in zip(*filled, strict=True):
            chain, table = request.block_hashes, tables[row]
            while block_idx < end:
                if block_idx == len(chain):
                    start = block_idx * block_bytes
                    parent = chain[-1] if chain else request.namespace
                    chain.append(chain_hash(parent, request.token_ids[start : start + block_bytes]))
                hashes.append(chain[block_idx])
                block_ids.append(table[block_idx])
                block_idx += 1
        if len(self.announced):
            for row, request, _first, end in zip(*filled, strict=True):
                if row in self.announced:
                    self._announce(row, request, end)
        if self._cache.num_window_groups:
            self._insert_windows(*filled)
        indexed = self._cache.insert(hashes, block_ids)
        if self._cache.reports_events:
            inserted = None if len(indexed) == len(block_ids) else set(indexed)
            for row, request, first, end in zip(*filled, strict=True):
                self._cache.report_stored(request, first, tables[row][first:end], inserted)

    def row_filling(self, request: Request, block_idx: int) -> int | None:
        """Return the row that computes the block at `block_idx` of a waiting request.

        None when nobody does, or when a hit there would not count as it holds the request's last token.
        """
        if (block_idx + 1) * self._block_size >= request.num_stored_tokens:
            return None
        return self.announced.row_of(self._hash_at(request, block_idx))

    def next_hash(self, row: int, request: Request) -> bytes | None:
        """Return the chain hash of the block that is indexed next for a row, if it is known yet."""
        block_idx = self.num_indexed(row)
        return request.block_hashes[block_idx] if block_idx < len(request.block_hashes) else None

    def _insert_windows(
        self, rows: list[int], requests: Sequence[Request], firsts: list[int], ends: list[int]
    ) -> None:
        """Index the blocks firsts[i]..ends[i]-1 of each row in the window groups; none has left yet."""
        num_groups = self._cache.num_window_groups
        names: list[bytes] = []
        block_ids: list[int] = []
        for row, request, first, end in zip(rows, requests, firsts, ends, strict=True):
            names += group_names(request.block_hashes[first:end], num_groups)
            block_ids += self._window_tables[row][first * num_groups : end * num_groups]
        self._cache.insert(names, block_ids)

    def _announce(self, row: int, request: Request, block_idx: int) -> None:
        """Announce the row's block at `block_idx` if all of its tokens are known, else nothing more."""
        if (block_idx + 1) * self._block_bytes > len(request.token_ids):
            self.announced.withdraw(row)
        else:
            self.announced.announce(row, self._hash_at(request, block_idx))

    def _hash_at(self, request: Request, block_idx: int) -> bytes:
        hashes = request.block_hashes
        extend_chain(hashes, request.namespace, request.token_ids, block_idx + 1, self._block_bytes)
        return hashes[block_idx]
