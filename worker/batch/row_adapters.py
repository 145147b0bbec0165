"""Which row of the batch has which adapter?"""

from __future__ import annotations

import numpy as np
import torch

from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.ipc.worker_messages import NO_ADAPTER
from splitserve.worker.ops.columns import Index, Int32


class RowAdapters:
    """The slots of the rows' adapters; single-threaded.

    Args:
        num_rows: of the batch.
        num_slots: of adapters.

    Attributes:
        column: int32 [num_rows], slot of each row's adapter, -1 for none; it never moves.
    """

    def __init__(self, num_rows: int, num_slots: int) -> None:
        self._num_slots = num_slots
        self.column: Int32 = np.full(num_rows, NO_ADAPTER, np.int32)
        self._num_adapted = 0

    @property
    def are_used(self) -> bool:
        """Whether any row in the batch has an adapter."""
        return self._num_adapted > 0

    def enter(self, row: int, slot: int) -> None:
        """A new row has the adapter of a slot, or none.

        Raises:
            WorkerError: there is no such slot.
        """
        if not NO_ADAPTER <= slot < self._num_slots:
            raise WorkerError(f"row {row} asks for adapter {slot} of {self._num_slots}")
        self.column[row] = slot
        self._num_adapted += slot != NO_ADAPTER

    def free(self, rows: Int32) -> None:
        """Rows have left the batch."""
        if self._num_adapted:
            self._num_adapted -= int(np.count_nonzero(self.column[rows] != NO_ADAPTER))
            self.column[rows] = NO_ADAPTER

    def of(self, rows: Index) -> torch.Tensor | None:
        """Return the slots of the rows of tokens, int32 [T]; None if none of them has an adapter."""
        if not self._num_adapted:
            return None
        slots = self.column[rows]
        # A step whose rows have all failed, or ended, has no tokens.
        return torch.from_numpy(slots) if slots.max(initial=NO_ADAPTER) != NO_ADAPTER else None
