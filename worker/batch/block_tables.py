"""Which KV blocks each row of the batch holds, and which slot a token's keys and values go to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.errors import WorkerError
from splitserve.worker.ops.columns import Index, Int32


class BlockTables:
    """Owns two columns of the batch, and those of window groups; used by the worker's one thread.

    Attributes:
        table: int32 [max_num_seqs, max_blocks], the block ids of each row in the order of its tokens.
        num_blocks: int32 [max_num_seqs], the number of blocks of each row.
        window_tables: int32 [G, max_num_seqs, max_blocks], the tables of window groups, whose rows have as
            many blocks, so that those that have left keep their places; G is 0 if layers are alike.
    """

    def __init__(
        self,
        table: Int32,
        num_blocks: Int32,
        block_size: int,
        pool_size: int,
        window_tables: Int32 | None = None,
    ) -> None:
        """Args: both columns, zeroed; tokens per block; blocks in the KV cache; tables of window groups."""
        self.table = table
        self.num_blocks = num_blocks
        self.window_tables = np.zeros((0, *table.shape), np.int32) if window_tables is None else window_tables
        self._block_size = block_size
        self._pool_size = pool_size
        # The index of each row within a column; entries of other rows are stale.
        self._places = np.zeros(len(num_blocks), np.int64)

    def enter(self, row: int, first_block: int, block_ids: Int32) -> None:
        """Set the blocks of a new row; those before first_block have left its attention window.

        Raises:
            WorkerError: a block is outside the KV cache, or there are too many.
        """
        if first_block < 0:
            raise WorkerError(f"row {row} is new and begins at block {first_block}")
        num_blocks = first_block + len(block_ids)
        self._check(block_ids, num_blocks)
        # Blocks outside the window are never read; if one were, attention would reject the id.
        self.table[row, :first_block] = -1
        self.table[row, first_block:num_blocks] = block_ids
        self.num_blocks[row] = num_blocks

    def enter_windows(self, row: int, first_block: int, block_ids: Int32) -> None:
        """Set the blocks of a new row in window groups, after enter().

        Args:
            row: of the batch.
            first_block: those before it have left the window.
            block_ids: int32 [blocks of the row from first_block on, G]; -1 for one that has left the window
                of its group.

        Raises:
            WorkerError: a block is outside the KV cache, or they are not as many as the row has.
        """
        num_blocks = int(self.num_blocks[row])
        if not 0 <= first_block <= num_blocks:
            raise WorkerError(f"row {row} has {num_blocks} blocks, and {first_block} have left the window")
        if len(block_ids) != (num_blocks - first_block) * len(self.window_tables):
            raise WorkerError(f"row {row} is given {len(block_ids)} blocks in window groups")
        self._check(block_ids[block_ids != -1], num_blocks)
        self.window_tables[:, row, :first_block] = -1
        by_group = block_ids.reshape(num_blocks - first_block, len(self.window_tables)).T
        self.window_tables[:, row, first_block:num_blocks] = by_group

    def append(self, rows: Int32, block_ids: Int32) -> None:
        """Append block_ids[i] to the table of rows[i], rows of the batch; one may appear more than once.

        With window groups block_ids is [len(rows), 1 + G].

        Raises:
            WorkerError: the columns differ in length, a block is outside the KV cache, or there are too many.
        """
        if len(rows) * (1 + len(self.window_tables)) != len(block_ids):
            raise WorkerError("the block columns differ in length")
        if len(self.window_tables):
            block_ids = block_ids.reshape(len(rows), -1)
        while len(rows):
            # One block per row and round; in decode the first round is the only one.
            first = self._first_of_each(rows)
            self._append_one_each(rows[first], block_ids[first])
            rows, block_ids = rows[~first], block_ids[~first]

    def room(self, rows: Index) -> Int32:
        """Return how many tokens fit in the blocks of each of `rows`."""
        return self.num_blocks[rows] * np.int32(self._block_size)

    def slots(self, rows: Index, positions: Index) -> Int32:
        """Return the slots, int32 [T], of the tokens at positions [T] of rows [T]."""
        blocks = positions // self._block_size
        # (block id - block) * block_size + position: the offset within the block without a division.
        slots = (self.table[rows, blocks] - blocks) * self._block_size + positions
        return slots.astype(np.int32)

    def of(self, rows: Index, ends: Int32) -> Int32:
        """Return a copy of the tables of rows [R] with ends[i] tokens each, as wide as the longest needs."""
        # The kernels read whole rows of the table.
        width = -(-int(ends[ends.argmax()]) // self._block_size) if len(ends) else 1
        return self.table[:, :width].take(rows, axis=0)

    def window_slots(self, rows: Index, positions: Index) -> Int32:
        """Return the slots of the tokens, as slots() does, in each window group: int32 [G, T]."""
        blocks = positions // self._block_size
        slots = (self.window_tables[:, rows, blocks] - blocks) * self._block_size + positions
        return slots.astype(np.int32, order="C")

    def windows_of(self, rows: Index, width: int) -> Int32:
        """Return a copy of the tables of rows [R] in each window group: int32 [G, R, width]."""
        return self.window_tables[:, :, :width].take(rows, axis=1)

    def _first_of_each(self, rows: Int32) -> npt.NDArray[np.bool_]:
        """Return a mask of the first entry of each row; takes 1 us, np.unique 15."""
        places = np.arange(len(rows))
        # With several writes to one index the last one wins, so the column is written backwards.
        self._places[rows[::-1]] = places[::-1]
        first: npt.NDArray[np.bool_] = self._places[rows] == places
        return first

    def _append_one_each(self, rows: Int32, block_ids: Int32) -> None:
        lengths = self.num_blocks[rows]
        self._check(block_ids, int(lengths.max()) + 1)
        if len(self.window_tables):
            self.window_tables[:, rows, lengths] = block_ids[:, 1:].T
            block_ids = block_ids[:, 0]
        self.table[rows, lengths] = block_ids
        self.num_blocks[rows] = lengths + 1

    def _check(self, block_ids: Int32, num_blocks: int) -> None:
        # As unsigned numbers, negative ids are large, so one comparison is enough.
        if len(block_ids) and block_ids.view(np.uint32).max() >= self._pool_size:
            raise WorkerError("a block id is outside the KV cache")
        if num_blocks > self.table.shape[1]:
            raise WorkerError("a row got more blocks than the longest sequence needs")
