"""Which KV blocks does each row of a benchmark get? As many as its longest sequence takes, and no others."""

from __future__ import annotations

from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.wire import ModelInfo


class RowBlocks:
    """The blocks of rows of equal length, in every group of the model's layers.

    Args:
        model: as its worker describes it.
        per_row: blocks that hold a row's tokens.
    """

    def __init__(self, model: ModelInfo, per_row: int) -> None:
        self._per_row = per_row
        self._num_groups = 1 + model.num_window_groups

    def of_rows(self, num_rows: int) -> int:
        """Return the size of a pool for so many rows."""
        return num_rows * self._per_row * self._num_groups

    def first(self, row: int) -> bytes:
        """Return NewRow.block_ids of a row."""
        begin = self.of_rows(row)
        return pack_int32(range(begin, begin + self._per_row))

    def windows(self, row: int) -> bytes:
        """Return NewRow.window_block_ids of a row."""
        return pack_int32(range(self.of_rows(row) + self._per_row, self.of_rows(row + 1)))
