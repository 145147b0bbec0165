"""The shadow of a KV cache in which groups of layers have blocks of their own, all of one pool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.executor.simulated.shadow_kv import LEFT, ShadowKV
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow


class ShadowGroups:
    """A ShadowKV for each group; those behind the first are of layers that see less than others.

    Methods are those of ShadowKV for all groups, and raise WorkerError like them.

    Args:
        first: of the layers that see all tokens, or of all layers.
        group_windows: of each group behind it; empty if layers are alike.
    """

    def __init__(self, first: ShadowKV, group_windows: Sequence[int]) -> None:
        self._first = first
        windows = [first.of_group(1 + i, window) for i, window in enumerate(group_windows)]
        self._groups = [first, *windows]

    def free_row(self, row: int) -> None:
        """Forget a row's tables."""
        for group in self._groups:
            group.free_row(row)

    def new_row(self, new: NewRow) -> None:
        """Enter a row with all its known tokens and the blocks that it is given."""
        token_ids = unpack_int32(new.token_ids).tolist()
        self._first.new_row(new.row, token_ids, unpack_int32(new.block_ids).tolist(), new.first_block)
        windows = self._groups[1:]
        blocks = unpack_int32(new.window_block_ids).tolist()
        for i, group in enumerate(windows):
            own = blocks[i :: len(windows)]
            num_gone = own.count(LEFT)
            first_block = new.first_window_block + num_gone
            group.new_row(new.row, list(token_ids), own[num_gone:], first_block)
        if any(group.num_slots_of(new.row) != self._first.num_slots_of(new.row) for group in windows):
            raise WorkerError(f"row {new.row} is given {len(blocks)} blocks for {len(windows)} window groups")

    def append_blocks(self, rows: Sequence[int], block_ids: Sequence[int]) -> None:
        """Append a block of each group to the tables of each row; block_ids [len(rows), number of groups]."""
        width = len(self._groups)
        for i, block_id in enumerate(block_ids):
            self._groups[i % width].append_block(rows[i // width], block_id)

    def abandon(self, row: int) -> None:
        """Note that a failed row reads and writes its blocks no more."""
        for group in self._groups:
            group.abandon(row)

    def move(self, source: int, target: int) -> None:
        """Copy a block between pool and offload tier, whichever group it is of."""
        self._first.move(source, target)

    def append_token(self, row: int, token_id: int) -> None:
        """Append the token a row sampled."""
        for group in self._groups:
            group.append_token(row, token_id)

    def check_last_token(self, row: int, token_id: int) -> None:
        """Check that the token the engine names for a row is the row's last one."""
        self._first.check_last_token(row, token_id)

    def num_slots_of(self, row: int) -> int:
        """Return how many tokens fit a row's blocks."""
        return self._first.num_slots_of(row)

    def compute_drafts(self, row: int, start: int, count: int, drafts: list[int]) -> npt.NDArray[np.int32]:
        """Compute `count` tokens and drafts in every group; return what the first attended to."""
        attended, *_ = (group.compute_drafts(row, start, count, drafts) for group in self._groups)
        return attended

    def keep(self, row: int, num_computed: int) -> None:
        """Note that so many tokens of a row will not be computed again."""
        for group in self._groups:
            group.keep(row, num_computed)

    def compute(self, row: int, start: int, count: int) -> npt.NDArray[np.int32]:
        """Compute `count` tokens in every group; return what the first attended to."""
        attended, *_ = (group.compute(row, start, count) for group in self._groups)
        return attended
