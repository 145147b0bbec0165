"""Which blocks of the rows have left a window, and when does the next one of each row?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.kv_cache.block_indexer import NEVER
from splitserve.engine_core.kv_cache.window import LEFT, RowBounds

IntColumn = npt.NDArray[np.int64]


class Leaving:
    """What has left in the groups of one window, the first group or neighbouring window groups.

    Attributes:
        window: theirs; 0 if rows keep all their blocks.
        num_groups: how many groups these are.
        next_leave_at: int64 [max_num_seqs]; num_computed_tokens at which the next block of a row leaves,
            larger than any count for free rows and without a window.

    Args:
        tables: of all rows; their entries come in `width` columns, one per group.
        columns: those of these groups.
        width: columns of the tables.
        window: of the groups.
        bounds: of rows.
    """

    def __init__(
        self, tables: list[list[int]], columns: range, width: int, window: int, bounds: RowBounds
    ) -> None:
        self.window = window
        self.num_groups = len(columns)
        self.next_leave_at = np.full(len(tables), NEVER)
        self._tables = tables
        self._width = width
        self._bounds = bounds
        # Offset and step of slices that cover these columns: one if there are no others.
        self._slices = [(0, 1)] if len(columns) == width else [(column, width) for column in columns]

    def num_left(self, row: int) -> int:
        """Return how many of a row's blocks in each of the groups, from the first, have left."""
        if not self.window:
            return 0
        return (int(self.next_leave_at[row]) - self.window + 1) // self._bounds.block_size - 1

    def begin(self, row: int, num_computed_tokens: int) -> None:
        """Enter a row that begins with so many computed tokens; its table has LEFT where it should."""
        if self.window:
            num_left = self._bounds.num_left(self.window, num_computed_tokens)
            self.next_leave_at[row] = self._bounds.next_leave_at(self.window, num_left)

    def end(self, row: int) -> None:
        """Forget a row that becomes free."""
        self.next_leave_at[row] = NEVER

    def leave(self, row: int, num_computed_tokens: int, num_indexed: int) -> list[int]:
        """Put LEFT in place of the blocks that no later query of a row sees.

        Args:
            row: in use.
            num_computed_tokens: its.
            num_indexed: blocks behind these stay until they are indexed.

        Returns:
            The blocks, to be given back.
        """
        first = self.num_left(row)
        end = min(self._bounds.num_left(self.window, num_computed_tokens), num_indexed)
        gone: list[int] = []
        if first < end:
            table, width = self._tables[row], self._width
            for offset, step in self._slices:
                entries = slice(first * width + offset, end * width, step)
                blocks = table[entries]
                table[entries] = [LEFT] * len(blocks)
                gone += blocks
            self.next_leave_at[row] = self._bounds.next_leave_at(self.window, end)
        return gone


def watch_windows(
    bounds: RowBounds, tables: list[list[int]], window_tables: list[list[int]]
) -> list[Leaving]:
    """Return what watches each of bounds.groups in the tables of all rows, which are still empty."""
    first, *others = bounds.groups
    watched = [Leaving(tables, range(1), 1, first.window, bounds)]
    start = 0
    for window, num_groups, _max_blocks in others:
        columns = range(start, start + num_groups)
        watched.append(Leaving(window_tables, columns, bounds.num_window_groups, window, bounds))
        start += num_groups
    return watched
